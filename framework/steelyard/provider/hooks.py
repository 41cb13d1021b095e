"""What a user gives a service for its life: a load, a warm-up, a health check."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from steelyard.errors import ConfigError
from steelyard.service import BoundMethod, bind_arguments
from steelyard.setting import checked, function, whole_number

from .life import Health, Hooks

MOST_WARM_UPS = 100_000

Call = Callable[[str, tuple[Any, ...]], Awaitable[None]]
"""Makes one call of a method, by name, in the way a caller's would be made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Warm:
    """``n`` real calls before the service is ready: they fill caches, compile kernels, and prove that it answers.

    ``args``: the arguments of each, or a function that makes them from the call's number (0 to n - 1), for models whose
    kernels depend on the shape. ``method`` may be left out where the service has only one. A method that is batched is
    called once more with a full batch, because that is the shape that will be asked of the device.
    """

    n: int = 3
    args: tuple[Any, ...] | Callable[[int], tuple[Any, ...]] = ()
    method: str | None = None

    def __post_init__(self) -> None:
        whole_number("Warm.n", self.n, 1, MOST_WARM_UPS)
        is_good = isinstance(self.args, tuple) or callable(self.args)
        checked("Warm.args", self.args, is_good, "a tuple of arguments, or a function that makes one")


def hooks_for(
    methods: Mapping[str, BoundMethod],
    implementation: object,
    call: Call,
    *,
    load: Callable[[], Any] | None,
    warm_up: Warm | Callable[[], Any] | None,
    health: Health | Callable[[], Any] | None,
) -> Hooks:
    """What is given, and where nothing is, the implementation's own ``warm_up`` and ``health`` methods (unless the
    contract exports methods of these names). Raises ConfigError."""
    warm_up = warm_up if warm_up is not None else _own(methods, implementation, "warm_up")
    health = health if health is not None else _own(methods, implementation, "health")
    if health is not None and not isinstance(health, Health):
        health = Health(health)
    return Hooks(
        load=None if load is None else function("load", load),
        warm_up=None if warm_up is None else _warm_up(methods, warm_up, call),
        health=health,
    )


def _own(methods: Mapping[str, BoundMethod], implementation: object, name: str) -> Any:
    found = None if name in methods else getattr(implementation, name, None)
    if not callable(found):
        return None
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):
        return None
    is_asking = any(
        each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD) for each in parameters
    )
    return None if is_asking else found  # one that takes arguments is something else of the same name


def _warm_up(methods: Mapping[str, BoundMethod], warm_up: Warm | Callable[[], Any], call: Call) -> Callable[[], Any]:
    if not isinstance(warm_up, Warm):
        return function("warm_up", warm_up)  # type: ignore[no-any-return]
    names = ", ".join(sorted(methods))
    name = names if warm_up.method is None and len(methods) == 1 else warm_up.method
    if name is None or name not in methods:
        raise ConfigError(f"Warm.method: one of {names}, not {name!r}")
    spec, batch = methods[name].spec, methods[name].batch

    async def run() -> None:
        for number in range(warm_up.n):
            await call(spec.name, bind_arguments(spec, _arguments(warm_up, number), {}))
        if batch is not None:
            full = [bind_arguments(spec, _arguments(warm_up, 0), {})] * batch.max_size
            answers = await asyncio.gather(*(call(spec.name, args) for args in full), return_exceptions=True)
            for answer in answers:
                if isinstance(answer, BaseException):
                    raise answer  # one of them, and no group: as the same error of a lone call

    return run


def _arguments(warm_up: Warm, number: int) -> tuple[Any, ...]:
    return warm_up.args if isinstance(warm_up.args, tuple) else tuple(warm_up.args(number))

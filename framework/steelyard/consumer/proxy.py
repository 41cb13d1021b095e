"""Proxies: objects that look like the contract and call the cluster.

Methods are made once, when a service is referred to, as closures over what a call needs, and are kept in the instance:
an attribute look-up finds them without binding. Each call builds one Invocation and awaits one Invoker.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from time import monotonic
from types import MappingProxyType
from typing import Any, NoReturn, Self, TypedDict, TypeVar, Unpack

from steelyard.balance import hash_key
from steelyard.invoke import Invoker, serving
from steelyard.model import Invocation, MethodSpec, ServiceSpec
from steelyard.service import bind_arguments
from steelyard.setting import near, texts, timeout, whole_number

from .items import as_items
from .reference import Reference
from .short import Opener

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """What a caller may say of its calls, beside their arguments. ``timeout_s``: None leaves it to the method and the
    consumer. ``attachments`` travel with the call as strings. ``priority``: 0 is degraded last."""

    timeout_s: float | None = None
    attachments: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    priority: int | None = None

    def __post_init__(self) -> None:
        if self.timeout_s is not None:
            timeout("timeout_s", self.timeout_s)
        if self.priority is not None:
            whole_number("priority", self.priority, 0, 255)
        object.__setattr__(self, "attachments", MappingProxyType(texts("attachments", self.attachments)))


class Options(TypedDict, total=False):
    """CallOptions by keyword: what is not given stays as it is."""

    timeout_s: float | None
    attachments: Mapping[str, str]
    priority: int | None


class Referred:
    """What ``refer`` gives, of either consumer. It stands for a service and not for data: a copy is itself, and it
    cannot leave its process."""

    _reference: Reference

    def _with(self, options: Options) -> Self:
        raise NotImplementedError

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):  # also while it is being made
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        spec = self._reference.spec
        methods = ", ".join(sorted(spec.methods))
        raise AttributeError(f"{spec.key} has no method {name!r}; it has: {methods}{near(name, spec.methods)}")

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{self!r} cannot be pickled: it belongs to the consumer of this process; refer to it there")


class Proxy(Referred):
    """One referenced service. Its methods are the contract's; see ``with_options`` for settings by call."""

    def __init__(self, reference: Reference, timeout_s: float, options: CallOptions) -> None:
        self._reference = reference
        self._timeout_s = timeout_s
        self._options = options
        self._make_methods()

    def _make_methods(self) -> None:
        spec, invoker, short = self._reference.spec, self._reference.invoker, self._reference.short_way
        for method in spec.methods.values():
            make = _stream if method.shape.gives_stream else _unary
            call = make(_opener(spec.key, method, self._timeout_s, self._options), invoker)
            codec = None if short is None else short.codec(spec.key, method)
            if short is not None and codec is not None:
                opener = _opener(spec.key, method, self._timeout_s, self._options, codec.encode_arguments)
                call = short.call(opener, codec, call)
            setattr(self, method.name, _dressed(call, method, spec))

    def _with(self, options: Options) -> Self:
        return type(self)(self._reference, self._timeout_s, replace(self._options, **options))

    def __repr__(self) -> str:
        spec = self._reference.spec
        return f"<proxy of {spec.key}: {', '.join(sorted(spec.methods))}>"


def reference_of(proxy: object) -> Reference:
    """The reference behind what ``refer()`` gave; TypeError for anything else."""
    if not isinstance(proxy, Referred):
        raise TypeError(f"not something that refer() gave: {proxy!r}")
    return proxy._reference


def with_options(proxy: T, **options: Unpack[Options]) -> T:
    """A copy of *proxy* whose calls have other CallOptions: ``with_options(ctr, timeout_s=0.1, attachments={...})``."""
    if not isinstance(proxy, Referred):
        raise TypeError(f"with_options takes what refer() gave, not {type(proxy).__name__}")
    known = Options.__annotations__
    for name in options.keys() - known.keys():
        raise TypeError(f"with_options() got an unexpected keyword argument {name!r}{near(name, known)}")
    return proxy._with(options)


Encode = Callable[[tuple[Any, ...]], bytes]


def _opener(
    service: str, spec: MethodSpec, timeout_s: float, options: CallOptions, encode: Encode | None = None
) -> Opener:
    """The function that turns the arguments of a call into its Invocation; with *encode* it has its body too."""
    name = spec.name
    own_timeout_s = options.timeout_s or spec.timeout_s or timeout_s
    priority = spec.priority if options.priority is None else options.priority
    attachments = options.attachments
    hash_at = next((at for at, parameter in enumerate(spec.parameters) if parameter.name == spec.hash_key), None)
    stream_at = spec.stream_at
    get_serving = serving.get
    last = spec.parameters[-1] if spec.parameters else None
    all_by_position = -1 if last is not None and last.is_keyword_only else len(spec.parameters)

    def open_call(args: tuple[Any, ...], kwargs: dict[str, Any], now_s: float) -> Invocation:
        bound = args if len(args) == all_by_position and not kwargs else bind_arguments(spec, args, kwargs)
        if stream_at is not None:
            items = as_items(bound[stream_at], spec.parameters[stream_at].name)
            bound = (*bound[:stream_at], items, *bound[stream_at + 1 :])
        deadline_at = now_s + own_timeout_s
        outer = get_serving()
        if outer is not None and outer.invocation.deadline_at < deadline_at and not outer.is_over:
            deadline_at = outer.invocation.deadline_at
        key = None if hash_at is None else hash_key(bound[hash_at])
        body = None if encode is None else encode(bound)
        return Invocation(service, name, bound, body, deadline_at, attachments, priority, key, spec)

    return open_call


def _unary(open_call: Opener, invoker: Invoker) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        return (await invoker(open_call(args, kwargs, monotonic()))).value

    return call


def _stream(open_call: Opener, invoker: Invoker) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Stream:
        return Stream(invoker, open_call(args, kwargs, monotonic()))

    return call


class Stream(AsyncIterator[Any]):
    """The items of a server stream: ``async for item in ctr.explain(7)``, or ``await`` it first, as the contract's
    declaration asks for. The call starts with the first item; ``aclose`` (or leaving ``async with``) cancels it."""

    def __init__(self, invoker: Invoker, invocation: Invocation) -> None:
        self._invoker = invoker
        self._invocation = invocation
        self._items: AsyncIterator[Any] | None = None
        self._is_over = False

    async def __anext__(self) -> Any:
        if self._is_over:
            raise StopAsyncIteration
        try:
            if self._items is None:
                self._items = await self._open()
            return await anext(self._items)
        except BaseException:
            self._is_over = True
            raise

    async def _open(self) -> AsyncIterator[Any]:
        reply = await self._invoker(self._invocation)
        return reply.stream if reply.stream is not None else _given(reply.value)

    async def aclose(self) -> None:
        self._is_over = True
        close = getattr(self._items, "aclose", None)
        if close is not None:
            await close()

    def __await__(self) -> Generator[Any, None, Stream]:
        return self._itself().__await__()

    async def _itself(self) -> Stream:
        return self

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


async def _given(value: Any) -> AsyncIterator[Any]:
    """What a fallback gave in place of a stream."""
    if isinstance(value, AsyncIterator):
        async for item in value:
            yield item
    else:
        for item in value:
            yield item


def _dressed(call: Callable[..., Any], method: MethodSpec, spec: ServiceSpec) -> Callable[..., Any]:
    """Name, signature and docstring of the contract's method, so that help() and completion show the contract."""
    call.__name__ = method.name
    call.__qualname__ = f"{spec.name}.{method.name}"
    call.__doc__ = f"{method.name} of {spec.key}, wherever it is served."
    declared = getattr(spec.contract, method.name, None)
    if declared is None:
        call.__signature__ = _signature(method)  # type: ignore[attr-defined]
        return call
    call.__module__ = declared.__module__
    call.__doc__ = inspect.getdoc(declared) or call.__doc__
    signature = inspect.signature(declared)
    own = list(signature.parameters.values())[1:]  # without self, however it is called
    call.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined]
    return call


def _signature(method: MethodSpec) -> inspect.Signature:
    """Of a method without a contract: what its spec says."""
    positional, keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    return inspect.Signature(
        [
            inspect.Parameter(
                each.name,
                keyword if each.is_keyword_only else positional,
                default=inspect.Parameter.empty if each.is_required else each.default,
                annotation=inspect.Parameter.empty if each.annotation is Any else each.annotation,
            )
            for each in method.parameters
        ]
    )

"""``@service`` and ``@method``: they note what was declared and hand back the very same class and function.

Nothing is wrapped: a decorated class stays itself for type checkers, subclasses and tests, and calling a method on an
instance costs what it cost before. What was noted is read later (``contract``), when annotations that point
forward can be resolved; only the settings themselves are checked here, where the traceback shows the line at fault.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, Final, TypeVar, overload

from steelyard.errors import ConfigError, ContractError
from steelyard.model import Batch
from steelyard.setting import LONGEST_S, near

# The prefix is not decoration: typing.Protocol leaves ``_abc_*`` out when it collects a protocol's members, and any
# other name would make ``isinstance(implementation, Contract)`` false for a runtime_checkable contract (Python 3.11).
DECLARED = "_abc_steelyard_service"
SETTINGS = "_steelyard_method"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.$-]*")
_VERSION = re.compile(r"[A-Za-z0-9_.+-]*")
_PRIORITIES = range(0, 256)

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])


class LastGoodReply(Enum):
    """The type of LAST_GOOD_REPLY."""

    LAST_GOOD_REPLY = "the last good reply"

    def __repr__(self) -> str:
        return "LAST_GOOD_REPLY"


LAST_GOOD_REPLY: Final = LastGoodReply.LAST_GOOD_REPLY
"""As a fallback: the newest good reply to the same arguments, if there was one."""


class _NoFallback(Enum):
    NO_FALLBACK = "no fallback"

    def __repr__(self) -> str:
        return "no fallback"


_NO_FALLBACK: Final = _NoFallback.NO_FALLBACK


@dataclass(frozen=True, slots=True)
class Declared:
    """What ``@service`` noted on a class."""

    name: str
    version: str
    group: str


@dataclass(frozen=True, slots=True)
class Settings:
    """What ``@method`` noted on a function."""

    timeout_s: float | None = None
    idempotent: bool = False
    hash_key: str | None = None
    priority: int = 1
    has_fallback: bool = False
    fallback: Any = None
    raises: tuple[type[Exception], ...] = ()
    batch: Batch | None = None
    compress: str = ""


@overload
def service(name: C, /) -> C: ...
@overload
def service(name: str | None = None, /, *, version: str = "", group: str = "") -> Callable[[C], C]: ...
def service(name: Any = None, /, *, version: str = "", group: str = "") -> Any:
    """Declares a class as a service: ``@service("ads.Ctr", version="1.0.0")`` or plain ``@service``.

    The class may be the implementation itself, an abstract class, or a ``typing.Protocol``. Without a name the service
    is called after the class, ``module.Qualified.Name``; name it when consumers and providers import it from different
    places (a script's module is ``__main__``). Version and group are Dubbo's: both are part of the service's key.
    Raises ConfigError for a name, version or group that a service key cannot hold, and ContractError on what is not a
    class.
    """
    if isinstance(name, type):
        return _declare(name, None, "", "")
    if callable(name):
        raise ContractError(f"@service goes on a class, not on {name!r}")

    def decorate(contract: C) -> C:
        return _declare(contract, name, version, group)

    return decorate


@overload
def method(function: F, /) -> F: ...
@overload
def method(
    *,
    timeout_s: float | None = None,
    idempotent: bool = False,
    hash_key: str | None = None,
    priority: int = 1,
    fallback: Any = _NO_FALLBACK,
    raises: type[Exception] | tuple[type[Exception], ...] = (),
    batch: Batch | None = None,
    compress: str | None = None,
) -> Callable[[F], F]: ...
def method(
    function: Callable[..., Any] | None = None,
    /,
    *,
    timeout_s: float | None = None,
    idempotent: bool = False,
    hash_key: str | None = None,
    priority: int = 1,
    fallback: Any = _NO_FALLBACK,
    raises: type[Exception] | tuple[type[Exception], ...] = (),
    batch: Batch | None = None,
    compress: str | None = None,
    **unknown: Any,
) -> Callable[..., Any]:
    """Exports a method; methods without it stay private to the class.

    * ``timeout_s``: default deadline in seconds, greater than 0; None leaves it to the consumer.
    * ``idempotent``: the call may be sent again although it may have run.
    * ``hash_key``: the parameter whose value keeps calls on one node (least diversion over consistent hashing).
    * ``priority``: 0 to 255; 0 is degraded last.
    * ``fallback``: what answers when the cluster cannot: a value (None is one), a function that is called with the
      call's arguments, or LAST_GOOD_REPLY.
    * ``raises``: exception classes that arrive at the caller as themselves.
    * ``batch``: the implementation takes many calls at once: arrays stacked on axis 0, other arguments as lists, and
      results likewise. Callers see one call each. It may stand on the contract, or on the implementing method alone.
    * ``compress``: bodies from 1 KiB on travel compressed where both ends can: "zstd" (small: text, JSON-like values),
      or "lz4" (quick); plain gRPC clients get gzip, gRPC's own. Numbers that look like noise gain nothing.

    Raises ConfigError naming the setting, its range and the bad value, and ContractError on what is no method with a
    self and on a hash key that is not one of its parameters.
    """
    for name in unknown:
        raise TypeError(f"method() got an unexpected keyword argument {name!r}{near(name, _SETTINGS)}")
    settings = Settings(
        timeout_s=_checked_timeout_s(timeout_s),
        idempotent=_checked(idempotent, isinstance(idempotent, bool), "idempotent", "True or False"),
        hash_key=_checked(
            hash_key,
            hash_key is None or (isinstance(hash_key, str) and hash_key.isidentifier()),
            "hash_key",
            "the name of a parameter, or None",
        ),
        priority=_checked(
            priority,
            isinstance(priority, int) and not isinstance(priority, bool) and priority in _PRIORITIES,
            "priority",
            f"a whole number from {_PRIORITIES[0]} to {_PRIORITIES[-1]}",
        ),
        has_fallback=fallback is not _NO_FALLBACK,
        fallback=None if fallback is _NO_FALLBACK else fallback,
        raises=_checked_raises(raises),
        batch=_checked_batch(batch),
        compress=_checked(compress, compress in (None, "zstd", "lz4"), "compress", "'zstd', 'lz4' or None") or "",
    )

    def decorate(function: F) -> F:
        if not inspect.isfunction(function):
            raise ContractError(
                f"@method goes on a function that takes self, not on {function!r}; "
                "a static or class method cannot be exported"
            )
        _check_parameters(function, settings.hash_key)
        setattr(function, SETTINGS, settings)
        return function

    return decorate if function is None else decorate(function)


_SETTINGS = tuple(field.name for field in fields(Settings) if field.name != "has_fallback")
# Without ``unknown``, which is there for a better message only.
_taken = inspect.signature(method)
method.__signature__ = _taken.replace(  # type: ignore[attr-defined]
    parameters=[each for each in _taken.parameters.values() if each.name != "unknown"]
)


def _check_parameters(function: Callable[..., Any], hash_key: str | None) -> None:
    """What is told here is told with the line at fault; annotations are not looked into, they may point forward."""
    where = f"{function.__module__}.{function.__qualname__}"
    declared = list(inspect.signature(function).parameters.values())
    first = declared[0] if declared else None
    # Any name may stand for self; but what has an annotation of its own, or a default, is an argument.
    is_self = first is not None and (first.name == "self" or (first.annotation is first.default is first.empty))
    if not is_self or (first is not None and first.kind is first.KEYWORD_ONLY):
        raise ContractError(f"{where}{inspect.signature(function)}: a method takes self as its first parameter")
    names = [each.name for each in declared[1:]]
    if hash_key is not None and hash_key not in names:
        listed = (", ".join(names) or "none") + near(hash_key, names)
        raise ContractError(f"{where}: hash_key {hash_key!r} is not one of its parameters: {listed}")


def _declare(contract: C, name: str | None, version: str, group: str) -> C:
    if not isinstance(contract, type):
        raise ContractError(f"@service goes on a class, not on {contract!r}")
    if name is None:
        name = f"{contract.__module__}.{contract.__qualname__}".replace(".<locals>", "")
    for field, value, pattern, wanted in (
        ("name", name, _NAME, "a name of letters, digits and _ . $ - that starts with a letter or _"),
        ("version", version, _VERSION, "letters, digits and _ . + - (or empty)"),
        ("group", group, _VERSION, "letters, digits and _ . + - (or empty)"),
    ):
        _checked(value, isinstance(value, str) and pattern.fullmatch(value) is not None, field, wanted, "@service")
    setattr(contract, DECLARED, Declared(name, version, group))
    return contract


def _checked(value: Any, is_good: bool, field: str, wanted: str, where: str = "@method") -> Any:
    if not is_good:
        raise ConfigError(f"{where}: {field} must be {wanted}, not {value!r}")
    return value


def _checked_timeout_s(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_good = value is None or (is_number and 0 < value <= LONGEST_S)
    _checked(value, is_good, "timeout_s", "a number of seconds greater than 0, or None")
    return None if value is None else float(value)


def _checked_raises(value: Any) -> tuple[type[Exception], ...]:
    classes = value if isinstance(value, tuple | list) else (value,)
    is_good = all(isinstance(each, type) and issubclass(each, Exception) for each in classes)
    _checked(value, is_good, "raises", "an exception class or a tuple of them")
    return tuple(dict.fromkeys(classes))


def _checked_batch(value: Any) -> Batch | None:
    _checked(value, value is None or isinstance(value, Batch), "batch", "a Batch, or None")
    if value is None:
        return None
    for field, low, high in (("max_size", 1, 65_536), ("at_once", 1, 1024)):
        number = getattr(value, field)
        is_whole = isinstance(number, int) and not isinstance(number, bool)
        _checked(number, is_whole and low <= number <= high, f"batch.{field}", f"a whole number from {low} to {high}")
    wait_s = value.max_wait_s
    is_number = isinstance(wait_s, int | float) and not isinstance(wait_s, bool)
    _checked(wait_s, is_number and 0 <= wait_s <= 10, "batch.max_wait_s", "0 to 10 seconds")
    _checked(value.ragged, value.ragged in ("reject", "split"), "batch.ragged", "'reject' or 'split'")
    return Batch(max_size=value.max_size, max_wait_s=float(wait_s), at_once=value.at_once, ragged=value.ragged)

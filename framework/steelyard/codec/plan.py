"""From an annotation to the function that turns what came over the wire into it, or says why it is not it.

Made once for each parameter, because looking at an annotation is slow and looking at a value is not. msgspec does the
rebuilding (dataclasses, TypedDicts, structs, enums, containers; strictly: no text for a number, no bool for an int);
here is what it has no notion of: numpy, complex numbers, enums of other values, unions it finds too mixed, and
messages for people.
"""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import msgspec

from steelyard.errors import ContractError
from steelyard.model import unaliased

from .mismatch import Mismatch, plainly, type_name
from .wire import is_carried_by_value

Convert = Callable[[Any], Any]

SCALARS: frozenset[type] = frozenset({int, float, str, bytes, bool, type(None)})
"""Types whose values are what they are on the wire: checked by exact type, which is the fast way."""

# These travel as themselves, so text in their place is a wrong type and not another spelling.
_NATIVE = (bytes, bytearray, datetime, date, time, timedelta, UUID, Decimal)


def compile_plan(annotation: Any, where: str) -> Convert | None:
    """The function that converts or raises Mismatch; None when every value is welcome.
    Raises ContractError, which *where* begins, for a type that cannot be carried."""
    annotation = unaliased(annotation)
    if annotation is Any or annotation is object or isinstance(annotation, typing.TypeVar):
        return None
    if annotation is None:
        annotation = type(None)
    if annotation in (int, float, str, bytes, bool, type(None)):
        return _scalar(annotation)
    own = _own_type(annotation)
    if own is not None:
        return own
    reason = _refusal(annotation)
    return _checked_msgspec(annotation, where) if reason is None else _mixed(annotation, where, reason)


def _refusal(annotation: Any) -> str | None:
    """Why msgspec cannot rebuild *annotation*; None when it can."""
    try:
        msgspec.msgpack.Decoder(annotation)
    except Exception as error:  # TypeError as a rule; NotImplementedError for enums beyond 64 bits; NameError inside
        return str(error).replace("`", "")
    return None


def _checked_msgspec(annotation: Any, where: str) -> Convert:
    reason = _refusal(annotation)
    if reason is not None:
        raise ContractError(f"{where} cannot be carried: {reason}")
    strange = _strange_types(annotation)
    if strange:
        names = ", ".join(sorted(type_name(each) for each in strange))
        raise ContractError(f"{where} cannot be carried: {names} has no form on the wire")
    return _by_msgspec(annotation)


def _scalar(kind: type) -> Convert:
    name = type_name(kind)

    def convert(value: Any) -> Any:
        if type(value) is kind:
            return value
        if kind is float and type(value) is int:
            return _floating(value)
        plain = _without_numpy(value)
        if plain is value:
            raise Mismatch(f"expected {name}, got {type_name(type(value))}")
        if kind is float and type(plain) is int:
            return _floating(plain)
        if type(plain) is kind:
            return plain
        raise Mismatch(f"expected {name}, got {type_name(type(value))}")

    return convert


def _floating(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        raise Mismatch("expected float, got an int beyond its range") from None


def _own_type(annotation: Any) -> Convert | None:
    """The plan of a type that msgspec has no notion of; None for all others."""
    annotation = unaliased(annotation)
    origin = typing.get_origin(annotation) or annotation
    if origin is complex:
        return _complex
    if isinstance(origin, type) and issubclass(origin, Enum) and not is_carried_by_value(origin):
        return _enum_by_name(origin)
    if "numpy" in sys.modules:
        from .array_plan import array_plan

        return array_plan(annotation)
    return None


def _complex(value: Any) -> complex:
    plain = _without_numpy(value)
    if type(plain) in (complex, float, int):
        try:
            return complex(plain)
        except OverflowError:
            raise Mismatch("expected complex, got an int beyond its range") from None
    raise Mismatch(f"expected complex, got {type_name(type(value))}")


def _enum_by_name(kind: type[Enum]) -> Convert:
    def convert(value: Any) -> Enum:
        if type(value) is not str or value not in kind.__members__:
            came = repr(value) if type(value) is str else type_name(type(value))
            raise Mismatch(f"expected the name of a {type_name(kind)}, got {came}")
        return kind[value]

    return convert


def _by_msgspec(annotation: Any) -> Convert:
    def once(value: Any) -> Any:
        return msgspec.convert(value, annotation, builtin_types=_NATIVE, dec_hook=_hook)

    def convert(value: Any) -> Any:
        try:
            return once(value)
        except msgspec.ValidationError as error:
            # A list of numpy scalars where a list of floats is asked for: found out only when it fails.
            plain = _without_numpy(value)
            if plain is value:
                raise Mismatch(plainly(str(error))) from None
        try:
            return once(plain)
        except msgspec.ValidationError as error:
            raise Mismatch(plainly(str(error))) from None

    return convert


def _hook(annotation: Any, value: Any) -> Any:
    """msgspec asks us about the types it does not know. What it makes of the error keeps the path to the value."""
    if annotation is object:
        return value
    plan = _own_type(annotation)
    if plan is None:
        raise NotImplementedError(f"{annotation!r} cannot be carried")
    try:
        return plan(value)
    except Mismatch as error:
        raise ValueError(str(error)) from None  # msgspec makes a ValidationError of it, with the path


def _strange_types(annotation: Any) -> set[type]:
    """The types inside *annotation* that neither msgspec nor we can rebuild."""
    waiting: list[Any] = [msgspec.inspect.type_info(annotation)]
    strange: set[type] = set()
    seen: set[int] = set()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, msgspec.inspect.CustomType):
            if node.cls is not object and _own_type(node.cls) is None:
                strange.add(node.cls)
        elif isinstance(node, msgspec.inspect.Type | msgspec.inspect.Field):
            waiting.extend(getattr(node, name) for name in node.__struct_fields__)
        elif isinstance(node, tuple):
            waiting.extend(node)
    return strange


def _mixed(annotation: Any, where: str, reason: str) -> Convert:
    """A container or union that msgspec refuses as a whole, taken apart; ContractError when that does not help."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return compile_plan(arguments[0], where) or _as_is
    if origin in (typing.Union, types.UnionType):
        return _union(arguments, where, reason)
    if origin in (list, dict) and arguments:
        inner = [compile_plan(each, where) or _as_is for each in arguments]
        return _list_of(inner[0]) if origin is list else _dict_of(inner[0], inner[1])
    raise ContractError(f"{where} cannot be carried: {reason}")


def _union(members: tuple[Any, ...], where: str, reason: str) -> Convert:
    """Members that are told apart by their type on the wire: our own types by trial, several records by their keys, and
    the rest as one union of msgspec's."""
    records = {each: keys for each in members if (keys := _record_keys(each)) is not None}
    if len(set(records.values())) < len(records):
        raise ContractError(
            f"{where} cannot be carried: two members of a union have the same fields; "
            "tell them apart with a tag (msgspec.Struct with tag=True)"
        )
    own = [plan for each in members if (plan := _own_type(each)) is not None]
    rest = [each for each in members if each not in records and _own_type(each) is None]
    if not own and len(records) < 2:
        raise ContractError(f"{where} cannot be carried: {reason}")
    # With one record beside it, msgspec says whether the rest can be told from records.
    rest_plan = _checked_msgspec(typing.Union[(*rest, *list(records)[:1])], where) if rest else None
    by_keys = {keys: compile_plan(each, where) or _as_is for each, keys in records.items()}
    names = " or ".join(getattr(each, "__name__", str(each)) for each in members)

    def convert(value: Any) -> Any:
        if type(value) is dict and by_keys:
            fits = by_keys.get(frozenset(key for key in value if type(key) is str))
            return _first((fits, *by_keys.values()) if fits else tuple(by_keys.values()), value, names)
        plans = (*own, rest_plan) if rest_plan else tuple(own)
        # A whole number is one before it is a complex number or a float32, where both would take it.
        return _first(plans if _is_own_value(value) else plans[::-1], value, names)

    return convert


def _is_own_value(value: Any) -> bool:
    return type(value) is complex or type(value).__module__ == "numpy"


def _first(plans: tuple[Convert, ...], value: Any, names: str) -> Any:
    for plan in plans:
        try:
            return plan(value)
        except Mismatch:
            continue
    raise Mismatch(f"expected {names}, got {type_name(type(value))}")


def _record_keys(annotation: Any) -> frozenset[str] | None:
    """The keys with which a record travels; None for what is no record, or one that a tag tells apart."""
    if not isinstance(annotation, type):
        return None
    if issubclass(annotation, msgspec.Struct):
        config = annotation.__struct_config__
        is_plain = config.tag is None and not config.array_like
        return frozenset(annotation.__struct_encode_fields__) if is_plain else None
    if dataclasses.is_dataclass(annotation):
        return frozenset(field.name for field in dataclasses.fields(annotation))
    if typing.is_typeddict(annotation):
        return frozenset(annotation.__annotations__)
    return None


def _list_of(item: Convert) -> Convert:
    def convert(value: Any) -> Any:
        if type(value) is not list:
            raise Mismatch(f"expected list, got {type_name(type(value))}")
        return [_at(item, each, f"[{index}]") for index, each in enumerate(value)]

    return convert


def _dict_of(key: Convert, item: Convert) -> Convert:
    def convert(value: Any) -> Any:
        if type(value) is not dict:
            raise Mismatch(f"expected map, got {type_name(type(value))}")
        return {_at(key, name, "[key]"): _at(item, each, "[...]") for name, each in value.items()}

    return convert


def _at(plan: Convert, value: Any, place: str) -> Any:
    try:
        return plan(value)
    except Mismatch as error:
        raise Mismatch(f"{error} (at {place})") from None


def _as_is(value: Any) -> Any:
    return value


def _without_numpy(value: Any) -> Any:
    """*value* with numpy's scalars made Python's; the very same object when there are none."""
    if "numpy" not in sys.modules:
        return value
    from .array_plan import without_numpy

    return without_numpy(value)

"""From a function of a contract to what a call of it takes and gives.

Annotations are resolved here and nowhere else. Whether a method is unary or a server stream is read from its return
annotation and not from its code, because an abstract ``async def explain(self) -> AsyncIterator[str]: ...`` has no
``yield`` to tell by.
"""

from __future__ import annotations

import builtins
import collections.abc
import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from steelyard.errors import ContractError
from steelyard.model import CallShape, Codec, Parameter, unaliased

_ASYNC_STREAMS = (
    collections.abc.AsyncIterator,
    collections.abc.AsyncIterable,
    collections.abc.AsyncGenerator,
)
_SYNC_STREAMS = (collections.abc.Iterator, collections.abc.Generator)
_AWAITABLES = (collections.abc.Awaitable, collections.abc.Coroutine)


@dataclass(frozen=True, slots=True)
class CallSignature:
    """What a call takes and gives. ``is_async`` is True for what must be awaited or iterated asynchronously.
    ``stream_at`` is the place of the parameter that is a stream, ``items`` the type of its items."""

    parameters: tuple[Parameter, ...]
    returns: Any
    shape: CallShape
    is_async: bool
    stream_at: int | None = None
    items: Any = Any


def read_signature(function: Callable[..., Any], where: str, owner: type | None = None) -> CallSignature:
    """The call signature of a contract's *function*, without its self. *where* names it in errors; *owner* is the class
    whose names annotations may use. Raises ContractError."""
    hints = resolve_hints(function, where, owner)
    parameters = _parameters(function, where, hints)
    returns, shape, is_async = _result(function, where, hints.get("return", Any))
    at = _stream_at(parameters, where)
    if at is None:
        return CallSignature(parameters, returns, shape, is_async)
    if not is_async:
        raise ContractError(f"{where}: a method that takes a stream is asynchronous: async def, or AsyncIterator")
    arguments = typing.get_args(unaliased(parameters[at].annotation))
    shape = CallShape.BIDIRECTIONAL if shape is CallShape.SERVER_STREAM else CallShape.CLIENT_STREAM
    return CallSignature(parameters, returns, shape, is_async, at, arguments[0] if arguments else Any)


def resolve_hints(function: Callable[..., Any], where: str, owner: type | None = None) -> dict[str, Any]:
    """The annotations of *function*, resolved. Raises ContractError naming the one that cannot be."""
    function = inspect.unwrap(function)
    # A class's own names come last: a method called ``list`` must not hide the list type.
    names = {} if owner is None else {owner.__name__: owner, **vars(owner)}
    names = {name: value for name, value in names.items() if not hasattr(builtins, name)}
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception:  # whatever evaluating somebody's annotation raises; the next try says which it was
        return {
            name: _resolved(name, annotation, function, where, names)
            for name, annotation in getattr(function, "__annotations__", {}).items()
        }


def _resolved(name: str, annotation: Any, function: Callable[..., Any], where: str, names: Mapping[str, Any]) -> Any:
    scope = getattr(function, "__globals__", {})
    holder = type("Annotation", (), {"__annotations__": {"it": annotation}})
    try:
        return typing.get_type_hints(holder, {**names, **scope}, None, include_extras=True)["it"]
    except Exception as error:
        what = "the return annotation" if name == "return" else f"the annotation of {name!r}"
        text = annotation if isinstance(annotation, str) else repr(annotation)
        raise ContractError(
            f"{where}: {what}, {text!r}, cannot be resolved ({error}); it has to be importable at run time "
            "in the module that declares the method"
        ) from error


def _parameters(function: Callable[..., Any], where: str, hints: Mapping[str, Any]) -> tuple[Parameter, ...]:
    declared = list(inspect.signature(function).parameters.values())
    if not declared or declared[0].kind is inspect.Parameter.KEYWORD_ONLY:
        raise ContractError(f"{where}{inspect.signature(function)}: a method takes self as its first parameter")
    parameters = []
    for each in declared[1:]:
        if each.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            stars = "*" if each.kind is inspect.Parameter.VAR_POSITIONAL else "**"
            raise ContractError(f"{where}: {stars}{each.name} cannot be part of a contract; name every parameter")
        if each.kind is inspect.Parameter.POSITIONAL_ONLY:
            raise ContractError(f"{where}: {each.name!r} is positional-only; a contract's parameters have names")
        annotation = hints.get(each.name, Any)
        if _origin(annotation) in _SYNC_STREAMS:
            raise ContractError(f"{where}: {each.name!r} is a blocking stream; a parameter can be an AsyncIterator")
        has_default = each.default is not inspect.Parameter.empty
        is_keyword_only = each.kind is inspect.Parameter.KEYWORD_ONLY
        facts: dict[str, Any] = {"default": each.default} if has_default else {}
        parameters.append(Parameter(each.name, annotation, is_keyword_only=is_keyword_only, **facts))
    return tuple(parameters)


def _stream_at(parameters: tuple[Parameter, ...], where: str) -> int | None:
    """The place of the parameter that is a stream."""
    streams = [at for at, each in enumerate(parameters) if _origin(each.annotation) in _ASYNC_STREAMS]
    if not streams:
        return None
    if len(streams) > 1:
        names = " and ".join(repr(parameters[at].name) for at in streams)
        raise ContractError(f"{where}: {names} are streams; a call can take one")
    if not parameters[streams[0]].is_required:
        raise ContractError(f"{where}: {parameters[streams[0]].name!r} is a stream and cannot have a default")
    return streams[0]


def _result(function: Callable[..., Any], where: str, annotation: Any) -> tuple[Any, CallShape, bool]:
    """The return type (of one item, for a stream), the shape, and whether it is asynchronous."""
    code = inspect.unwrap(function)
    is_coroutine = inspect.iscoroutinefunction(code)
    annotation = unaliased(annotation)
    origin = _origin(annotation)
    if not is_coroutine and origin in _AWAITABLES:
        arguments = typing.get_args(annotation)
        annotation, is_coroutine = unaliased(arguments[-1] if arguments else Any), True
        origin = _origin(annotation)
    if origin in _ASYNC_STREAMS or origin in _SYNC_STREAMS:
        arguments = typing.get_args(annotation)
        is_async = origin in _ASYNC_STREAMS or is_coroutine
        return (arguments[0] if arguments else Any), CallShape.SERVER_STREAM, is_async
    is_async_generator = inspect.isasyncgenfunction(code)
    if is_async_generator or inspect.isgeneratorfunction(code):
        if annotation is not Any:
            raise ContractError(f"{where}: it yields, so it returns AsyncIterator or Iterator, not {annotation!r}")
        return Any, CallShape.SERVER_STREAM, is_async_generator
    return annotation, CallShape.UNARY, is_coroutine


def _origin(annotation: Any) -> Any:
    annotation = unaliased(annotation)
    return typing.get_origin(annotation) or annotation


def choose_codec(parameters: tuple[Parameter, ...], returns: Any, where: str) -> Codec:
    """PROTOBUF for exactly one message in and one message type out. Raises ContractError for a mixture."""
    takes_messages = [_is_message(_item_type(parameter.annotation)) for parameter in parameters]
    if not any(takes_messages) and not _is_message(returns):
        return Codec.MSGPACK
    if takes_messages == [True] and _is_message(returns):
        return Codec.PROTOBUF
    raise ContractError(
        f"{where}: a method with protobuf messages takes exactly one message and returns one message type "
        "(or a stream of one); it cannot mix them with other values"
    )


def _item_type(annotation: Any) -> Any:
    """Of a stream; any other annotation is itself."""
    if _origin(annotation) not in _ASYNC_STREAMS:
        return annotation
    arguments = typing.get_args(unaliased(annotation))
    return arguments[0] if arguments else Any


def _is_message(annotation: Any) -> bool:
    # By its shape and not by isinstance: protobuf stays unloaded unless the contract itself has loaded it.
    return isinstance(annotation, type) and all(
        hasattr(annotation, name) for name in ("DESCRIPTOR", "SerializeToString", "FromString")
    )

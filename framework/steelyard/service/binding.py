"""Matches an implementation with its contract, before the first call and not in it.

What is compared is what a call depends on: that the method is there and is code, its parameters by name, order and
kind, stream against unary, and the types where both sides give them. Sync against async is not compared: the
provider runs either.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from steelyard.errors import ContractError
from steelyard.model import Batch, CallShape, MethodSpec, Parameter, ServiceSpec

from .assignable import is_assignable
from .batched import batch_of, batched_difference
from .signature import CallSignature, read_signature


@dataclass(frozen=True, slots=True)
class BoundMethod:
    """A method that can be called: ``function(*args)``, arguments in the contract's order, keyword-only ones too.

    ``is_async``: the result is awaited; a stream is iterated with ``async for`` (awaited first when it is a coroutine).
    ``is_stream``: the result is iterated. ``batch``: the function takes many calls at once, arrays stacked and other
    arguments as lists, and its result has one entry for each.
    """

    spec: MethodSpec
    function: Callable[..., Any]
    is_async: bool
    is_stream: bool
    batch: Batch | None = None


def bind(spec: ServiceSpec, implementation: object) -> Mapping[str, BoundMethod]:
    """The methods of *implementation* that fulfil *spec*, by name. Raises ContractError, for the first method that is
    missing or does not match, naming both signatures."""
    return MappingProxyType({name: _bind(spec, method, implementation) for name, method in spec.methods.items()})


def _bind(service: ServiceSpec, spec: MethodSpec, implementation: object) -> BoundMethod:
    kind = type(implementation)
    declared = f"{service.name}.{spec.name}{_declared_signature(service, spec)}"
    function = getattr(implementation, spec.name, None)
    if not callable(function) or _is_only_declared(service, spec.name, kind):
        raise ContractError(f"{kind.__qualname__} has no method {spec.name!r}; the contract asks for {declared}")
    signature = _signature(function, f"{kind.__qualname__}.{spec.name}")
    is_stream = spec.shape.gives_stream
    batch = batch_of(spec, function)
    if batch is None:
        reason = _difference(spec, function, signature)
    else:
        is_own = service.contract is not None and getattr(service.contract, spec.name, None) is getattr(
            function, "__func__", None
        )
        reason = _parameter_difference(spec, function) or batched_difference(spec, signature, is_own=is_own)
    if reason is not None:
        own = f"{kind.__qualname__}.{spec.name}{_text(function)}"
        raise ContractError(f"{reason}: {own} does not fulfil {declared}")
    is_async = _is_async(spec, function, signature)
    if spec.shape.takes_stream and not is_async:
        own = f"{kind.__qualname__}.{spec.name}{_text(function)}"
        raise ContractError(f"it takes a stream and so has to be asynchronous: {own} does not fulfil {declared}")
    return BoundMethod(spec, _positional(spec, function), is_async, is_stream, batch)


def _is_only_declared(service: ServiceSpec, name: str, kind: type) -> bool:
    """Whether the method found is the contract's own and has no code: abstract, or the ``...`` of a Protocol."""
    found = inspect.getattr_static(kind, name, None)
    if getattr(found, "__isabstractmethod__", False):
        return True
    contract = service.contract
    if contract is None or kind is contract:
        return False
    owners = [owner for owner in kind.__mro__ if name in vars(owner)]
    return bool(owners) and getattr(owners[0], "_is_protocol", False) is True


def _signature(function: Callable[..., Any], where: str) -> CallSignature | None:
    """What the implementation says about itself; None when it cannot say it in a contract's terms (``*args`` of a
    decorator, annotations only a type checker can see): then only the shape of its code is compared."""
    own = getattr(function, "__func__", None)
    if own is None or not inspect.isfunction(inspect.unwrap(own)):
        return None
    try:
        return read_signature(own, where)
    except ContractError:
        return None


def _difference(spec: MethodSpec, function: Callable[..., Any], signature: CallSignature | None) -> str | None:
    """The first reason why *function* cannot serve *spec*, or None."""
    reason = _parameter_difference(spec, function)
    if reason is not None:
        return reason
    if signature is None:
        return None
    if signature.shape is not spec.shape and not _says_nothing(function, signature):
        return f"it is {_shape(signature.shape)} and the contract's is {_shape(spec.shape)}"
    own = {parameter.name: parameter.annotation for parameter in signature.parameters}
    for parameter in spec.parameters:
        annotation = own.get(parameter.name, Any)
        if not is_assignable(parameter.annotation, annotation):
            return f"the types of {parameter.name!r} differ"
    if signature.shape is spec.shape and not is_assignable(signature.returns, spec.returns):
        return "the types of the result differ"
    return None


def _parameter_difference(spec: MethodSpec, function: Callable[..., Any]) -> str | None:
    try:
        own = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a builtin that does not tell its parameters
        return None
    positional = [each for each in own if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    by_keyword = {each.name: each for each in own if each.kind in (each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD)}
    takes_more = any(each.kind is each.VAR_POSITIONAL for each in own)
    takes_names = any(each.kind is each.VAR_KEYWORD for each in own)
    served = set()
    for at, wanted in enumerate(spec.parameters):
        if wanted.is_keyword_only:
            found = by_keyword.get(wanted.name)
            is_missing = found is None and not takes_names
        else:
            found = positional[at] if at < len(positional) else None
            is_missing = found is None and not takes_more
        if is_missing:
            return f"it does not take {wanted.name!r}"
        if found is not None:
            served.add(found.name)
            reason = _mismatch(wanted, found)
            if reason is not None:
                return reason
    for each in own:
        is_required = each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        if is_required and each.name not in served:
            return f"it requires {each.name!r}, which the contract does not give"
    return None


def _mismatch(wanted: Parameter, found: inspect.Parameter) -> str | None:
    if found.name != wanted.name:
        return f"it has {found.name!r} where the contract has {wanted.name!r}"
    if not wanted.is_required and found.default is found.empty:
        return f"it requires {found.name!r}, which has a default in the contract"
    return None


def _says_nothing(function: Callable[..., Any], signature: CallSignature) -> bool:
    """A plain function without a return annotation may well return an iterator or an awaitable."""
    return not signature.is_async and signature.returns is Any and not inspect.isgeneratorfunction(function)


def _is_async(spec: MethodSpec, function: Callable[..., Any], signature: CallSignature | None) -> bool:
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return True
    if inspect.isgeneratorfunction(function):
        return False
    if signature is not None and not _says_nothing(function, signature):
        return signature.is_async
    # A plain function that does not tell: a stream is what the contract says it is, a unary call is plain code.
    return spec.is_async and spec.shape.gives_stream


def _positional(spec: MethodSpec, function: Callable[..., Any]) -> Callable[..., Any]:
    """*function* with every argument taken by position; itself when it has no keyword-only parameters."""
    names = tuple(parameter.name for parameter in spec.parameters if parameter.is_keyword_only)
    if not names:
        return function
    count = len(spec.parameters) - len(names)

    def call(*args: Any) -> Any:
        return function(*args[:count], **dict(zip(names, args[count:], strict=True)))

    return call


def _declared_signature(service: ServiceSpec, spec: MethodSpec) -> str:
    function = getattr(service.contract, spec.name, None)
    if function is None:
        return f"({', '.join(parameter.name for parameter in spec.parameters)})"
    own = list(inspect.signature(function).parameters.values())
    return str(inspect.signature(function).replace(parameters=own[1:]))


def _text(function: Callable[..., Any]) -> str:
    try:
        return str(inspect.signature(function))
    except (TypeError, ValueError):
        return "(...)"


_SHAPES = {
    CallShape.UNARY: "unary",
    CallShape.SERVER_STREAM: "a stream",
    CallShape.CLIENT_STREAM: "unary and takes a stream",
    CallShape.BIDIRECTIONAL: "a stream and takes one",
}


def _shape(shape: CallShape) -> str:
    return _SHAPES[shape]

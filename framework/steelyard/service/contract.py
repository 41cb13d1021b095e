"""From a decorated class to its ServiceSpec, and from an object to the contract it implements.

A spec is made at first use, not at decoration, so that annotations may point forward; it is kept on the class itself,
so it lives and dies with the class and two tests cannot meet in it.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

from steelyard.errors import ContractError
from steelyard.model import CallShape, MethodSpec, ServiceSpec

from .declare import DECLARED, LAST_GOOD_REPLY, SETTINGS, Declared, Settings
from .fallback import fallback_call
from .signature import choose_codec, read_signature

_SPEC = "_abc_steelyard_spec"  # see DECLARED for the prefix


def service_spec(contract: type) -> ServiceSpec:
    """The spec of a class that is declared with ``@service``, or of the nearest such class it inherits from.

    Raises ContractError when there is none or more than one, when it exports no method, and for every method that
    cannot be part of a contract.
    """
    if not isinstance(contract, type):
        raise ContractError(f"a contract is a class, not {contract!r}")
    declared = _declared_class(contract)
    spec: ServiceSpec | None = vars(declared).get(_SPEC)
    if spec is None:
        spec = _read(declared)
        setattr(declared, _SPEC, spec)
    return spec


def implemented_spec(implementation: object) -> ServiceSpec:
    """The spec of the contract that an object implements: its own class when that is declared, otherwise the nearest
    declared class it inherits from. An object that fulfils a contract without inheriting from it has to be
    exported with the contract named. Raises ContractError."""
    if isinstance(implementation, type):
        raise ContractError(f"{implementation.__qualname__} is a class; an instance of it can be exported")
    return service_spec(type(implementation))


def _declared_class(contract: type) -> type:
    declared = [each for each in contract.__mro__ if DECLARED in vars(each)]
    if not declared:
        raise ContractError(
            f"{_name(contract)} is no service: neither it nor a class it inherits from is decorated with @service; "
            "inherit from the contract, or name it: export(it, contract=...)"
        )
    nearest = declared[0]
    # By the MRO and not by issubclass, which protocols refuse to answer.
    rivals = [each for each in declared[1:] if each not in nearest.__mro__]
    if rivals:
        names = " and ".join(_name(each) for each in (nearest, *rivals))
        raise ContractError(f"{_name(contract)} implements {names}; name the contract that is meant")
    return nearest


def _read(contract: type) -> ServiceSpec:
    declared: Declared = vars(contract)[DECLARED]
    exported = _exported(contract)
    if not exported:
        raise ContractError(f"{_name(contract)} exports no method; decorate those that should be with @method")
    methods = {name: _method_spec(declared, contract, name, *found) for name, found in exported.items()}
    return ServiceSpec(
        name=declared.name,
        version=declared.version,
        group=declared.group,
        methods=MappingProxyType(methods),
        contract=contract,
    )


def _exported(contract: type) -> dict[str, tuple[type, Callable[..., Any], Settings]]:
    """The exported methods by name, base classes first. A subclass that overrides an exported method without @method
    keeps the base's declaration: the contract is what was declared."""
    exported: dict[str, tuple[type, Callable[..., Any], Settings]] = {}
    for owner in reversed(contract.__mro__):
        for name, member in vars(owner).items():
            settings = getattr(member, SETTINGS, None)
            if isinstance(settings, Settings):
                exported[name] = (owner, member, settings)
    return exported


def _method_spec(
    declared: Declared, contract: type, name: str, owner: type, function: Callable[..., Any], settings: Settings
) -> MethodSpec:
    where = f"{_name(contract)}.{name}"
    if name.startswith("_"):  # a proxy has such names of its own
        raise ContractError(f"{where}: a name that starts with an underscore is private and cannot be exported")
    signature = read_signature(function, where, owner)
    if signature.stream_at is not None and settings.hash_key == signature.parameters[signature.stream_at].name:
        raise ContractError(f"{where}: hash_key {settings.hash_key!r} is a stream; take another parameter")
    if settings.has_fallback and callable(settings.fallback):
        fallback_call(settings.fallback, signature.parameters, where)
    if settings.fallback is LAST_GOOD_REPLY and signature.shape is not CallShape.UNARY:
        raise ContractError(f"{where}: a stream has no last good reply; give a function as its fallback")
    if settings.batch is not None and signature.shape is not CallShape.UNARY:
        raise ContractError(f"{where}: a stream cannot be batched; batch the calls of a unary method")
    return MethodSpec(
        name=name,
        parameters=signature.parameters,
        returns=signature.returns,
        shape=signature.shape,
        codec=choose_codec(signature.parameters, signature.returns, where),
        timeout_s=settings.timeout_s,
        is_idempotent=settings.idempotent,
        hash_key=settings.hash_key,
        priority=settings.priority,
        has_fallback=settings.has_fallback,
        fallback=settings.fallback,
        raises=settings.raises,
        is_async=signature.is_async,
        service=declared.name,
        batch=settings.batch,
        compress=settings.compress,
        stream_at=signature.stream_at,
        items=signature.items,
    )


def _name(contract: type) -> str:
    return f"{contract.__module__}.{contract.__qualname__}"

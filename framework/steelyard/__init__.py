"""Steelyard: RPC that sends each call to the right node of an unequal cluster.

    from steelyard import service, method, Provider, Consumer

Names are loaded when they are first used: a module that only declares a contract does not load gRPC or a registry
client.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

# At once and not when first used: ``service`` is the decorator here, and also the folder that it lives in.
# Importing the folder binds its name; this line, which runs once and first, binds the decorator over it.
from .service import LAST_GOOD_REPLY, method, service

if TYPE_CHECKING:
    from steelyard_registry import Hardware, Node

    from .consumer import BlockingConsumer, Consumer, with_options
    from .errors import (
        ConfigError,
        ContractError,
        DeadlineExceeded,
        Degraded,
        InvalidArgument,
        NoProvider,
        Overloaded,
        RegistryUnavailable,
        RemoteError,
        RpcError,
        Status,
        SteelyardError,
        Unavailable,
        Unimplemented,
    )
    from .invoke import Position, Stack, current_call
    from .model import Batch
    from .provider import Health, Provider, Warm
    from .security import Credentials

__version__ = "0.1.0"

_HOME = {
    "Batch": "steelyard.model",
    "BlockingConsumer": "steelyard.consumer",
    "ConfigError": "steelyard.errors",
    "Consumer": "steelyard.consumer",
    "ContractError": "steelyard.errors",
    "Credentials": "steelyard.security",
    "DeadlineExceeded": "steelyard.errors",
    "Degraded": "steelyard.errors",
    "Hardware": "steelyard_registry",
    "Health": "steelyard.provider",
    "InvalidArgument": "steelyard.errors",
    "NoProvider": "steelyard.errors",
    "Node": "steelyard_registry",
    "Overloaded": "steelyard.errors",
    "Position": "steelyard.invoke",
    "Provider": "steelyard.provider",
    "RegistryUnavailable": "steelyard.errors",
    "RemoteError": "steelyard.errors",
    "RpcError": "steelyard.errors",
    "Stack": "steelyard.invoke",
    "Status": "steelyard.errors",
    "SteelyardError": "steelyard.errors",
    "Unavailable": "steelyard.errors",
    "Unimplemented": "steelyard.errors",
    "Warm": "steelyard.provider",
    "current_call": "steelyard.invoke",
    "with_options": "steelyard.consumer",
}

__all__ = [
    "LAST_GOOD_REPLY",
    "Batch",
    "BlockingConsumer",
    "ConfigError",
    "Consumer",
    "ContractError",
    "Credentials",
    "DeadlineExceeded",
    "Degraded",
    "Hardware",
    "Health",
    "InvalidArgument",
    "NoProvider",
    "Node",
    "Overloaded",
    "Position",
    "Provider",
    "RegistryUnavailable",
    "RemoteError",
    "RpcError",
    "Stack",
    "Status",
    "SteelyardError",
    "Unavailable",
    "Unimplemented",
    "Warm",
    "current_call",
    "method",
    "service",
    "with_options",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'steelyard' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

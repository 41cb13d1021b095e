"""What can go wrong between a process and a registry.

The registry package stands alone, so its errors have a root of their own. The framework translates them
once, where it opens a registry, into ``steelyard.errors``.
"""

from __future__ import annotations


class RegistryError(Exception):
    """Root of every error this package raises on purpose."""


class MalformedUrl(RegistryError, ValueError):
    """A registry URL or a provider URL that cannot be understood; the message says which part and why."""


class RegistryUnreachable(RegistryError, ConnectionError):
    """The registry did not answer within the wait that was asked for."""


class RegistryClosed(RegistryError):
    """The registry, registration or subscription was used after it was closed."""

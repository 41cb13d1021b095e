"""The one place where a registry is opened, and where its errors become the framework's."""

from __future__ import annotations

from steelyard.errors import ConfigError, RegistryUnavailable
from steelyard_registry import DEFAULT_URL, MalformedUrl, Registry, RegistryError, open_registry


async def open_at(registry: str | Registry | None, wait_s: float | None, *, from_cache: bool = False) -> Registry:
    """An open registry: of a URL, the default one (None), or the caller's own, which must be open already. With
    *from_cache* a registry that is away is opened with the lists that were kept on disk, if there are any.

    Raises ConfigError for a URL that cannot be understood and RegistryUnavailable when the registry does not answer
    within *wait_s* seconds (None: waits for ever).
    """
    if isinstance(registry, Registry):
        return registry
    try:
        opened = open_registry(registry or DEFAULT_URL)
        await opened.open(wait_s, from_cache=from_cache)
    except MalformedUrl as error:
        raise ConfigError(str(error)) from error
    except RegistryError as error:
        raise RegistryUnavailable(str(error)) from error
    return opened

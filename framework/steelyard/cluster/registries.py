"""The one place where a registry is opened, and where its errors become the framework's."""

from __future__ import annotations

from collections.abc import Sequence

from steelyard.errors import ConfigError, RegistryUnavailable
from steelyard_registry import (
    DEFAULT_URL,
    MalformedUrl,
    Member,
    MultiRegistry,
    Registry,
    RegistryError,
    open_registry,
)

At = str | Registry | Sequence[str | Registry] | None
"""One registry or several; of several, own nodes are announced at the first only."""


async def open_at(registry: At, wait_s: float | None, *, from_cache: bool = False) -> Registry:
    """An open registry: of a URL, the default one (None), or the caller's own, which must be open already. Of a list:
    all of them merged, registered at the first (which owns, and closes, also the caller's own ones). With
    *from_cache* a registry that is away is opened with the lists that were kept on disk, if there are any.

    Raises ConfigError for a URL that cannot be understood and RegistryUnavailable when the registry does not answer
    within *wait_s* seconds (None: waits for ever).
    """
    if isinstance(registry, Registry):
        return registry
    try:
        opened = _unopened(registry)
        await opened.open(wait_s, from_cache=from_cache)
    except MalformedUrl as error:
        raise ConfigError(str(error)) from error
    except RegistryError as error:
        raise RegistryUnavailable(str(error)) from error
    return opened


def _unopened(registry: str | Sequence[str | Registry] | None) -> Registry:
    if registry is None or isinstance(registry, str):
        return open_registry(registry or DEFAULT_URL)
    members = [each if isinstance(each, Registry) else open_registry(each) for each in registry]
    return MultiRegistry([Member(each, is_registered=at == 0) for at, each in enumerate(members)])

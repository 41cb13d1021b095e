"""The one place where a registry is chosen and opened, and where its errors become the framework's."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from steelyard.errors import ConfigError, RegistryUnavailable
from steelyard.setting import checked
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

REGISTRY_VARIABLE = "STEELYARD_REGISTRY"
"""The environment variable that says which registry is meant where none is named."""


def checked_registry(name: str, value: Any) -> At:
    """What may be given to ``open_at``. Raises ConfigError."""
    is_one = value is None or isinstance(value, str | Registry)
    are_several = isinstance(value, Sequence) and bool(value) and all(isinstance(x, str | Registry) for x in value)
    return cast(At, checked(name, value, is_one or are_several, "a URL, a Registry, a list of these, or None"))


async def open_at(registry: At, wait_s: float | None, *, from_cache: bool = False) -> Registry:
    """An open registry: of a URL, or the caller's own, which must be open already. None: the one of
    ``$STEELYARD_REGISTRY``, or else the default. Of a list: all of them merged, registered at the first (which owns,
    and closes, also the caller's own ones). With *from_cache* a registry that is away is opened with the lists that
    were kept on disk, if there are any.

    Raises ConfigError for a URL that cannot be understood and RegistryUnavailable when the registry does not answer
    within *wait_s* seconds (None: waits for ever).
    """
    if isinstance(registry, Registry):
        return registry
    chosen = os.environ.get(REGISTRY_VARIABLE) or DEFAULT_URL if registry is None else registry
    with translated(f"${REGISTRY_VARIABLE}: " if registry is None else ""):
        opened = _unopened(chosen)
        await opened.open(wait_s, from_cache=from_cache)
    return opened


@contextmanager
def translated(blamed: str = "") -> Iterator[None]:
    """The registry's errors as the framework's. *blamed* leads the message about a URL that cannot be understood."""
    try:
        yield
    except MalformedUrl as error:
        raise ConfigError(f"{blamed}{error}") from error
    except RegistryError as error:
        # Whoever reads this has set ``registry_wait_s``; the registry's own argument is called otherwise.
        raise RegistryUnavailable(str(error).replace("with wait_s=None", "with registry_wait_s=None")) from error


def _unopened(registry: str | Sequence[str | Registry]) -> Registry:
    if isinstance(registry, str):
        return open_registry(registry)
    members = [each if isinstance(each, Registry) else open_registry(each) for each in registry]
    return MultiRegistry([Member(each, is_registered=at == 0) for at, each in enumerate(members)])

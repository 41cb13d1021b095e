"""What a consumer shows of itself with each call: a bearer token, from wherever it comes.

A token from a file is read again when the file changes, as platforms write them (Kubernetes projects and renews service
account tokens this way); one from a function may come from anywhere.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from steelyard.errors import ConfigError
from steelyard.setting import checked

from .watched import Watched

AUTHORIZATION = "authorization"
"""The attachment that carries it: gRPC's and HTTP's own header."""

SCHEME = "Bearer "
FILE_VARIABLE = "STEELYARD_BEARER_FILE"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Bearer:
    """One of: ``token``, ``file`` (its path), ``source`` (a function, or a coroutine function, that gives one; it is
    asked for each call and should keep what it has). ``allow_plaintext``: it may travel without TLS, where whoever
    listens can call in its place; for tests and for networks that are encrypted below. Raises ConfigError."""

    token: str | None = None
    file: str | Path | None = None
    source: Callable[[], str | Awaitable[str]] | None = None
    allow_plaintext: bool = False

    def __post_init__(self) -> None:
        given = [each for each in (self.token, self.file, self.source) if each is not None]
        if len(given) != 1:
            raise ConfigError("Bearer: exactly one of token, file and source")
        if self.token is not None and (not isinstance(self.token, str) or not _is_sendable(self.token)):
            raise ConfigError("Bearer.token: printable ASCII without blanks")  # and never what it was
        if self.file is not None:
            checked("Bearer.file", self.file, isinstance(self.file, str | Path) and bool(str(self.file)), "a path")
        if self.source is not None and not callable(self.source):
            raise ConfigError("Bearer.source: a function")

    def __repr__(self) -> str:
        kind = "token=..." if self.token is not None else f"file={self.file!r}" if self.file is not None else "source"
        return f"Bearer({kind})"

    def opened(self) -> Callable[[], str | Awaitable[str]]:
        """The function that gives the token of now. Raises ConfigError for a file that cannot be read."""
        if self.source is not None:
            return self.source
        if self.token is not None:
            token = self.token
            return lambda: token
        watched = Watched("Bearer.file", [self.file or ""], _token_of)
        watched.value()
        return watched.value

    @classmethod
    def from_environment(cls) -> Bearer | None:
        """The one in the file that ``$STEELYARD_BEARER_FILE`` names; None when it is not set."""
        path = os.environ.get(FILE_VARIABLE)
        return cls(file=path) if path else None


def _token_of(contents: list[bytes]) -> str:
    token = contents[0].decode("ascii", "replace").strip()
    if not _is_sendable(token):
        raise ConfigError("Bearer.file: holds no token (printable ASCII without blanks)")
    return token


def _is_sendable(token: str) -> bool:
    return bool(token) and token.isascii() and token.isprintable() and " " not in token

"""Rule documents kept in a registry: text under a key, read and watched. What the text means is the governance's
matter.

Keys are Dubbo's: ``{service}:{version}:{group}.configurators``, ``.condition-router``, ``{application}.tag-router``;
the text is YAML, and stays text here, since only its reader can say what is a mistake in it. In ZooKeeper a document is
the body of ``/{root}/config/{group}/{key}``, where dubbo-admin writes it and Dubbo's own consumers read it.

A document that cannot be read at the moment keeps its last text, marked stale: a rule must not stop to hold because the
registry has a bad minute.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from .errors import MalformedUrl, RegistryClosed, RegistryError

GROUP = "dubbo"
MAX_DOCUMENT_BYTES = 512 * 1024
"""Half of what ZooKeeper takes at most. A rule of this length is a mistake."""


@dataclass(frozen=True, slots=True)
class Document:
    """``text`` is None while there is none. ``version`` grows with every change that was seen."""

    version: int = 0
    text: str | None = None
    is_stale: bool = False


class Rule:
    """A live view of one document; as a Subscription, for one text. ``publish``, ``mark_stale`` and ``end`` are the
    backend's."""

    def __init__(self, key: str, group: str, on_close: Callable[[Rule], Awaitable[None]] | None = None) -> None:
        self.key = key
        self.group = group
        self._document = Document()
        self._turn = asyncio.Event()
        self._on_close = on_close
        self._is_closed = False

    @property
    def document(self) -> Document:
        """The newest; never blocks."""
        return self._document

    async def changed(self, after: int) -> Document:
        """The first document whose version is greater than *after*. Raises RegistryClosed when the view is closed."""
        while not self._is_closed:
            if self._document.version > after:
                return self._document
            await self._turn.wait()
        raise RegistryClosed(f"the view of rule {self.group}/{self.key} is closed")

    async def close(self) -> None:
        """Idempotent."""
        if not self._is_closed:
            self.end()
            if self._on_close is not None:
                await self._on_close(self)

    def end(self) -> None:
        self._is_closed = True
        self._next_turn()

    def publish(self, text: str | None, *, is_stale: bool = False) -> bool:
        """Swap the text in; whether it differs from the last one (or is the first)."""
        old = self._document
        if self._is_closed or (old.version and (old.text, old.is_stale) == (text, is_stale)):
            return False
        self._document = Document(old.version + 1, text, is_stale)
        self._next_turn()
        return True

    def mark_stale(self) -> bool:
        return self.publish(self._document.text, is_stale=True)

    def _next_turn(self) -> None:
        turn, self._turn = self._turn, asyncio.Event()
        turn.set()

    def __repr__(self) -> str:
        stale = ", stale" if self._document.is_stale else ""
        return f"<{type(self).__name__} {self.group}/{self.key}: version {self._document.version}{stale}>"


def check_rule(key: str, group: str, text: str | None = None) -> None:
    """Raises MalformedUrl for a key or group that is no path part, RegistryError for a text that is too long."""
    for name, value in (("key", key), ("group", group)):
        if not re.fullmatch(r"[^\x00-\x1f\x7f/]{1,512}", value) or value in (".", ".."):
            raise MalformedUrl(f"rule {name} {value[:80]!r}: 1 to 512 characters, no slash, no control character")
    if text is not None and len(text.encode("utf-8", "surrogatepass")) > MAX_DOCUMENT_BYTES:
        raise RegistryError(f"rule {group}/{key}: a text of {len(text)} characters; at most {MAX_DOCUMENT_BYTES} bytes")

"""Rule documents kept in a registry: text under a key, read and watched. What the text means is the governance's
matter.

Keys are Dubbo's: ``{service}:{version}:{group}.configurators``, ``.condition-router``, ``{application}.tag-router``;
the text is YAML, and stays text here, since only its reader can say what is a mistake in it. In ZooKeeper a document is
the body of ``/{root}/config/{group}/{key}``, where dubbo-admin writes it and Dubbo's own consumers read it.

A document that cannot be read at the moment keeps its last text, marked stale: a rule must not stop to hold because the
registry has a bad minute.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Self

from .errors import MalformedUrl, RegistryError
from .live import Live, Versioned

GROUP = "dubbo"
MAX_DOCUMENT_BYTES = 512 * 1024
"""Half of what ZooKeeper takes at most. A rule of this length is a mistake."""


@dataclass(frozen=True, slots=True)
class Document(Versioned):
    """``text`` is None while there is none."""

    text: str | None = None
    is_stale: bool = False


class Rule(Live[Document]):
    """A live view of one document; as a Subscription, for one text. ``publish``, ``mark_stale`` and ``end`` are the
    backend's."""

    def __init__(self, key: str, group: str, on_close: Callable[[Self], Awaitable[None]] | None = None) -> None:
        super().__init__(f"the view of rule {group}/{key}", Document(), on_close)
        self.key = key
        self.group = group

    @property
    def document(self) -> Document:
        """The newest; never blocks."""
        return self._newest

    def publish(self, text: str | None, *, is_stale: bool = False) -> bool:
        """Swap the text in; whether it differs from the last one (or is the first)."""
        return self._publish(Document(text=text, is_stale=is_stale))

    def mark_stale(self) -> bool:
        return self.publish(self._newest.text, is_stale=True)

    def __repr__(self) -> str:
        stale = ", stale" if self._newest.is_stale else ""
        return f"<{type(self).__name__} {self.group}/{self.key}: version {self._newest.version}{stale}>"


def check_rule(key: str, group: str, text: str | None = None) -> None:
    """Raises MalformedUrl for a key or group that is no path part, RegistryError for a text that is too long."""
    for name, value in (("key", key), ("group", group)):
        if not re.fullmatch(r"[^\x00-\x1f\x7f/]{1,512}", value) or value in (".", ".."):
            raise MalformedUrl(f"rule {name} {value[:80]!r}: 1 to 512 characters, no slash, no control character")
    if text is not None and len(text.encode("utf-8", "surrogatepass")) > MAX_DOCUMENT_BYTES:
        raise RegistryError(f"rule {group}/{key}: a text of {len(text)} characters; at most {MAX_DOCUMENT_BYTES} bytes")

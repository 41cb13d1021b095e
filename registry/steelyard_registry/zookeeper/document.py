"""The body of one node, kept true: a rule document. Absent is an answer too (the rule is taken back)."""

from __future__ import annotations

import logging

from kazoo.exceptions import NodeExistsError, NoNodeError

from ..rules import MAX_DOCUMENT_BYTES, Rule
from .place import Place
from .reconciler import Reconciler
from .session import Session

log = logging.getLogger(__name__)

AUDIT_S = 30.0


def document_path(place: Place, group: str, key: str) -> str:
    return f"{place.root}/config/{group}/{key}"


class DocumentWatch(Reconciler):
    """Feeds *rule*. Its task runs until ``cancel``."""

    def __init__(self, session: Session, place: Place, rule: Rule) -> None:
        super().__init__(session, place, document_path(place, rule.group, rule.key))
        self._rule = rule

    def _went_away(self) -> None:
        self._rule.mark_stale()

    async def _pass(self) -> float | None:
        self._follow(self.path)
        while True:
            try:
                body, _ = await self._session.call("get", self.path, watch=self._session.watcher)
                break
            except NoNodeError:
                if await self._session.call("exists", self.path, watch=self._session.watcher) is None:
                    self._rule.publish(None)
                    return AUDIT_S
        self._take(bytes(body))
        return AUDIT_S

    def _take(self, body: bytes) -> None:
        """What cannot be read leaves the last text in force, stale: half a rule is worse than yesterday's."""
        try:
            if len(body) > MAX_DOCUMENT_BYTES:
                raise ValueError(f"it has {len(body)} bytes")
            self._rule.publish(body.decode("utf-8"))
        except ValueError as error:
            log.warning("%s: rule at %s cannot be read: %s", self._place.url, self.path, error)
            self._rule.mark_stale()


async def write_document(session: Session, path: str, text: str | None) -> None:
    """None takes it out. Raises KazooException or TimeoutError."""
    if text is None:
        try:
            await session.call("delete", path)
        except NoNodeError:
            pass
        return
    body = text.encode("utf-8")
    while True:
        try:
            await session.call("set", path, body)
            return
        except NoNodeError:
            try:
                await session.call("create", path, body, makepath=True)
                return
            except NodeExistsError:  # somebody else made it in between
                continue

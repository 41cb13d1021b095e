"""One own ephemeral entry, kept true: there, and owned by *this* session.

* Existence is not enough. After an expiry, or a fast restart with the same URL, the name may still be there, owned by
  the old session, and would vanish when that one times out. ``ephemeralOwner`` decides; a foreign entry is deleted and
  created again, in one transaction. That is done once a session: should two living processes ever claim the very same
  name, the last to come keeps it, instead of both deleting each other's for ever.
* An update changes the name, because Dubbo keeps the URL in the name and other people's consumers read weight and state
  there. New name and old name are exchanged in one transaction. (Keeping changing facts in the node's body instead
  would leave names stable, but costs every consumer one read and one watch a *node* instead of a *service*, and Dubbo's
  own consumers would never see them.) What changes all the time, load, does not go through here.
* After a deletion the entry comes back a second later, not at once: an operator who deletes a whole tree would
  otherwise never see it empty ("directory not empty").
"""

from __future__ import annotations

import asyncio
import logging

from kazoo.exceptions import NodeExistsError, NoNodeError

from .place import Place
from .reconciler import Reconciler
from .session import Session

log = logging.getLogger(__name__)

AUDIT_S = 3.0
"""One ``exists`` an entry. A watch tells of a deletion at once; the audit is for what a watch cannot tell."""


class Placement(Reconciler):
    """``folder`` is the parent's path, ``name`` the encoded URL, ``label`` what log lines call the entry."""

    deleted_delay_s = 1.0
    body = b""

    def __init__(self, session: Session, place: Place, folder: str, name: str, label: str) -> None:
        super().__init__(session, place, folder)
        self._label = f"{place.url}: {label}"
        self._wanted: str | None = f"{folder}/{name}"
        self._placed: set[str] = set()
        self._claimed_in: int | None = None
        self._settled = asyncio.Event()
        self._is_cancelled = False

    async def rename(self, name: str, wait_s: float) -> bool:
        """Be there under *name* from now on. Whether that was confirmed within *wait_s*."""
        return await self._want(f"{self.path}/{name}", wait_s)

    async def remove(self, wait_s: float) -> bool:
        """Be gone. Whether that was confirmed within *wait_s*; if not, the task goes on trying."""
        return await self._want(None, wait_s)

    @property
    def is_cancelled(self) -> bool:
        return self._is_cancelled

    async def cancel(self) -> None:
        self._is_cancelled = True
        self._settled.set()  # nobody will settle it any more: whoever waits for it goes on
        await super().cancel()

    async def _want(self, path: str | None, wait_s: float) -> bool:
        self._wanted = path
        if not self._is_cancelled:
            self._settled.clear()
            self.wake()
        try:
            async with asyncio.timeout(wait_s):
                await self._settled.wait()
        except TimeoutError:
            return False
        return not self._is_cancelled

    def _went_away(self) -> None:
        """Nothing to do: the entry lives as long as the session, and the next pass looks."""

    async def _pass(self) -> float | None:
        wanted = self._wanted
        if wanted is not None:
            await self._ensure(wanted)
        for path in sorted(self._placed - {wanted}):
            await self._delete_own(path)
        if wanted == self._wanted:
            self._settled.set()
        else:
            self.wake()
        return None if self._wanted is None and not self._placed else AUDIT_S

    async def _ensure(self, path: str) -> None:
        self._follow(path)
        found = await self._session.call("exists", path, watch=self._session.watcher)
        session_id = self._session.session_id
        if found is not None and found.ephemeralOwner != session_id and self._claimed_in == session_id:
            log.debug("%s: also claimed by session 0x%x, left to it", self._label, found.ephemeralOwner)
        elif found is not None and found.ephemeralOwner != session_id:
            log.warning("%s: replacing the entry of session 0x%x", self._label, found.ephemeralOwner)
            if not await self._create(path, instead_of=path):
                return
        elif found is None and not await self._create(path, instead_of=next(iter(self._placed - {path}), None)):
            return
        self._placed.add(path)
        self._claimed_in = session_id

    async def _create(self, path: str, instead_of: str | None) -> bool:
        """False when somebody else created the same name in between: the next pass looks whose it is."""
        is_known = path in self._placed
        self._placed.add(path)  # before the call: its answer may be lost
        try:
            if instead_of is not None:
                try:
                    await self._session.exchange(instead_of, path, self.body)
                    self._placed -= {instead_of} - {path}
                    log.info("%s: updated", self._label)
                    return True
                except NoNodeError:  # the old one, or the whole folder, is gone
                    self._placed -= {instead_of} - {path}
            await self._session.call("create", path, self.body, ephemeral=True, makepath=True)
        except NodeExistsError:
            self.wake()
            return False
        if is_known:
            log.warning("%s: restored a missing entry", self._label)
        else:
            log.info("%s: registered", self._label)
        return True

    async def _delete_own(self, path: str) -> None:
        found = await self._session.call("exists", path)
        if found is not None and found.ephemeralOwner == self._session.session_id:
            try:
                await self._session.call("delete", path)
            except NoNodeError:
                pass
        self._placed.discard(path)

    def __str__(self) -> str:
        return self._label

"""One kazoo client, seen from asyncio.

kazoo has threads of its own (one for the socket, one for answers, one for watches). Nothing of ours runs on them: their
callbacks only enqueue onto the loop. Calls use kazoo's ``*_async`` forms and arrive as futures, so that a call costs no
thread; at most ``_SLOTS`` are on their way at once, which keeps recovery with a thousand services from flooding the
server. Every call has a time limit, because kazoo keeps requests for as long as it is reconnecting.

kazoo reconnects for ever (its retry has no attempt limit here), with two exceptions that a supervisor mends by making a
new client: its socket thread ends on an answer it cannot read; and a server that lost its data refuses every client
that has seen more than it has, until that client forgets. So after three session timeouts without a connection, when
the session is over anyway, a fresh client takes over the trying.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, MutableMapping
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import (
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    OperationTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
    SessionMovedError,
)
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL, READ_ACL_UNSAFE

from ..errors import RegistryClosed, RegistryUnreachable
from .place import Place

log = logging.getLogger(__name__)

AWAY = (
    ConnectionClosedError,
    ConnectionLoss,
    OperationTimeoutError,
    SessionExpiredError,
    SessionMovedError,
    TimeoutError,
)
"""The server did not answer (whether it acted is unknown): wait for the connection and look again."""

_SLOTS = 64
_STOP_WAIT_S = 3.0
_SUPERVISE_S = 1.0
_GIVE_UP_SESSIONS = 3


class _Demoted(logging.LoggerAdapter[logging.Logger]):
    """kazoo warns at every attempt to connect, once a second through an outage. We tell of an outage once."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        super().log(logging.DEBUG if level <= logging.WARNING else level, msg, *args, **kwargs)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return msg, kwargs


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """kazoo's own handler, remembering the socket thread. The client's state does not tell a dead thread from one that
    has not resolved a host yet: both are CLOSED."""

    socket_thread: threading.Thread | None = None

    def spawn(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> threading.Thread:
        self.socket_thread = super().spawn(func, *args, **kwargs)
        return self.socket_thread

    @property
    def is_dead(self) -> bool:
        return self.socket_thread is not None and not self.socket_thread.is_alive()


class Session:
    """``observers`` are called on the loop after every change of ``is_connected`` or ``session_id``."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.session_id: int | None = None
        self.observers: set[Callable[[], None]] = set()
        self._loop = asyncio.get_running_loop()
        self._up = asyncio.Event()
        self._slots = asyncio.Semaphore(_SLOTS)
        self._client: KazooClient | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._down_since_s = self._loop.time()

    @property
    def is_connected(self) -> bool:
        return self._up.is_set() and not self._is_stopping

    async def connected(self) -> None:
        """Returns when there is a connection."""
        await self._up.wait()

    async def start(self, wait_s: float | None) -> None:
        """Raises RegistryUnreachable after *wait_s* without an answer; the caller then stops the session."""
        self._client = self._new_client()
        self._supervisor = self._loop.create_task(self._supervise())
        try:
            async with asyncio.timeout(wait_s):
                await self._up.wait()
        except TimeoutError:
            raise RegistryUnreachable(
                f"no ZooKeeper answered at {self.place.connect_string} within {wait_s:g} s; check that it runs and "
                "that this machine reaches it, or open with wait_s=None to wait for it"
            ) from None
        if self._is_stopping:
            raise RegistryClosed(f"{self.place.url} was closed while it was being opened")

    async def stop(self) -> None:
        """End the session: ZooKeeper then drops its ephemeral nodes at once. Waits a bounded time."""
        self._is_stopping = True
        self._up.set()  # whoever waits for a connection is to wake up and see
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
        if self._client is not None:
            await self._end(self._client)
            self._client = None

    async def call(self, verb: str, *arguments: Any, **options: Any) -> Any:
        """``await call("exists", path)`` is kazoo's ``exists_async(path)``. Raises KazooException or TimeoutError."""
        return await self._answer(lambda client: getattr(client, f"{verb}_async")(*arguments, **options))

    async def exchange(self, old: str, new: str) -> None:
        """Delete *old* and create ephemeral *new* (which may be the same name) in one transaction: nobody sees both, or
        neither. Raises NoNodeError when *old* is gone, NodeExistsError when *new* is there."""

        def commit(client: KazooClient) -> Any:
            transaction = client.transaction()
            transaction.delete(old)
            transaction.create(new, b"", ephemeral=True)
            return transaction.commit_async()

        errors = [result for result in await self._answer(commit) if isinstance(result, KazooException)]
        for error in errors:
            if not isinstance(error, (RolledBackError, RuntimeInconsistency)):  # those only say "because of another"
                raise error
        if errors:
            raise errors[0]

    async def _answer(self, request: Callable[[KazooClient], Any]) -> Any:
        async with self._slots:
            client = self._client
            if client is None or not self.is_connected:
                raise ConnectionLoss
            future: asyncio.Future[Any] = self._loop.create_future()
            request(client).rawlink(lambda answer: self._post(_deliver, future, answer))
            async with asyncio.timeout(max(2.0, self.place.session_timeout_s)):
                return await future

    def _new_client(self) -> KazooClient:
        place = self.place
        retry = {"max_tries": -1, "delay": 0.1, "backoff": 1.5, "max_delay": 1.0}
        client = KazooClient(
            hosts=place.connect_string,
            timeout=place.session_timeout_s,
            connection_retry=KazooRetry(**retry),
            command_retry=KazooRetry(**retry),
            handler=_Handler(),
            auth_data=[("digest", f"{place.username}:{place.password}")] if place.username else None,
            # With credentials: everybody may read (foreign consumers), only this user may write.
            default_acl=[*CREATOR_ALL_ACL, *READ_ACL_UNSAFE] if place.username else None,
            logger=_Demoted(log, {}),
        )
        client.add_listener(lambda state: self._tell(client, state))
        client.start_async()
        return client

    def _tell(self, client: KazooClient, state: str) -> None:
        """On kazoo's thread: enqueue, nothing else."""
        identity = client.client_id
        self._post(self._changed, client, state, identity[0] if identity else None)

    def _changed(self, client: KazooClient, state: str, session_id: int | None) -> None:
        if client is not self._client or self._is_stopping:
            return
        where = self.place.url
        if state == KazooState.CONNECTED:
            if session_id != self.session_id:
                log.info("%s: connected, new session 0x%x", where, session_id or 0)
            else:
                log.warning("%s: connected again, same session", where)
            self.session_id = session_id
            self._up.set()
        else:
            if self._up.is_set():
                self._down_since_s = self._loop.time()
            self._up.clear()
            if state == KazooState.LOST:
                if self.session_id is not None:
                    log.warning("%s: the session is over; everything is registered again under a new one", where)
                self.session_id = None
            else:
                log.warning("%s: connection lost; the last lists stay in use, connecting again", where)
        for observer in list(self.observers):
            observer()

    async def _supervise(self) -> None:
        """Replace a client that will not connect any more."""
        while True:
            await asyncio.sleep(_SUPERVISE_S)
            try:
                await self._replace_if_hopeless()
            except Exception:  # a defect here must not end the supervision
                log.exception("%s: unexpected error while replacing the client", self.place.url)

    async def _replace_if_hopeless(self) -> None:
        client = self._client
        if client is None:
            return
        down_s = 0.0 if self._up.is_set() else self._loop.time() - self._down_since_s
        if client.handler.is_dead:
            log.error("%s: the client's thread has died; starting a new client", self.place.url)
        elif down_s > _GIVE_UP_SESSIONS * self.place.session_timeout_s:
            log.warning("%s: no connection for %.0f s; trying on with a new session", self.place.url, down_s)
        else:
            return
        self._down_since_s = self._loop.time()
        self._changed(client, KazooState.LOST, None)
        self._client = self._new_client()
        await self._end(client)

    async def _end(self, client: KazooClient) -> None:
        """kazoo's stop waits for its threads, so it gets a thread; a server that hangs does not hang us."""
        done: asyncio.Future[None] = self._loop.create_future()

        def end() -> None:
            try:
                client.stop()
                client.close()
            except Exception as error:
                log.debug("%s: stopping kazoo: %r", self.place.url, error)
            self._post(lambda: None if done.done() else done.set_result(None))

        threading.Thread(target=end, name="steelyard-registry kazoo stop", daemon=True).start()
        try:
            async with asyncio.timeout(_STOP_WAIT_S):
                await done
        except TimeoutError:
            log.warning("%s: did not say goodbye in time; the entries go when the session times out", self.place.url)

    def _post(self, function: Callable[..., object], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the loop has ended without closing the registry: nobody is left to tell
            pass


def _deliver(future: asyncio.Future[Any], answer: Any) -> None:
    if not future.done():
        if answer.exception is None:
            future.set_result(answer.value)
        else:
            future.set_exception(answer.exception)

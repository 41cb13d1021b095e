"""One kazoo client, seen from asyncio.

kazoo has threads of its own (one for the socket, one for answers, one for watches). Nothing of ours runs on them: their
callbacks only enqueue onto the loop. Calls use kazoo's ``*_async`` forms and arrive as futures, so that a call costs no
thread; at most ``_SLOTS`` are on their way at once, which keeps recovery with a thousand services from flooding the
server. Every call has a time limit, because kazoo keeps requests for as long as it is reconnecting.

kazoo reconnects for ever (its retry has no attempt limit here), with two exceptions that a supervisor mends by making a
new client: its socket thread ends on an answer it cannot read; and a server that lost its data refuses every client
that has seen more than it has, until that client forgets. So after three session timeouts without a connection, when
the session is over anyway, a fresh client takes over the trying.

A server without a quorum may serve observers (``is_read_only``), who then see what it saw last. kazoo looks for a
better server from within the thread that has to answer this one, without a time limit, asks only the first host, and
then connects to the wrong address; so it is kept from that, and here too a fresh client does it, after the same time.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from collections.abc import Callable, MutableMapping
from typing import Any, Protocol

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
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL, READ_ACL_UNSAFE

from ..errors import RegistryClosed, RegistryUnreachable
from .place import Door
from .recursive import Client

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


OnChild = Callable[[str, str], None]


class Cancellable(Protocol):
    async def cancel(self) -> None: ...


class Session:
    """``observers`` are called on the loop after every change of ``is_connected`` or ``session_id``.

    Watches go through ``follow``: kazoo then holds one watcher a path, however many subscriptions come and go. What
    happens to the children of a folder goes to those who follow the folder (``follow_children``)."""

    def __init__(self, door: Door) -> None:
        self.door = door
        self.session_id: int | None = None
        self.is_read_only = False
        """Connected to a server that has no quorum: it cannot vouch for what it says."""
        self.observers: set[Callable[[], None]] = set()
        self._loop = asyncio.get_running_loop()
        self._up = asyncio.Event()
        self._slots = asyncio.Semaphore(_SLOTS)
        self._client: KazooClient | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._has_answered = False
        self._last_wishes: list[Cancellable] = []
        self._followers: dict[str, set[Callable[[str], None]]] = {}
        self._child_followers: dict[str, set[OnChild]] = {}
        self._down_since_s = self._loop.time()

    @property
    def is_connected(self) -> bool:
        return self._up.is_set() and not self._is_stopping

    async def connected(self) -> None:
        """Returns when there is a connection."""
        await self._up.wait()

    def start(self) -> None:
        """Begin to connect. Once."""
        self._client = self._new_client()
        self._supervisor = self._loop.create_task(self._supervise())

    async def answered(self, wait_s: float | None) -> None:
        """Returns when there is a connection; raises RegistryUnreachable after *wait_s* seconds without one."""
        try:
            async with asyncio.timeout(wait_s):
                await self._up.wait()
        except TimeoutError:
            raise RegistryUnreachable(
                f"no ZooKeeper answered at {self.door.connect_string} within {wait_s:g} s; check that it runs and "
                "that this machine reaches it, or open with wait_s=None to wait for it"
            ) from None
        if self._is_stopping:
            raise RegistryClosed(f"{self.door.url} was closed while it was being opened")

    def follow(self, path: str, on_event: Callable[[str], None]) -> None:
        """From now on *on_event* (the event's type) is called on the loop for watches that were set on *path*."""
        self._followers.setdefault(path, set()).add(on_event)

    def unfollow(self, path: str, on_event: Callable[[str], None]) -> None:
        followers = self._followers.get(path, set())
        followers.discard(on_event)
        if not followers:
            self._followers.pop(path, None)

    def watcher(self, event: Any) -> None:
        """The watch callback, for ``call(.., watch=session.watcher)``: on kazoo's thread, so it only enqueues. Bound
        methods of one object compare equal, so that kazoo, which keeps watchers in sets, holds one a path."""
        if event.path is not None:
            self._post(self._tell_followers, event.path, event.type)

    def _tell_followers(self, path: str, kind: str) -> None:
        for on_event in tuple(self._followers.get(path, ())):
            on_event(kind)
        folder, _, name = path.rpartition("/")
        for on_child in tuple(self._child_followers.get(folder, ())):
            on_child(kind, name)

    def follow_children(self, folder: str, on_child: OnChild) -> None:
        """From now on *on_child* (the event's type, name) is called for each child of *folder* that came or went, once
        the server was asked to tell (``call("follow", folder)``; again after every lost connection)."""
        self._child_followers.setdefault(folder, set()).add(on_child)

    def unfollow_children(self, folder: str, on_child: OnChild) -> None:
        followers = self._child_followers.get(folder, set())
        followers.discard(on_child)
        if not followers and self._child_followers.pop(folder, None) is not None and self.is_connected:
            client = self._client
            assert client is not None
            client.unfollow_async(folder)  # should it not arrive, events come that nobody listens to

    def leave_to(self, last_wish: Cancellable) -> None:
        """A registry that closed while the server was away leaves the task that takes its entry out to the session."""
        self._last_wishes.append(last_wish)

    async def stop(self) -> None:
        """End the session: ZooKeeper then drops its ephemeral nodes at once. Waits a bounded time."""
        self._is_stopping = True
        await asyncio.gather(*(last_wish.cancel() for last_wish in self._last_wishes))
        self._up.set()  # whoever waits for a connection is to wake up and see
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
        if self._client is not None:
            # Where nobody ever answered there is no session to end, and nobody to say goodbye to.
            await self._end(self._client, _STOP_WAIT_S if self._has_answered else 0.0)
            self._client = None

    async def call(self, verb: str, *arguments: Any, **options: Any) -> Any:
        """``await call("exists", path)`` is kazoo's ``exists_async(path)``. Raises KazooException or TimeoutError."""
        return await self._answer(lambda client: getattr(client, f"{verb}_async")(*arguments, **options))

    async def exchange(self, old: str, new: str, body: bytes = b"") -> None:
        """Delete *old* and create ephemeral *new* (which may be the same name) in one transaction: nobody sees both, or
        neither. Raises NoNodeError when *old* is gone, NodeExistsError when *new* is there."""

        def commit(client: KazooClient) -> Any:
            transaction = client.transaction()
            transaction.delete(old)
            transaction.create(new, body, ephemeral=True)
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
            async with asyncio.timeout(max(2.0, self.door.session_timeout_s)):
                return await future

    def _new_client(self) -> KazooClient:
        door = self.door
        retry = {"max_tries": -1, "delay": 0.1, "backoff": 1.5, "max_delay": 1.0}
        client = Client(
            self.watcher,
            hosts=door.connect_string,
            timeout=door.session_timeout_s,
            connection_retry=KazooRetry(**retry),
            command_retry=KazooRetry(**retry),
            handler=_Handler(),
            auth_data=[("digest", f"{door.username}:{door.password}")] if door.username else None,
            # With credentials: everybody may read (foreign consumers), only this user may write.
            default_acl=[*CREATOR_ALL_ACL, *READ_ACL_UNSAFE] if door.username else None,
            logger=_Demoted(log, {}),
            read_only=door.is_read_only,
            use_ssl=door.is_tls,
            ca=door.tls_ca or None,
            certfile=door.tls_cert or None,
            keyfile=door.tls_key or None,
            verify_certs=door.tls_verify,
            # Not kazoo's default: any server with a certificate of the same authority could stand in for ZooKeeper.
            check_hostname=door.tls_verify,
        )
        client._connection._server_pinger = lambda: itertools.repeat(False)
        client.add_listener(lambda state: self._tell(client, state))
        client.start_async()
        return client

    def _tell(self, client: KazooClient, state: str) -> None:
        """On kazoo's thread: enqueue, nothing else."""
        identity = client.client_id
        is_read_only = client.client_state == KeeperState.CONNECTED_RO
        self._post(self._changed, client, state, identity[0] if identity else None, is_read_only)

    def _changed(
        self, client: KazooClient, state: str, session_id: int | None = None, is_read_only: bool = False
    ) -> None:
        if client is not self._client or self._is_stopping:
            return
        where = self.door.url
        self.is_read_only = is_read_only
        if state == KazooState.CONNECTED:
            if session_id != self.session_id:
                log.info("%s: connected, new session 0x%x", where, session_id or 0)
            else:
                log.warning("%s: connected again, same session", where)
            if is_read_only:
                log.warning("%s: the server has no quorum and is read-only; its lists are taken as stale", where)
            self.session_id = session_id
            self._has_answered = True
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
                log.exception("%s: unexpected error while replacing the client", self.door.url)

    async def _replace_if_hopeless(self) -> None:
        client = self._client
        if client is None:
            return
        is_well = self._up.is_set() and not self.is_read_only
        down_s = 0.0 if is_well else self._loop.time() - self._down_since_s
        if client.handler.is_dead:
            log.error("%s: the client's thread has died; starting a new client", self.door.url)
        elif down_s > _GIVE_UP_SESSIONS * self.door.session_timeout_s:
            found = "only a read-only server" if self.is_read_only else "no connection"
            log.warning("%s: %s for %.0f s; trying on with a new session", self.door.url, found, down_s)
        else:
            return
        self._down_since_s = self._loop.time()
        self._changed(client, KazooState.LOST)
        self._client = self._new_client()
        await self._end(client)

    async def _end(self, client: KazooClient, wait_s: float = _STOP_WAIT_S) -> None:
        """kazoo's stop waits for its threads, so it gets a thread; a server that hangs does not hang us."""
        done: asyncio.Future[None] = self._loop.create_future()

        def end() -> None:
            try:
                client.stop()
                client.close()
            except Exception as error:
                log.debug("%s: stopping kazoo: %r", self.door.url, error)
            self._post(lambda: None if done.done() else done.set_result(None))

        threading.Thread(target=end, name="steelyard-registry kazoo stop", daemon=True).start()
        try:
            async with asyncio.timeout(wait_s):
                await done
        except TimeoutError:
            log.log(
                logging.WARNING if wait_s else logging.DEBUG,
                "%s: did not say goodbye in time; the entries go when the session times out",
                self.door.url,
            )

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

"""The consumer's end of a connection to a foreign server: one gRPC call per call.

It has the face of ``ConsumerConnection``, so that a Channel drives either alike and a call over our own stream pays
nothing for the other kind. What is made up for here is what gRPC does not tell: whether a refused call may have run,
how busy the server is (ORCA), and that a server which has stopped is as good as gone.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio

from steelyard.codec import worth_packing
from steelyard.errors import DeadlineExceeded, InternalError, Overloaded, RpcError, Unavailable
from steelyard.model import NOTHING, CallShape, Codec, Invocation, LoadReport, Reply

from ..limits import WireLimits
from .headers import attachments_of, call_headers
from .open_orca import pushed_reports
from .orca import HEADER, TRAILER, decode_report, read_header
from .peer import PlainPeer
from .status import error_of
from .stream import PlainStream

log = logging.getLogger(__name__)

# A server may attach its load to every reply. A balancer looks ten times a second at most.
_LOAD_EVERY_S = 0.1
# Equal bytes within this are one sample told again, and no second one.
_SAME_SAMPLE_S = 1.0
# After a stream of reports has ended: long enough for a server that is leaving to be gone.
_ASK_AGAIN_S = 1.0
_UNARY = CallShape.UNARY


class PlainCall:
    """A call under way. ``token`` is its task until that is done, ``remote`` gRPC's call once there is one, ``failure``
    what the caller's own stream raised."""

    __slots__ = ("failure", "remote", "token")

    def __init__(self) -> None:
        self.token: Any = None
        self.remote: Any = None
        self.failure: Exception | None = None

    def answered(self, task: asyncio.Task[Any]) -> None:
        """The task's result is its awaiter's alone: a stream that this kept alive would never be seen to be dropped."""
        self.token = None
        if not task.cancelled():
            task.exception()  # whoever was cancelled while its call failed does not ask for the failure any more


class PlainConnection:
    """See the module. ``identity`` is this consumer's application, told in Triple's header."""

    def __init__(
        self,
        peer: PlainPeer,
        limits: WireLimits,
        *,
        node: str,
        identity: str,
        on_load: Callable[[LoadReport], None],
        on_draining: Callable[[], None],
        on_ended: Callable[[str], None],
    ) -> None:
        del on_draining  # a foreign server does not say
        self._peer = peer
        self._limits = limits
        self._node = node
        self._identity = identity
        self._on_load = on_load
        self._on_ended = on_ended
        self._loop = asyncio.get_running_loop()
        self._end: asyncio.Future[str] = self._loop.create_future()
        self._open: dict[PlainCall, None] = {}
        self._methods: dict[tuple[str, str, CallShape], Any] = {}
        self._cut = ""  # why calls under way were ended from here
        self._heard_at = time.monotonic()
        self._load_at = -math.inf
        self._latest_load: object = None

    is_draining = False

    @property
    def has_ended(self) -> bool:
        return self._end.done()

    @property
    def open_calls(self) -> int:
        return len(self._open)

    async def welcomed(self) -> None:
        """A foreign server has no first word."""

    def stop(self, reason: str) -> None:
        """Ends it, with the calls under way. The first reason counts."""
        if not self._end.done():
            self._cut = reason
            self._end.set_result(reason)

    async def run(self) -> str:
        """Watches the connection until it ends, and returns why it did.

        When the server has gone, gRPC fails what was lost and lets finish what a GOAWAY has left running; the last of
        these calls closes the channel then. What is cut off (``stop``, a silent server) ends at once."""
        watching = [self._loop.create_task(work) for work in (self._watch(), self._listen(), self._follow_load())]
        reason = "cancelled"
        try:
            reason = await self._end
        finally:
            self.stop(reason)
            for task in watching:
                task.cancel()
            self._on_ended(reason)
            try:
                await asyncio.gather(*watching, return_exceptions=True)
                if self._cut:
                    for call in tuple(self._open):
                        _cancel(call)
            finally:
                if self._cut or not self._open:
                    await self._peer.close()
        return reason

    def submit(self, invocation: Invocation, now_s: float) -> PlainCall:
        """Sends a call; its answer is that of the task ``.token``. Raises the RpcError of a refused call."""
        self._admit(invocation, now_s)
        call = PlainCall()
        shape = _UNARY if invocation.spec is None else invocation.spec.shape
        work = self._unary if not shape.gives_stream else self._stream
        self._open[call] = None
        call.token = task = self._loop.create_task(work(call, invocation, shape))
        task.add_done_callback(call.answered)
        return call

    def abandon(self, call: PlainCall) -> None:
        """The caller no longer wants *call*. Harmless when it is over."""
        if call.token is not None and not call.token.done():
            call.token.cancel()
        elif call in self._open:
            del self._open[call]
            _cancel(call)

    def _admit(self, invocation: Invocation, now_s: float) -> None:
        body, limits = invocation.body, self._limits
        if type(body) not in (bytes, bytearray) or body is None:
            raise InternalError(f"the wire carries bytes, not a body of type {type(body).__name__}")
        if len(self._open) >= limits.in_flight:
            raise Overloaded(f"{limits.in_flight} calls are open on this connection already", node=self._node)
        if len(body) > limits.message_bytes:
            raise Overloaded(f"a body of {len(body)} bytes; the bound is {limits.message_bytes}", node=self._node)
        if invocation.deadline_at <= now_s:
            raise DeadlineExceeded("the deadline passed before the call was sent", node=self._node)

    def _begin(self, call: PlainCall, invocation: Invocation, shape: CallShape) -> Any:
        """Starts gRPC's call."""
        key, headers = call_headers(invocation, self._identity)
        method = self._methods.get((key.interface, invocation.method, shape))
        if method is None:
            make = getattr(self._peer.channel, _MAKERS[shape])
            method = self._methods[key.interface, invocation.method, shape] = make(
                f"/{key.interface}/{invocation.method}"
            )
        deadline_at = invocation.deadline_at
        timeout_s = None if deadline_at == math.inf else max(0.0, deadline_at - time.monotonic())
        body: Any = invocation.body
        if type(body) is bytearray:
            body = bytes(body)  # a large one; gRPC takes nothing else
        sent = body if invocation.stream is None else _sent(call, invocation, invocation.stream)
        call.remote = remote = method(sent, timeout=timeout_s, metadata=headers, compression=_compression(invocation))
        return remote

    async def _unary(self, call: PlainCall, invocation: Invocation, shape: CallShape) -> Reply:
        try:
            remote = self._begin(call, invocation, shape)
            body = await remote
            if body is None:  # gRPC for Python lets a server say OK and nothing else
                raise InternalError("the server sent no reply", node=self._node, is_remote=True, may_have_run=True)
            return Reply(body=body, attachments=await self._told(remote))
        except asyncio.CancelledError:
            self._raise_reason(call)
            raise
        except grpc.aio.AioRpcError as error:
            raise self._error(error) from None
        finally:
            await self._over(call)

    async def _stream(self, call: PlainCall, invocation: Invocation, shape: CallShape) -> Reply:
        is_open = False
        try:
            remote = self._begin(call, invocation, shape)
            headers = await remote.initial_metadata()
            if remote.done() and await remote.code() is not grpc.StatusCode.OK:
                await remote.read()  # raises what the status says
            is_open = True
            stream = PlainStream(remote, call, self)
            return Reply(stream=stream, attachments=attachments_of(headers or ()) or NOTHING)
        except asyncio.CancelledError:
            self._raise_reason(call)
            raise
        except grpc.aio.AioRpcError as error:
            raise self._error(error) from None
        finally:
            if not is_open:
                await self._over(call)

    # For PlainStream.

    def heard(self) -> None:
        self._heard_at = time.monotonic()

    async def ended(self, call: PlainCall) -> None:
        """A stream has been read to its end."""
        if call in self._open:
            self._load(await call.remote.trailing_metadata())
            await self._over(call)

    async def failed(self, call: PlainCall, error: BaseException) -> BaseException:
        """A stream has ended with *error*; what its reader is told."""
        told: BaseException = error
        if isinstance(error, grpc.aio.AioRpcError):
            told = self._error(error)
        elif isinstance(error, asyncio.CancelledError):
            told = self._reason(call) or error
        await self._over(call)
        return told

    async def left(self, call: PlainCall) -> None:
        """A stream's reader has gone."""
        _cancel(call)
        await self._over(call)

    # Inside.

    async def _over(self, call: PlainCall) -> None:
        self._open.pop(call, None)
        if self._end.done() and not self._cut and not self._open:
            await self._peer.close()  # the last one turns the light off

    async def _told(self, remote: Any) -> Any:
        """The reply's attachments; the load that came with it is passed on."""
        self.heard()
        trailers = await remote.trailing_metadata()
        self._load(trailers)
        found = attachments_of((*(await remote.initial_metadata() or ()), *(trailers or ())))
        return found or NOTHING

    def _load(self, trailers: Any) -> None:
        for key, value in trailers or ():
            if key in (TRAILER, HEADER):
                now_s = time.monotonic()
                since_s = now_s - self._load_at
                if since_s < _LOAD_EVERY_S or (value == self._latest_load and since_s < _SAME_SAMPLE_S):
                    return
                self._load_at, self._latest_load = now_s, value
                self._report(decode_report if key == TRAILER else read_header, value)

    def _report(self, read: Callable[[Any], LoadReport], told: object) -> None:
        try:
            report = read(told)
        except (ValueError, TypeError) as error:
            log.debug("%s: a load report that cannot be read: %s", self._node, error)
        else:
            self._on_load(report)

    async def _follow_load(self) -> None:
        """Takes the load that the server pushes, if it does. A stream that outlives its connection would keep a server
        from ending, so it is given up with that."""
        while True:
            self._peer.rotated.clear()
            following = self._loop.create_task(self._take_reports())
            rotating = self._loop.create_task(self._peer.rotated.wait())
            try:
                await asyncio.wait((following, rotating), return_when=asyncio.FIRST_COMPLETED)
                if following.done() and not following.result():
                    return
            finally:
                following.cancel()
                rotating.cancel()
                await asyncio.gather(following, rotating, return_exceptions=True)
            await asyncio.sleep(_ASK_AGAIN_S)

    async def _take_reports(self) -> bool:
        """Until the stream ends; whether to ask for another."""
        try:
            async for encoded in pushed_reports(self._peer.channel):
                self.heard()
                self._report(decode_report, encoded)
        except grpc.aio.AioRpcError as error:
            return error.code() is grpc.StatusCode.UNAVAILABLE
        return True

    def _error(self, error: grpc.aio.AioRpcError) -> RpcError:
        found = error_of(error, self._node, is_connected=self._peer.is_connected)
        if found.is_remote and not isinstance(found, DeadlineExceeded):
            self.heard()
        self._load(error.trailing_metadata())
        return found

    def _reason(self, call: PlainCall) -> Exception | None:
        """Why a call was cancelled, where its caller has not done it."""
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            return None
        return call.failure or (Unavailable(self._cut, node=self._node, may_have_run=True) if self._cut else None)

    def _raise_reason(self, call: PlainCall) -> None:
        reason = self._reason(call)
        if reason is not None:
            raise reason

    async def _watch(self) -> None:
        reason = await self._peer.lost()
        if not self._end.done():
            self._end.set_result(reason)

    async def _listen(self) -> None:
        """Asks a server from which calls are waited for, and nothing is heard, whether it is still there: as with our
        own, it is lost after three intervals of silence."""
        interval_s = self._limits.heartbeat_interval_s
        while True:
            await asyncio.sleep(interval_s)
            if not self._open or time.monotonic() - self._heard_at < interval_s:
                continue
            asked_at = time.monotonic()
            if await self._peer.answers(2 * interval_s):
                self.heard()
            elif self._open and self._heard_at < asked_at:
                self.stop(f"nothing was heard for three heartbeats of {interval_s:g} s")


_MAKERS = {
    CallShape.UNARY: "unary_unary",
    CallShape.SERVER_STREAM: "unary_stream",
    CallShape.CLIENT_STREAM: "stream_unary",
    CallShape.BIDIRECTIONAL: "stream_stream",
}


def _compression(invocation: Invocation) -> grpc.Compression | None:
    """gRPC's own, whichever the method asks for: a foreign server knows no other. It is for a whole call, so that a
    short body goes as it is, and a stream does not."""
    spec, body = invocation.spec, invocation.body
    if spec is None or not spec.compress:
        return None
    is_worth_it = invocation.stream is not None or worth_packing(body, len(body or b""))
    return grpc.Compression.Gzip if is_worth_it else None


async def _sent(call: PlainCall, invocation: Invocation, stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """What the caller streams. Of a protobuf method these are all messages there are; otherwise its other arguments go
    before them, as over our own wire."""
    if (invocation.spec is None or invocation.spec.codec is not Codec.PROTOBUF) and invocation.body is not None:
        yield bytes(invocation.body)
    try:
        async for body in stream:
            yield body
    except Exception as error:
        call.failure = error  # gRPC only cancels the call then
        raise


def _cancel(call: PlainCall) -> None:
    if call.remote is not None:
        call.remote.cancel()

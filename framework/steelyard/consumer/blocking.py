"""BlockingConsumer: the same consumer for scripts and notebooks, without ``await``.

It runs a Consumer on an event loop in a thread of its own, so that heartbeats, load reports and the control loop go on
between two calls of the script. Calls may come from any number of threads.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from steelyard.errors import ConfigError

from .consumer import Consumer
from .proxy import Options, Proxy, Referred, Stream, reference_of
from .reference import ReferenceStatistics

P = ParamSpec("P")
R = TypeVar("R")


def _taking_what(
    model: Callable[Concatenate[Any, P], Any],
) -> Callable[[Callable[..., R]], Callable[Concatenate[Any, P], R]]:
    """Gives a method that passes its arguments on the signature of the one that takes them, for editors and help()."""

    def dress(method: Callable[..., R]) -> Callable[Concatenate[Any, P], R]:
        return functools.wraps(model, assigned=(), updated=())(method)

    return dress


class BlockingConsumer:
    """Takes what Consumer takes.

    with BlockingConsumer(registry=URL) as consumer:
        y = consumer.refer(Ctr).predict(7, x)

    It belongs to the process that opened it: its thread does not survive a fork.
    """

    @_taking_what(Consumer.__init__)
    def __init__(self, *args: Any, **settings: Any) -> None:
        self._consumer = Consumer(*args, **settings)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over: asyncio.Event | None = None
        self._thread: threading.Thread | None = None
        self._process = 0

    def open(self) -> None:
        """Starts the loop's thread and opens the registry; raises what Consumer.open raises. Idempotent."""
        if self._thread is not None:
            return
        started = threading.Event()
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._live, args=(started,), name="steelyard-consumer", daemon=True)
        self._thread.start()
        started.wait()
        try:
            self._wait(self._consumer.open())
        except BaseException:
            self._stop()
            raise

    def refer(self, contract: type, **settings: Any) -> Any:
        """As Consumer.refer, but the methods block: a unary one returns the reply, a stream returns an iterator. The
        result is typed Any, because the contract's own types say ``async``."""

        async def refer() -> Any:
            return self._consumer.refer(contract, **settings)

        return BlockingProxy(self, self._wait(refer()))

    def ready(self, proxy: BlockingProxy, *, nodes: int = 1, wait_s: float | None = 10.0) -> None:
        """As Consumer.ready."""
        self._wait(self._consumer.ready(proxy, nodes=nodes, wait_s=wait_s))

    def statistics(self, proxy: BlockingProxy) -> ReferenceStatistics:
        """As Consumer.statistics."""

        async def statistics() -> ReferenceStatistics:
            return self._consumer.statistics(proxy)

        return self._wait(statistics())

    def close(self) -> None:
        """Closes the consumer and ends the thread. Idempotent."""
        if self._thread is None:
            return
        if self._process != os.getpid():
            self._loop = self._over = self._thread = None  # they are the other process's
            return
        try:
            self._wait(self._consumer.close())
        finally:
            self._stop()

    def _live(self, started: threading.Event) -> None:
        async def live() -> None:
            self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
            started.set()
            await self._over.wait()

        asyncio.run(live())  # which ends what is still there when it is over

    def _wait(self, work: Coroutine[Any, Any, R]) -> R:
        future = self._begin(work)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise
        except BaseException:
            future.cancel()  # Ctrl-C in the waiting thread gives the call up on the loop as well
            raise

    def _begin(self, work: Coroutine[Any, Any, R]) -> concurrent.futures.Future[R]:
        """Runs *work* on the loop. Raises ConfigError when there is none that could be waited for."""
        problem = None
        if self._loop is None:
            problem = "the consumer is not open: use `with BlockingConsumer(...) as consumer:` or `open()`"
        elif self._process != os.getpid():
            problem = "the consumer was opened before this process was forked; open another one here"
        elif threading.current_thread() is self._thread:
            problem = "a blocking call from the consumer's own loop would wait for itself; use Consumer there"
        if self._loop is None or problem is not None:
            work.close()
            raise ConfigError(problem)
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _stop(self) -> None:
        loop, over, thread = self._loop, self._over, self._thread
        self._loop = self._over = self._thread = None
        if loop is not None and over is not None and thread is not None:
            loop.call_soon_threadsafe(over.set)
            thread.join()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class BlockingProxy(Referred):
    """One referenced service with blocking methods."""

    def __init__(self, consumer: BlockingConsumer, proxy: Proxy) -> None:
        self._proxy = proxy
        self._reference = reference_of(proxy)
        self._consumer = consumer
        for name, method in self._reference.spec.methods.items():
            make = _stream if method.shape.gives_stream else _unary
            setattr(self, name, make(consumer, getattr(proxy, name)))

    def _with(self, options: Options) -> Self:
        return type(self)(self._consumer, self._proxy._with(options))

    def __repr__(self) -> str:
        return f"<blocking {self._proxy!r}>"


def _unary(consumer: BlockingConsumer, method: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        return consumer._wait(method(*args, **kwargs))

    return _like(call, method)


def _stream(consumer: BlockingConsumer, method: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> BlockingStream:
        return BlockingStream(consumer, method(*args, **kwargs))

    return _like(call, method)


class BlockingStream(Iterator[Any]):
    """The items of a server stream. The call starts with the first item; ``close``, leaving ``with`` and dropping the
    stream cancel it."""

    def __init__(self, consumer: BlockingConsumer, stream: Stream) -> None:
        self._consumer = consumer
        self._stream: Stream | None = stream

    def __next__(self) -> Any:
        if self._stream is None:
            raise StopIteration
        try:
            return self._consumer._wait(_next(self._stream))
        except StopAsyncIteration:
            raise StopIteration from None

    def close(self) -> None:
        """Idempotent; harmless after the consumer has been closed, which has ended the stream."""
        closing = self._hand_over()
        if closing is not None:
            closing.result()

    def _hand_over(self) -> concurrent.futures.Future[None] | None:
        """Has the stream closed on the consumer's loop, where all that counts it lives."""
        stream, self._stream = self._stream, None
        if stream is None:
            return None
        try:
            return self._consumer._begin(stream.aclose())
        except (ConfigError, RuntimeError):  # the loop has ended, or the process is another one
            return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self._hand_over()


async def _next(stream: Stream) -> Any:
    return await anext(stream)


def _like(call: Any, method: Any) -> Any:
    for name in ("__name__", "__qualname__", "__doc__", "__signature__"):
        if hasattr(method, name):
            setattr(call, name, getattr(method, name))
    return call

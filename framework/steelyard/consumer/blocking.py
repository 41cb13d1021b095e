"""BlockingConsumer: the same consumer for scripts and notebooks, without ``await``.

It runs a Consumer on an event loop in a thread of its own, so that heartbeats, load reports and the control loop go on
between two calls of the script. Calls may come from any number of threads.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

from steelyard.errors import ConfigError
from steelyard.model import CallShape

from .consumer import Consumer
from .proxy import Proxy, Stream, reference_of
from .reference import ReferenceStatistics

R = TypeVar("R")


class BlockingConsumer:
    """Takes what Consumer takes.

    with BlockingConsumer(registry=URL) as consumer:
        y = consumer.refer(Ctr).predict(7, x)
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        self._consumer = Consumer(*args, **settings)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def open(self) -> None:
        """Starts the loop's thread and opens the registry; raises what Consumer.open raises. Idempotent."""
        if self._thread is not None:
            return
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="steelyard-consumer", daemon=True)
        self._thread.start()
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
        self._wait(self._consumer.ready(proxy._proxy, nodes=nodes, wait_s=wait_s))

    def statistics(self, proxy: BlockingProxy) -> ReferenceStatistics:
        """As Consumer.statistics."""

        async def statistics() -> ReferenceStatistics:
            return self._consumer.statistics(proxy._proxy)

        return self._wait(statistics())

    def close(self) -> None:
        """Closes the consumer and ends the thread. Idempotent."""
        if self._thread is None:
            return
        try:
            self._wait(self._consumer.close())
        finally:
            self._stop()

    def _wait(self, work: Coroutine[Any, Any, R]) -> R:
        if self._loop is None:
            work.close()
            raise ConfigError("the consumer is not open: use `with BlockingConsumer(...) as consumer:` or `open()`")
        if threading.current_thread() is self._thread:
            work.close()
            raise ConfigError("a blocking call from the consumer's own loop would wait for itself; use Consumer there")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise
        except BaseException:
            future.cancel()  # Ctrl-C in the waiting thread gives the call up on the loop as well
            raise

    def _stop(self) -> None:
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class BlockingProxy:
    """One referenced service with blocking methods."""

    def __init__(self, consumer: BlockingConsumer, proxy: Proxy) -> None:
        self._proxy = proxy
        self._consumer = consumer
        for name, method in reference_of(proxy).spec.methods.items():
            make = _unary if method.shape is CallShape.UNARY else _stream
            setattr(self, name, make(consumer, getattr(proxy, name)))

    def __repr__(self) -> str:
        return f"<blocking {self._proxy!r}>"


def _unary(consumer: BlockingConsumer, method: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        return consumer._wait(method(*args, **kwargs))

    return _like(call, method)


def _stream(consumer: BlockingConsumer, method: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Iterator[Any]:
        stream: Stream = method(*args, **kwargs)
        try:
            while True:
                try:
                    item = consumer._wait(_next(stream))
                except StopAsyncIteration:
                    return
                yield item
        finally:
            consumer._wait(stream.aclose())

    return _like(call, method)


async def _next(stream: Stream) -> Any:
    return await anext(stream)


def _like(call: Any, method: Any) -> Any:
    for name in ("__name__", "__qualname__", "__doc__", "__signature__"):
        if hasattr(method, name):
            setattr(call, name, getattr(method, name))
    return call

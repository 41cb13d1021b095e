"""Threads for handlers that block, which do not keep their process alive.

``ThreadPoolExecutor`` would do, but the interpreter waits for its threads when it ends, however long they take: one
handler that hangs in a socket would keep a provider's process for ever after it has drained, out of the registry and
with its port closed. These are daemon threads: what still runs when the drain is over ends with the process.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

_Job = tuple[Future[Any], Callable[[], Any]]


class DaemonThreads:
    """At most *count* threads, each started when there is work and none is idle."""

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._started = 0
        self._is_closed = False

    def submit(self, work: Callable[[], Any]) -> Future[Any]:
        """Runs *work* in a thread. Raises RuntimeError after ``close``, and where the machine gives no first thread."""
        future: Future[Any] = Future()
        with self._lock:
            if self._is_closed:
                raise RuntimeError("these threads have been closed")
            self._jobs.put((future, work))
            is_new = not self._idle.acquire(blocking=False) and self._started < self._count
            self._started += is_new
            number = self._started
        if is_new:
            try:
                threading.Thread(target=self._run, name=f"{self._name}_{number}", daemon=True).start()
            except RuntimeError:  # the container's bound on processes
                with self._lock:
                    self._started -= 1
                    is_alone = self._started == 0
                if is_alone:  # else those that run will come to it
                    future.cancel()
                    raise
        return future

    def close(self) -> None:
        """Cancels what waits, and lets the threads end when they are done. Does not wait. Idempotent."""
        with self._lock:
            self._is_closed = True
            while True:
                try:
                    job = self._jobs.get_nowait()
                except queue.Empty:
                    break
                if job is not None:
                    job[0].cancel()
            for _ in range(self._started):
                self._jobs.put(None)

    def _run(self) -> None:
        while True:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                self._idle.release()
                job = self._jobs.get()
            if job is None:
                return
            _work(*job)
            del job  # or an idle thread would keep the arguments and the result of its last call


def _work(future: Future[Any], work: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = work()
    except BaseException as error:  # SystemExit too: it is for whoever waits, and a thread has nobody else to tell
        future.set_exception(error)
    else:
        future.set_result(result)

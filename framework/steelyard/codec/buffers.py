"""Memory for large bodies, used again as soon as nobody looks at it.

A body of 1 MiB is too large for Python's own allocator and too large to stay in the C library's: freeing it gives the
pages back to the system, and the next one has to be made of fresh ones, which the kernel fills with zeros and maps one
fault at a time. An echo of 1 MiB spent half of its CPU time there. Bodies of one method are mostly of one size, so a
few of the last ones are kept, and one that nobody refers to is handed out again.

Nobody has to give anything back, which arrays could not do (they are views into a body, and live as long as their
owner likes): the reference count says whether a buffer is in use. Where it says something else than on CPython, no
buffer is ever used twice, and nothing else changes.
"""

from __future__ import annotations

import sys
from collections import deque

# From here on it pays; below, the C library keeps the memory by itself.
LARGE_BYTES = 256 * 1024
# What is kept, in buffers and in bytes: four bodies each way of a consumer that has four calls under way.
_MOST_BUFFERS = 16
_MOST_BYTES = 32 * 1024 * 1024
# What the C library is told of, in steps: gRPC has several copies of what is under way, in blocks of all sizes.
_TOLD_BYTES = 2 * 1024 * 1024


class Buffers:
    """``take(size)`` gives a bytearray of that size with anything in it. For any thread: whoever looks at a buffer has
    taken it out of the queue before."""

    def __init__(self, most_buffers: int = _MOST_BUFFERS, most_bytes: int = _MOST_BYTES) -> None:
        self._kept: deque[bytearray] = deque()
        self._most_buffers = most_buffers
        self._most_bytes = most_bytes
        self._told_bytes = 0
        # What the count says of a buffer that nobody uses depends on the interpreter, so it is asked.
        self._kept.append(bytearray(1))
        self._unused = self._oldest()[1] if getattr(sys, "_is_gil_enabled", lambda: True)() else -1

    def take(self, size: int) -> bytearray:
        kept = self._kept
        for _ in range(len(kept)):
            try:
                buffer, references = self._oldest()
            except IndexError:  # another thread has it
                break
            kept.append(buffer)
            if references == self._unused and len(buffer) == size:
                return buffer
        if size > self._most_bytes // 4:
            return bytearray(size)
        if size > self._told_bytes:
            self._tell(size)
        buffer = bytearray(size)
        kept.append(buffer)
        self._keep_bounds()
        return buffer

    def _tell(self, size: int) -> None:
        """Gives a block of *size* bytes back at once. The GNU C library learns by this, as by any array that a program
        gives back, to keep blocks up to this size; buffers that are kept here would never tell it. Without it gRPC's
        own copies of a body are made in fresh pages each time: 250 faults for 1 MiB there and back, and with it 4. What
        it then keeps at the end of its heap is twice the block at most. Other libraries learn nothing and lose nothing.
        In whole steps, since bodies may grow from one to the next."""
        self._told_bytes = -(-size // _TOLD_BYTES) * _TOLD_BYTES
        bytearray(self._told_bytes)

    def _oldest(self) -> tuple[bytearray, int]:
        """Taken out, with the number of references to it."""
        buffer = self._kept.popleft()
        return buffer, sys.getrefcount(buffer)

    def _keep_bounds(self) -> None:
        """The oldest go, in use or not: who uses them has them still."""
        kept = self._kept
        while len(kept) > self._most_buffers or sum(map(len, tuple(kept))) > self._most_bytes:
            try:
                kept.popleft()
            except IndexError:
                return


_buffers = Buffers()
take_buffer = _buffers.take

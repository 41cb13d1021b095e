"""Memory of large bodies is used again when nobody looks at it, and never before."""

from __future__ import annotations

import platform
import subprocess
import sys
import threading

import numpy as np
import pytest

from steelyard.codec import codec_for
from steelyard.codec.buffers import Buffers
from steelyard.model import MethodSpec, Parameter

SIZE = 300_000


def test_a_free_buffer_is_taken_again_and_a_used_one_is_not() -> None:
    buffers = Buffers()
    first = buffers.take(SIZE)
    mark = id(first)
    assert buffers.take(SIZE) is not first
    del first
    again = [buffers.take(SIZE) for _ in range(2)]
    assert mark in {id(buffer) for buffer in again}
    assert again[0] is not again[1]


@pytest.mark.parametrize("hold", [memoryview, lambda buffer: np.frombuffer(buffer, np.uint8), lambda buffer: [buffer]])
def test_whatever_looks_at_a_buffer_keeps_it(hold: object) -> None:
    buffers = Buffers()
    held = hold(buffers.take(SIZE))  # type: ignore[operator]
    others = [buffers.take(SIZE) for _ in range(4)]
    for other in others:
        other[:] = b"\xff" * SIZE
    seen = held[0] if isinstance(held, list) else held
    assert bytes(memoryview(seen)) == bytes(SIZE)


def test_only_the_same_size_fits_and_little_is_kept() -> None:
    buffers = Buffers(most_buffers=3, most_bytes=10 * SIZE)
    ids = {id(buffers.take(SIZE + at)) for at in range(5)}
    assert len(buffers._kept) == 3
    assert len(buffers.take(SIZE + 100)) == SIZE + 100
    assert ids
    large = Buffers(most_bytes=4 * SIZE)
    large.take(SIZE + 1)
    assert not large._kept  # one that would push out all others is not kept


def test_threads_never_share_a_buffer() -> None:
    buffers = Buffers(most_buffers=4, most_bytes=64 * SIZE)
    mixed: list[str] = []

    def work(mark: int) -> None:
        for _ in range(300):
            buffer = buffers.take(SIZE)
            buffer[0] = buffer[-1] = mark
            if (buffer[0], buffer[-1]) != (mark, mark):
                mixed.append("shared")

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not mixed


def test_an_encoded_array_stays_what_it_was() -> None:
    codec = codec_for(MethodSpec(name="f", parameters=(Parameter("x", np.ndarray),), returns=np.ndarray))
    arrays = [np.full(50_000, at, np.float64) for at in range(4)]
    bodies = [codec.encode_arguments((array,)) for array in arrays]
    decoded = [codec.decode_arguments(body)[0] for body in bodies]
    del bodies
    more = [codec.encode_result(np.full(50_000, 9.0)) for _ in range(4)]
    for array, came in zip(arrays, decoded, strict=True):
        assert np.array_equal(array, came)
    assert len({id(body) for body in more}) == 4


# In a thread, whose heap is new: what lies at the end of the process's own decides whether its end can be given back.
_FAULTS = """
import resource, threading
from steelyard.codec.buffers import Buffers

buffers = Buffers()
if {has_body}:
    buffers.take(1_000_000)

def run():
    faults = 0
    for turn in range(60):
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        blocks = [b"x" * 260_000 for _ in range(4)]
        del blocks
        if turn >= 10:
            faults += resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before
    print(faults)

thread = threading.Thread(target=run)
thread.start()
thread.join()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is the GNU C library that learns")
def test_after_a_large_body_blocks_of_its_parts_are_not_made_of_fresh_pages() -> None:
    """What is kept here is never given back, so the C library has to be told that such blocks come and go."""

    def faults(has_body: bool) -> int:
        script = _FAULTS.format(has_body=has_body)
        return int(subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout)

    assert faults(True) * 10 < faults(False)


def test_the_c_library_is_told_a_few_times_and_not_of_what_is_given_back_anyway() -> None:
    told = []

    class Telling(Buffers):
        def _tell(self, size: int) -> None:
            super()._tell(size)
            told.append(self._told_bytes)

    buffers = Telling(most_buffers=4, most_bytes=16 << 20)
    for size in range(1 << 20, 10 << 20, 1 << 18):
        assert len(buffers.take(size + 1)) == size + 1
    assert told == [2 << 20, 4 << 20]

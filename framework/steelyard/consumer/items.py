"""What a caller gives as a stream: an asynchronous iterator, or anything that can be iterated.

Lists are read where they are. Any other iterator may block, so its steps run in a thread, one after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from typing import Any

from steelyard.errors import InvalidArgument

_END = object()


def as_items(value: Any, name: str) -> AsyncIterator[Any]:
    """*value* as an asynchronous iterator. Raises InvalidArgument naming the parameter."""
    if isinstance(value, AsyncIterable):
        return aiter(value)
    if isinstance(value, list | tuple):
        return _listed(value)
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | bytearray):
        return _Stepped(iter(value))
    raise InvalidArgument(
        f"{name!r} is a stream: give an asynchronous iterator (or a list), not {type(value).__name__}"
    )


async def _listed(values: Iterable[Any]) -> AsyncIterator[Any]:
    for value in values:
        yield value


class _Stepped(AsyncIterator[Any]):
    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator = iterator

    async def __anext__(self) -> Any:
        item = await asyncio.to_thread(next, self._iterator, _END)
        if item is _END:
            raise StopAsyncIteration
        return item

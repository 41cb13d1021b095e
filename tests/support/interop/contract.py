"""``echo.proto`` as message classes, and its service as a contract and an implementation of ours."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Protocol

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc

from steelyard import Overloaded, current_call, method, service

HERE = Path(__file__).parent


def _messages() -> tuple[Any, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "echo.bin"
        assert protoc.main(["", f"-I{HERE}", f"--descriptor_set_out={out}", "echo.proto"]) == 0
        files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(files.file[0])
    found = [message_factory.GetMessageClass(pool.FindMessageTypeByName(f"interop.{name}")) for name in ("Ask", "Told")]
    return found[0], found[1]


Ask, Told = _messages()


@service("interop.Echo")
class Echo(Protocol):
    @method(timeout_s=5.0)
    async def Say(self, ask: Ask) -> Told: ...  # noqa: N802
    @method(timeout_s=5.0)
    def Count(self, ask: Ask) -> AsyncIterator[Told]: ...  # noqa: N802
    @method(timeout_s=5.0)
    async def Sum(self, asks: AsyncIterator[Ask]) -> Told: ...  # noqa: N802
    @method(timeout_s=5.0)
    def Chat(self, asks: AsyncIterator[Ask]) -> AsyncIterator[Told]: ...  # noqa: N802


class NoSuchThing(Exception):
    pass


class EchoModel:
    """Its words: ``wait`` takes its time, ``busy`` is refused, ``break`` raises; anything else is said again."""

    def __init__(self) -> None:
        self.cancelled = 0

    async def Say(self, ask: Ask) -> Told:  # noqa: N802
        if ask.text == "busy":
            raise Overloaded("come back later", retry_after_s=1.5)
        if ask.text == "break":
            raise ValueError("broken")
        if ask.text == "wait":
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        call = current_call()
        assert call is not None
        return Told(text=ask.text * ask.times, heard=dict(call.attachments))

    async def Count(self, ask: Ask) -> AsyncIterator[Told]:  # noqa: N802
        for number in range(ask.times):
            yield Told(text=f"{ask.text}{number}")
        if ask.text == "break":
            raise ValueError("broken")

    async def Sum(self, asks: AsyncIterator[Ask]) -> Told:  # noqa: N802
        return Told(text="".join([ask.text async for ask in asks]))

    async def Chat(self, asks: AsyncIterator[Ask]) -> AsyncIterator[Told]:  # noqa: N802
        async for ask in asks:
            yield Told(text=ask.text * ask.times)

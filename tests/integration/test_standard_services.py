"""What every gRPC client expects of a server: health from the services' life, and reflection."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.wrappers_pb2 import Int32Value, StringValue
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from support.interop.contract import Echo, EchoModel
from support.wires import until

from steelyard import Health, Provider, method, service

UNKNOWN, SERVING, NOT_SERVING, SERVICE_UNKNOWN = b"", b"\x08\x01", b"\x08\x02", b"\x08\x03"


def named(name: str) -> bytes:
    """A HealthCheckRequest."""
    return b"\x0a" + bytes([len(name)]) + name.encode()


@service("plain.Numbers", version="2.0", group="blue")
class Numbers:
    """Declared in Python alone: no .proto file has it. One of its methods is none of protobuf's."""

    @method
    async def spell(self, number: Int32Value) -> StringValue:
        return StringValue(value=str(number.value))

    @method
    async def twice(self, number: int) -> int:
        return 2 * number


@service("plain.Msgpack")
class Msgpack:
    @method
    async def twice(self, number: int) -> int:
        return 2 * number


async def test_health_follows_the_services_life() -> None:
    gate, is_well = asyncio.Event(), True

    async def warm_up() -> None:
        await gate.wait()

    async with (
        Provider("memory://", host="127.0.0.1") as provider,
        grpc.aio.insecure_channel(provider.address) as channel,
    ):
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch")
        assert await check(b"", timeout=20) == NOT_SERVING, "it serves nothing yet"
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await check(named("plain.Numbers"), timeout=20)
        assert raised.value.code() is grpc.StatusCode.NOT_FOUND
        watching = watch(named("plain.Numbers"), timeout=60)
        assert await watching.read() == SERVICE_UNKNOWN
        health = Health(lambda: is_well, every_s=0.05)
        exporting = asyncio.ensure_future(provider.export(Numbers(), warm_up=warm_up, health=health))
        assert await watching.read() == NOT_SERVING
        await provider.export(Msgpack())
        assert await check(b"", timeout=20) == SERVING, "one of its services is"
        gate.set()
        await exporting
        assert await watching.read() == SERVING
        for name in ("plain.Numbers", "blue/plain.Numbers:2.0", "plain.Msgpack"):
            assert await check(named(name), timeout=20) == SERVING
        listed = await channel.unary_unary("/grpc.health.v1.Health/List")(b"", timeout=20)
        assert all(name in listed for name in (b"plain.Msgpack", b"blue/plain.Numbers:2.0"))
        is_well = False
        assert await watching.read() == NOT_SERVING, "a service that has failed"
        watching_all = watch(b"", timeout=60)
        assert await watching_all.read() == SERVING
        closing = asyncio.ensure_future(provider.close())
        assert await watching_all.read() == NOT_SERVING, "a provider that drains"
        watching_all.cancel()
        watching.cancel()
        await closing


async def test_a_health_request_that_is_none() -> None:
    async with (
        Provider("memory://", host="127.0.0.1") as provider,
        grpc.aio.insecure_channel(provider.address) as channel,
    ):
        for name in ("Check", "Watch"):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await channel.unary_stream(f"/grpc.health.v1.Health/{name}")(b"\xff\xff", timeout=20).read()
            assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_watchers_that_leave_leave_nothing() -> None:
    async with (
        Provider("memory://", host="127.0.0.1") as provider,
        grpc.aio.insecure_channel(provider.address) as channel,
    ):
        before = len(asyncio.all_tasks())
        watching = [channel.unary_stream("/grpc.health.v1.Health/Watch")(b"") for _ in range(20)]
        for each in watching:
            await each.read()
        for each in watching:
            each.cancel()
        await until(lambda: len(asyncio.all_tasks()) <= before)


async def test_a_client_learns_all_it_needs_by_reflection() -> None:
    async with Provider("memory://", host="127.0.0.1") as provider:
        await provider.export(EchoModel(), contract=Echo)
        await provider.export(Numbers())
        await provider.export(Msgpack())
        names, told = await asyncio.to_thread(call_by_reflection, provider.address)
    assert set(names) == {"interop.Echo", "plain.Numbers"}
    assert told == ("abab", "7")


def call_by_reflection(address: str) -> Any:
    """As grpcurl does it, with grpcio-reflection's own client."""
    with grpc.insecure_channel(address) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        pool = DescriptorPool(database)
        told = []
        for path, fields in (("interop.Echo/Say", {"text": "ab", "times": 2}), ("plain.Numbers/spell", {"value": 7})):
            of, _, name = path.partition("/")
            found = pool.FindServiceByName(of).methods_by_name[name]
            request, response = GetMessageClass(found.input_type), GetMessageClass(found.output_type)
            call = channel.unary_unary(f"/{path}", request.SerializeToString, response.FromString)
            answer = call(request(**fields), timeout=20)
            told.append(answer.text if of == "interop.Echo" else answer.value)
        return database.get_services(), tuple(told)


async def test_the_newer_name_of_reflection_answers_alike() -> None:
    async with (
        Provider("memory://", host="127.0.0.1") as provider,
        grpc.aio.insecure_channel(provider.address) as channel,
    ):
        await provider.export(Numbers())
        ask = reflection_pb2.ServerReflectionRequest
        answers = {}
        for version in ("v1", "v1alpha"):
            call = channel.stream_stream(
                f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
                ask.SerializeToString,
                reflection_pb2.ServerReflectionResponse.FromString,
            )
            requests = [ask(list_services="*"), ask(file_containing_symbol="plain.Numbers"), ask(file_by_filename="no")]
            answers[version] = [answer async for answer in call(iter(requests), timeout=20)]
        assert answers["v1"] == answers["v1alpha"]
        services, file, missing = answers["v1"]
        assert [one.name for one in services.list_services_response.service] == ["plain.Numbers"]
        assert len(file.file_descriptor_response.file_descriptor_proto) == 2, "with the wrappers that it depends on"
        assert missing.error_response.error_code == 5

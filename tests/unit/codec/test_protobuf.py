"""Methods of protobuf messages: the body is the message and nothing else; errors are told apart by whose they are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.wrappers_pb2 import Int32Value, StringValue
from hypothesis import given
from hypothesis import strategies as st

from steelyard.codec import codec_for
from steelyard.errors import InternalError, InvalidArgument
from steelyard.service import method, service, service_spec


@service("p.P")
class Contract:
    @method(raises=KeyError)
    async def one(self, number: Int32Value) -> StringValue: ...
    @method
    async def many(self, number: Int32Value) -> AsyncIterator[StringValue]: ...


codec = codec_for(service_spec(Contract).methods["one"])
BAD = b"\xff\xff\xff"


@given(st.integers(-(2**31), 2**31 - 1), st.text())
def test_the_body_is_the_message(number: int, text: str) -> None:
    body = codec.encode_arguments((Int32Value(value=number),))
    assert body == Int32Value(value=number).SerializeToString()
    assert codec.decode_arguments(body) == (Int32Value(value=number),)
    reply = codec.encode_result(StringValue(value=text))
    assert reply == StringValue(value=text).SerializeToString()
    assert codec.decode_result(reply) == StringValue(value=text)


def test_items_of_a_stream() -> None:
    stream = codec_for(service_spec(Contract).methods["many"])
    assert stream.decode_result(stream.encode_result(StringValue(value="a"))).value == "a"


def test_a_message_made_at_run_time() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="ctr.proto", package="ctr", syntax="proto3")
    request = file.message_type.add(name="Request")
    request.field.add(name="user_id", number=1, type=3, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    made: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("ctr.Request"))

    def predict(self: Any, request: Any) -> Any: ...

    predict.__annotations__ = {"request": made, "return": made}
    contract = service("ctr.Ctr")(type("Ctr", (), {"predict": method(predict)}))
    own = codec_for(service_spec(contract).methods["predict"])
    (back,) = own.decode_arguments(own.encode_arguments((made(user_id=7),)))
    assert back.user_id == 7


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            (7,),
            "p.P.one: argument 'number': expected google.protobuf.wrappers_pb2.Int32Value, got int",
        ),
        (
            (StringValue(),),
            "p.P.one: argument 'number': expected google.protobuf.wrappers_pb2.Int32Value, "
            "got google.protobuf.wrappers_pb2.StringValue",
        ),
        ((), "p.P.one: takes 1 argument (number), got 0"),
        ((Int32Value(), 2), "p.P.one: takes 1 argument (number), got 2"),
    ],
)
def test_arguments_that_cannot_be_sent(args: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        codec.encode_arguments(args)
    assert caught.value.message == message


def test_a_result_that_cannot_be_sent() -> None:
    with pytest.raises(InternalError) as caught:
        codec.encode_result("x")
    assert caught.value.message == (
        "p.P.one: the result cannot be sent: expected google.protobuf.wrappers_pb2.StringValue, got str"
    )


def test_bodies_that_are_no_message() -> None:
    with pytest.raises(InvalidArgument) as caught:
        codec.decode_arguments(BAD)
    wrappers = "google.protobuf.wrappers_pb2"
    assert caught.value.message.startswith(f"p.P.one: argument 'number' is not a {wrappers}.Int32Value: Error parsing")
    with pytest.raises(InternalError) as broken:
        codec.decode_result(BAD)
    assert broken.value.message.startswith(f"p.P.one: the result is not a {wrappers}.StringValue: Error parsing")


@given(st.binary(max_size=60))
def test_random_bytes(body: bytes) -> None:
    with suppress(InvalidArgument):
        codec.decode_arguments(body)
    with suppress(InternalError):
        codec.decode_result(body)


def test_declared_exceptions_travel_as_everywhere() -> None:
    back = codec.decode_exception(codec.encode_exception(KeyError("x")) or b"")
    assert type(back) is KeyError
    assert back.args == ("x",)
    assert codec.encode_exception(ValueError()) is None

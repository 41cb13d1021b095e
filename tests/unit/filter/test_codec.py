"""The codec filter: what becomes of a handler's errors on their way out, and of a declared one on its way in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from steelyard.codec import codec_for
from steelyard.errors import InternalError, InvalidArgument, Overloaded, RemoteError, RpcError, Unavailable
from steelyard.filter import client_codec, server_codec
from steelyard.invoke import Invoker
from steelyard.model import Invocation, MethodSpec, Parameter, Reply


class NoSuchUser(Exception):
    pass


SPEC = MethodSpec(name="f", parameters=(Parameter("x", int),), returns=int, raises=(NoSuchUser,), service="t.S")
CODEC = codec_for(SPEC)
CODECS = {("t.S", "f"): CODEC}
CALL = Invocation("t.S", "f", (7,), CODEC.encode_arguments((7,)), spec=SPEC)


def answering(answer: Reply | BaseException) -> Invoker:
    async def invoke(_: Invocation) -> Reply:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return invoke


async def items(*given: object) -> AsyncIterator[object]:
    for item in given:
        if isinstance(item, BaseException):
            raise item
        yield item


@pytest.mark.parametrize("may_have_run", [True, False])
async def test_an_rpc_error_passes_as_it_is(may_have_run: bool) -> None:
    """A full handler pool, and a filter that refuses, say that the call has not run: it may then be tried elsewhere."""
    refusal = Overloaded("full", may_have_run=may_have_run)
    with pytest.raises(Overloaded) as caught:
        await server_codec(CODECS)(CALL, answering(refusal))
    assert caught.value is refusal
    assert caught.value.may_have_run is may_have_run
    assert caught.value.__cause__ is None


async def test_any_other_error_becomes_a_remote_error_that_has_run() -> None:
    with pytest.raises(RemoteError, match="KeyError: 3") as caught:
        await server_codec(CODECS)(CALL, answering(KeyError(3)))
    assert caught.value.may_have_run
    assert caught.value.details is None


class OwnKind(BaseException):
    pass


HANDLERS_OWN = [SystemExit(3), OwnKind("x"), asyncio.CancelledError()]


@pytest.mark.parametrize("error", HANDLERS_OWN, ids=lambda error: type(error).__name__)
async def test_what_would_end_the_process_or_the_task_is_an_error_of_the_handler(error: BaseException) -> None:
    """``sys.exit`` in a handler fails its call and not the provider; so does awaiting something that was cancelled."""
    with pytest.raises(RemoteError, match=type(error).__name__) as caught:
        await server_codec(CODECS)(CALL, answering(error))
    assert caught.value.may_have_run
    reply = await server_codec(CODECS)(CALL, answering(Reply(stream=items(1, error))))
    assert reply.stream is not None
    await anext(reply.stream)
    with pytest.raises(RemoteError, match=type(error).__name__):
        await anext(reply.stream)


async def test_a_call_that_is_cancelled_stays_cancelled() -> None:
    async def waits(_: Invocation) -> Reply:
        await asyncio.sleep(60)
        raise AssertionError

    task = asyncio.ensure_future(server_codec(CODECS)(CALL, waits))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_keyboard_is_not_a_handlers() -> None:
    coroutine = server_codec(CODECS)(CALL, answering(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        await coroutine


async def test_a_declared_error_makes_the_round_trip() -> None:
    with pytest.raises(RemoteError) as sent:
        await server_codec(CODECS)(CALL, answering(NoSuchUser(7)))
    with pytest.raises(NoSuchUser) as caught:
        await client_codec(CODECS)(CALL, answering(sent.value))
    assert caught.value.args == (7,)


class Unspeakable(NoSuchUser):
    def __str__(self) -> str:
        raise RuntimeError("no words")


async def test_an_error_that_cannot_be_shown_is_still_the_error_that_it_is() -> None:
    with pytest.raises(RemoteError) as sent:
        await server_codec(CODECS)(CALL, answering(Unspeakable(Unspeakable())))
    assert sent.value.message == "Unspeakable: <Unspeakable that cannot be shown>"
    with pytest.raises(NoSuchUser) as caught:
        await client_codec(CODECS)(CALL, answering(sent.value))
    assert caught.value.args == ("<Unspeakable that cannot be shown>",)


async def test_what_breaks_a_stream_has_run() -> None:
    for error in (Unavailable("of another call", may_have_run=False), KeyError(3), NoSuchUser(7)):
        reply = await server_codec(CODECS)(CALL, answering(Reply(stream=items(1, error))))
        assert reply.stream is not None
        assert CODEC.decode_result(await anext(reply.stream)) == 1
        with pytest.raises(RpcError) as caught:
            await anext(reply.stream)
        assert caught.value.may_have_run


async def test_arguments_and_results_that_do_not_fit() -> None:
    filter_ = server_codec(CODECS)
    with pytest.raises(InvalidArgument):
        await filter_(Invocation("t.S", "f", (), b"\xc1", spec=SPEC), answering(Reply(value=1)))
    with pytest.raises(InternalError) as caught:
        await filter_(CALL, answering(Reply(value=object())))
    assert caught.value.may_have_run

"""A stack is data until it is built: edited by name, ordered outermost first, and it explains itself."""

import pytest

from steelyard.errors import ConfigError
from steelyard.invoke import Invoker, Position, Stack
from steelyard.model import Invocation, Reply


def naming(name: str) -> Position:
    async def filter_(invocation: Invocation, following: Invoker) -> Reply:
        reply = await following(invocation)
        return Reply(value=(name, *reply.value))

    return Position(name, filter_, f"why {name}")


async def innermost(invocation: Invocation) -> Reply:
    return Reply(value=("end",))


async def order(stack: Stack) -> tuple[str, ...]:
    return (await stack.build(innermost)(Invocation("s", "m"))).value


async def test_the_first_position_is_the_outermost() -> None:
    assert await order(Stack(naming("a"), naming("b"))) == ("a", "b", "end")


async def test_an_empty_stack_is_its_innermost_invoker() -> None:
    assert await order(Stack()) == ("end",)


async def test_positions_are_edited_by_name_and_the_original_stays() -> None:
    stack = Stack(naming("a"), naming("c"))
    assert await order(stack.insert_before("c", naming("b"))) == ("a", "b", "c", "end")
    assert await order(stack.insert_after("a", naming("b"))) == ("a", "b", "c", "end")
    assert await order(stack.replace("a", naming("z"))) == ("z", "c", "end")
    assert await order(stack.remove("a")) == ("c", "end")
    assert stack.names == ("a", "c")


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"no filter named 'x' in this stack; there are: a, b"):
        Stack(naming("a"), naming("b")).remove("x")


def test_two_filters_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="two filters of one name in a stack: a"):
        Stack(naming("a"), naming("a"))


def test_its_repr_shows_the_order_and_the_reasons() -> None:
    assert repr(Stack(naming("a"), naming("long"))) == "Stack (outermost first)\n  a     why a\n  long  why long"

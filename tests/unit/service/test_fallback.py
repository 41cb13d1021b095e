"""A fallback that is a function takes the method's arguments, or is refused where it is declared."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

import pytest

from steelyard.errors import ContractError
from steelyard.service import method, service, service_spec
from steelyard.service.fallback import fallback_call


def declared(fallback: Any) -> type:
    @service("test.S")
    class S(Protocol):
        @method(fallback=fallback)
        async def rank(self, user: int, n: int = 3, *, boost: float = 1.0) -> list[int]: ...

    return S


class Cache:
    def find(self, user: int, n: int, boost: float) -> list[int]:
        return [user, n]

    def __call__(self, user: int, n: int, *, boost: float) -> list[int]:
        return [user]


def same(user: int, n: int = 3, *, boost: float = 1.0) -> list[Any]:
    return [user, n, boost]


GOOD: list[Callable[..., Any]] = [
    same,
    lambda *_: [],
    lambda user, n, boost: [user, n, boost],
    lambda a, b, c=0, d=0: [a],
    functools.partial(lambda prefix, *rest: [prefix, *rest], "p"),
    Cache().find,
    Cache(),
    max,  # a builtin that does not tell
]
BAD: list[Callable[..., Any]] = [
    lambda: [],
    lambda user: [user],
    lambda user, n, boost, more: [],
    lambda **everything: [],
    lambda user, n, *, speed: [],
    Cache.find,
]


@pytest.mark.parametrize("fallback", GOOD)
def test_what_takes_the_arguments_is_called_with_them(fallback: Callable[..., Any]) -> None:
    parameters = service_spec(declared(fallback)).methods["rank"].parameters
    call = fallback_call(fallback, parameters, "S.rank")
    if fallback is same:
        assert call(7, 5, 2.0) == [7, 5, 2.0]
    call(7, 5, 2.0)


@pytest.mark.parametrize("fallback", BAD)
def test_what_does_not_is_refused_by_the_contract(fallback: Callable[..., Any]) -> None:
    with pytest.raises(ContractError, match=r"rank: its fallback .* does not take .*\(user, n, boost\)"):
        service_spec(declared(fallback))


@pytest.mark.parametrize("fallback", [None, 0, [1, 2], "text", {}])
def test_a_value_is_a_value(fallback: object) -> None:
    assert service_spec(declared(fallback)).methods["rank"].fallback is fallback

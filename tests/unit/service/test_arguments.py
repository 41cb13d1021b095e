"""bind_arguments binds as Python binds, and complains in Python's words with the method's name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.errors import InvalidArgument
from steelyard.service import bind_arguments, method, service, service_spec


def nothing() -> Any:
    return ()


def one(a: int) -> Any:
    return (a,)


def two(a: int, b: int) -> Any:
    return (a, b)


def three(a: int, b: int, c: int) -> Any:
    return (a, b, c)


def defaults(a: int, b: int = 2, c: int = 3) -> Any:
    return (a, b, c)


def all_defaults(a: int = 1) -> Any:
    return (a,)


def keyword_only(a: int, *, b: int, c: int = 3) -> Any:
    return (a, b, c)


def only_keywords(*, a: int, b: int) -> Any:
    return (a, b)


FUNCTIONS = (nothing, one, two, three, defaults, all_defaults, keyword_only, only_keywords)


@service("s")
class Contract:
    @method
    def nothing(self) -> Any: ...
    @method
    def one(self, a: int) -> Any: ...
    @method
    def two(self, a: int, b: int) -> Any: ...
    @method
    def three(self, a: int, b: int, c: int) -> Any: ...
    @method
    def defaults(self, a: int, b: int = 2, c: int = 3) -> Any: ...
    @method
    def all_defaults(self, a: int = 1) -> Any: ...
    @method
    def keyword_only(self, a: int, *, b: int, c: int = 3) -> Any: ...
    @method
    def only_keywords(self, *, a: int, b: int) -> Any: ...


@given(
    function=st.sampled_from(FUNCTIONS),
    args=st.lists(st.integers(10, 99), max_size=5).map(tuple),
    kwargs=st.dictionaries(st.sampled_from("abcx"), st.integers(10, 99), max_size=3),
)
def test_as_python_does(function: Any, args: tuple[int, ...], kwargs: dict[str, int]) -> None:
    spec = service_spec(Contract).methods[function.__name__]
    try:
        expected = function(*args, **kwargs)
    except TypeError as error:
        with pytest.raises(InvalidArgument) as caught:
            bind_arguments(spec, args, kwargs)
        python = str(error).partition(" Did you mean")[0].removesuffix(".")  # Python 3.13 suggests names
        # When several things are wrong at once, which of them is told first is Python's own affair.
        if _wrongs(spec, args, kwargs) == 1:
            assert caught.value.message == f"s.{python}"
    else:
        assert bind_arguments(spec, args, kwargs) == expected


def _wrongs(spec: Any, args: tuple[int, ...], kwargs: dict[str, int]) -> int:
    positional = [each.name for each in spec.parameters if not each.is_keyword_only]
    names = [each.name for each in spec.parameters]
    doubled = [name for name in positional[: len(args)] if name in kwargs]
    unknown = [name for name in kwargs if name not in names]
    return (
        len(doubled)
        + len(unknown)
        + (len(args) > len(positional))
        + (0 if doubled or unknown else _lacks(spec, args, kwargs))
    )


def _lacks(spec: Any, args: tuple[int, ...], kwargs: dict[str, int]) -> int:
    kinds = {
        each.is_keyword_only
        for at, each in enumerate(spec.parameters)
        if each.is_required and each.name not in kwargs and (each.is_keyword_only or at >= len(args))
    }
    return len(kinds)


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "message"),
    [
        ("one", (), {}, "s.one() missing 1 required positional argument: 'a'"),
        ("two", (), {}, "s.two() missing 2 required positional arguments: 'a' and 'b'"),
        ("three", (), {}, "s.three() missing 3 required positional arguments: 'a', 'b', and 'c'"),
        ("keyword_only", (1,), {}, "s.keyword_only() missing 1 required keyword-only argument: 'b'"),
        ("only_keywords", (), {}, "s.only_keywords() missing 2 required keyword-only arguments: 'a' and 'b'"),
        ("one", (1,), {"x": 2}, "s.one() got an unexpected keyword argument 'x'"),
        ("one", (1,), {"a": 2}, "s.one() got multiple values for argument 'a'"),
        ("one", (1, 2), {}, "s.one() takes 1 positional argument but 2 were given"),
        ("nothing", (1,), {}, "s.nothing() takes 0 positional arguments but 1 was given"),
        ("defaults", (1, 2, 3, 4), {}, "s.defaults() takes from 1 to 3 positional arguments but 4 were given"),
        ("all_defaults", (1, 2), {}, "s.all_defaults() takes from 0 to 1 positional arguments but 2 were given"),
        (
            "only_keywords",
            (1,),
            {"a": 2},
            "s.only_keywords() takes 0 positional arguments but 1 positional argument "
            "(and 1 keyword-only argument) were given",
        ),
        ("only_keywords", (1, 2), {}, "s.only_keywords() takes 0 positional arguments but 2 were given"),
    ],
)
def test_each_message(name: str, args: tuple[int, ...], kwargs: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        bind_arguments(service_spec(Contract).methods[name], args, kwargs)
    assert caught.value.message == message


def test_complete_positional_arguments_are_handed_through() -> None:
    args = (1, 2)
    assert bind_arguments(service_spec(Contract).methods["two"], args, {}) is args

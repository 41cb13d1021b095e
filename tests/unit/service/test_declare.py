"""@service and @method: what they accept, what they refuse and in which words, and that they change nothing."""

from __future__ import annotations

import dataclasses
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import pytest

from steelyard.errors import ConfigError, ContractError
from steelyard.service import LAST_GOOD_REPLY, method, service, service_spec
from steelyard.service.declare import Settings


def test_a_decorated_class_and_function_stay_themselves() -> None:
    class Plain:
        async def ping(self, x: int) -> int:
            return x

    function = Plain.ping
    assert method(function) is function
    assert method(timeout_s=1)(function) is function
    assert service(Plain) is Plain
    assert service("a.B")(Plain) is Plain


def test_name_version_and_group() -> None:
    @service("ads.Ctr", version="1.0.0", group="gpu")
    class Ctr:
        @method
        def ping(self) -> None: ...

    spec = service_spec(Ctr)
    assert (spec.name, spec.version, spec.group, spec.key) == ("ads.Ctr", "1.0.0", "gpu", "gpu/ads.Ctr:1.0.0")


@pytest.mark.parametrize("decorate", [service, service(), service(version="")])
def test_without_a_name_it_is_called_after_the_class(decorate: object) -> None:
    class Ctr:
        @method
        def ping(self) -> None: ...

    spec = service_spec(decorate(Ctr))  # type: ignore[operator]
    assert spec.name == f"{__name__}.test_without_a_name_it_is_called_after_the_class.Ctr"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            ("a/b", "", ""),
            "@service: name must be a name of letters, digits and _ . $ - that starts with a letter or _, not 'a/b'",
        ),
        (
            ("", "", ""),
            "@service: name must be a name of letters, digits and _ . $ - that starts with a letter or _, not ''",
        ),
        (("a", "1:0", ""), "@service: version must be letters, digits and _ . + - (or empty), not '1:0'"),
        (("a", "*", ""), "@service: version must be letters, digits and _ . + - (or empty), not '*'"),
        (("a", "", "x y"), "@service: group must be letters, digits and _ . + - (or empty), not 'x y'"),
    ],
)
def test_what_a_service_key_cannot_hold(settings: tuple[str, str, str], message: str) -> None:
    name, version, group = settings
    with pytest.raises(ConfigError) as caught:

        @service(name, version=version, group=group)
        class Refused:
            pass

    assert str(caught.value) == message


def test_service_on_a_function() -> None:
    with pytest.raises(ContractError, match=r"@service goes on a class, not on <function "):
        service("a")(lambda: None)  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"timeout_s": 0},
            "@method: timeout_s must be a number of seconds greater than 0, or None, not 0",
        ),
        (
            {"timeout_s": float("inf")},
            "@method: timeout_s must be a number of seconds greater than 0, or None, not inf",
        ),
        (
            {"timeout_s": float("nan")},
            "@method: timeout_s must be a number of seconds greater than 0, or None, not nan",
        ),
        (
            {"timeout_s": "1"},
            "@method: timeout_s must be a number of seconds greater than 0, or None, not '1'",
        ),
        (
            {"timeout_s": True},
            "@method: timeout_s must be a number of seconds greater than 0, or None, not True",
        ),
        ({"idempotent": 1}, "@method: idempotent must be True or False, not 1"),
        ({"hash_key": 7}, "@method: hash_key must be the name of a parameter, or None, not 7"),
        ({"hash_key": "a b"}, "@method: hash_key must be the name of a parameter, or None, not 'a b'"),
        ({"priority": -1}, "@method: priority must be a whole number from 0 to 255, not -1"),
        ({"priority": 256}, "@method: priority must be a whole number from 0 to 255, not 256"),
        ({"priority": 1.0}, "@method: priority must be a whole number from 0 to 255, not 1.0"),
        ({"priority": False}, "@method: priority must be a whole number from 0 to 255, not False"),
        ({"raises": "KeyError"}, "@method: raises must be an exception class or a tuple of them, not 'KeyError'"),
        (
            {"raises": (KeyError, int)},
            "@method: raises must be an exception class or a tuple of them, not (<class 'KeyError'>, <class 'int'>)",
        ),
        (
            {"raises": KeyboardInterrupt},
            "@method: raises must be an exception class or a tuple of them, not <class 'KeyboardInterrupt'>",
        ),
    ],
)
def test_settings_are_checked_where_they_stand(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        method(**settings)  # type: ignore[call-overload]
    assert str(caught.value) == message


@pytest.mark.parametrize("wrap", [staticmethod, classmethod, property])
def test_method_goes_on_plain_functions(wrap: type) -> None:
    with pytest.raises(ContractError, match="@method goes on a function that takes self"):
        method(wrap(lambda self: None))


def test_service_straight_on_a_function() -> None:
    with pytest.raises(ContractError, match=r"@service goes on a class, not on <function "):

        @service  # type: ignore[type-var]
        def refused() -> None: ...


def _without_parameters() -> None: ...
def _annotated(user_id: int) -> None: ...
def _defaulted(user_id=7) -> None: ...  # type: ignore[no-untyped-def]
def _by_keyword(*, this) -> None: ...  # type: ignore[no-untyped-def]
def _other_name(this, user_id: int) -> None: ...  # type: ignore[no-untyped-def]
def _annotated_self(self: object, user_id: int) -> None: ...


@pytest.mark.parametrize("function", [_without_parameters, _annotated, _defaulted, _by_keyword])
def test_a_method_without_self_is_told_at_once(function: Callable[..., None]) -> None:
    with pytest.raises(ContractError, match=rf"{function.__name__}\(.*: a method takes self as its first parameter"):
        method(function)


@pytest.mark.parametrize("function", [_other_name, _annotated_self])
def test_self_may_be_called_or_annotated_otherwise(function: Callable[..., None]) -> None:
    assert method(function) is function
    assert method(hash_key="user_id")(function) is function


def test_a_hash_key_is_one_of_the_parameters() -> None:
    def one(self: object, user_id: int, top: int) -> None: ...
    def none(self: object) -> None: ...

    with pytest.raises(ContractError) as caught:
        method(hash_key="user")(one)
    assert str(caught.value) == (
        f"{__name__}.{one.__qualname__}: hash_key 'user' is not one of its parameters: user_id, top; "
        "did you mean user_id?"
    )
    with pytest.raises(ContractError, match=r"hash_key 'user' is not one of its parameters: none$"):
        method(hash_key="user")(none)
    with pytest.raises(ContractError, match="hash_key 'self'"):
        method(hash_key="self")(none)


def test_an_unknown_setting_is_answered_with_the_one_that_was_meant() -> None:
    with pytest.raises(
        TypeError, match=r"method\(\) got an unexpected keyword argument 'timeout'; did you mean timeout_s\?"
    ):
        method(timeout=1)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'zebra'$"):
        method(zebra=1)  # type: ignore[call-overload]


def test_the_decorator_shows_what_it_takes() -> None:
    parameters = inspect.signature(method).parameters
    assert list(parameters)[1:] == [
        field.name for field in dataclasses.fields(Settings) if field.name != "has_fallback"
    ]
    assert parameters["timeout_s"].annotation == "float | None"
    assert parameters["raises"].annotation == "type[Exception] | tuple[type[Exception], ...]"


def test_settings_reach_the_spec() -> None:
    class NoSuchUser(Exception):
        pass

    @service("a")
    class Contract:
        @method(timeout_s=2, idempotent=True, hash_key="user", priority=0, fallback=None, raises=NoSuchUser)
        def one(self, user: int) -> int | None: ...

        @method
        def two(self) -> None: ...

        @method(fallback=LAST_GOOD_REPLY, raises=(KeyError, ValueError, KeyError))
        def three(self) -> None: ...

    one, two, three = (service_spec(Contract).methods[name] for name in ("one", "two", "three"))
    assert (one.timeout_s, one.is_idempotent, one.hash_key, one.priority) == (2.0, True, "user", 0)
    assert isinstance(one.timeout_s, float)
    assert (one.has_fallback, one.fallback, one.raises) == (True, None, (NoSuchUser,))
    assert (two.timeout_s, two.is_idempotent, two.hash_key, two.priority) == (None, False, None, 1)
    assert (two.has_fallback, two.fallback, two.raises) == (False, None, ())
    assert (three.has_fallback, three.fallback, three.raises) == (True, LAST_GOOD_REPLY, (KeyError, ValueError))
    assert repr(LAST_GOOD_REPLY) == "LAST_GOOD_REPLY"


def test_both_orders_with_abstractmethod() -> None:
    @service("a")
    class Contract(ABC):
        @method
        @abstractmethod
        def one(self) -> None: ...

        @abstractmethod
        @method
        def two(self) -> None: ...

    assert set(service_spec(Contract).methods) == {"one", "two"}
    assert inspect.isabstract(Contract)


def test_a_runtime_checkable_contract_still_checks() -> None:
    """Notes on a protocol must not become members that an implementation has to have."""

    @service("a")
    @runtime_checkable
    class Contract(Protocol):
        @method
        def one(self) -> None: ...

    class Implementation:
        def one(self) -> None: ...

    service_spec(Contract)
    assert isinstance(Implementation(), Contract)
    assert issubclass(Implementation, Contract)
    assert not isinstance(object(), Contract)

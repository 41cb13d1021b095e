"""service_spec and implemented_spec: what is exported, inherited, cached and refused."""

from __future__ import annotations

import gc
import weakref
from typing import Any, Protocol

import pytest

from steelyard.errors import ContractError
from steelyard.service import LAST_GOOD_REPLY, implemented_spec, method, service, service_spec

HERE = __name__


@service("ads.Ctr", version="1.0.0")
class Ctr(Protocol):
    @method(hash_key="user_id")
    async def predict(self, user_id: int, top: int = 3) -> list[float]: ...

    async def private(self) -> None: ...


class Model(Ctr):
    async def predict(self, user_id: int, top: int = 3) -> list[float]:
        return [user_id] * top


@service("ads.Other")
class Other(Protocol):
    @method
    async def other(self) -> None: ...


def test_only_decorated_methods_are_exported() -> None:
    spec = service_spec(Ctr)
    assert list(spec.methods) == ["predict"]
    assert spec.contract is Ctr
    assert spec.methods["predict"].qualified_name == "ads.Ctr.predict"


def test_a_spec_is_read_once_and_kept_on_the_class() -> None:
    assert service_spec(Ctr) is service_spec(Ctr)
    assert service_spec(Model) is service_spec(Ctr)


def test_a_spec_dies_with_its_class() -> None:
    def short_lived() -> weakref.ref[type]:
        @service("short")
        class Short:
            @method
            def ping(self) -> None: ...

        service_spec(Short)
        return weakref.ref(Short)

    gone = short_lived()
    gc.collect()
    assert gone() is None


def test_a_derived_contract_has_its_own_spec_with_the_inherited_methods() -> None:
    @service("ads.Ctr2")
    class Wider(Ctr, Protocol):
        @method
        async def explain(self, user_id: int) -> str: ...

    assert list(service_spec(Wider).methods) == ["predict", "explain"]
    assert service_spec(Wider).methods["predict"].service == "ads.Ctr2"
    assert list(service_spec(Ctr).methods) == ["predict"]


def test_an_override_without_method_keeps_the_declaration_and_one_with_it_replaces_it() -> None:
    @service("a")
    class Base:
        @method(timeout_s=1)
        def kept(self, x: int) -> int: ...

        @method(timeout_s=1)
        def replaced(self, x: int) -> int: ...

    @service("b")
    class Derived(Base):
        def kept(self, x: Any) -> Any: ...

        @method(timeout_s=2)
        def replaced(self, x: int, y: int = 0) -> int: ...

    spec = service_spec(Derived)
    assert spec.methods["kept"].returns is int
    assert spec.methods["kept"].timeout_s == 1
    assert [each.name for each in spec.methods["replaced"].parameters] == ["x", "y"]
    assert spec.methods["replaced"].timeout_s == 2


def test_methods_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        service_spec(Ctr).methods["x"] = service_spec(Ctr).methods["predict"]  # type: ignore[index]


def test_implemented_by_inheritance_or_by_the_class_itself() -> None:
    @service("ads.Own")
    class Own(Model):
        @method
        async def more(self) -> None: ...

    assert implemented_spec(Model()) is service_spec(Ctr)
    assert implemented_spec(Own()).name == "ads.Own"


def test_two_contracts_are_ambiguous_unless_one_extends_the_other() -> None:
    @service("ads.Both")
    class Wider(Ctr, Protocol): ...

    class Fine(Wider, Ctr): ...

    class Both(Ctr, Other): ...

    assert implemented_spec(Fine()).name == "ads.Both"
    with pytest.raises(ContractError) as caught:
        implemented_spec(Both())
    assert str(caught.value) == (
        f"{HERE}.{Both.__qualname__} implements {HERE}.Ctr and {HERE}.Other; name the contract that is meant"
    )


@service("short")
class _Short:
    pass


class _NoService:
    pass


@service("private")
class _PrivateMethod:
    @method
    async def _reference(self) -> None: ...


@service("last")
class _LastGoodStream:
    @method(fallback=LAST_GOOD_REPLY)
    async def one(self) -> AsyncIteratorOfInt: ...


from collections.abc import AsyncIterator  # noqa: E402

AsyncIteratorOfInt = AsyncIterator[int]


@pytest.mark.parametrize(
    ("contract", "message"),
    [
        (_Short, f"{HERE}._Short exports no method; decorate those that should be with @method"),
        (
            _NoService,
            f"{HERE}._NoService is no service: neither it nor a class it inherits from is decorated with @service; "
            "inherit from the contract, or name it: export(it, contract=...)",
        ),
        (7, "a contract is a class, not 7"),
        (
            _PrivateMethod,
            f"{HERE}._PrivateMethod._reference: a name that starts with an underscore is private and cannot be "
            "exported",
        ),
        (
            _LastGoodStream,
            f"{HERE}._LastGoodStream.one: a stream has no last good reply; give a function as its fallback",
        ),
    ],
)
def test_what_is_no_contract(contract: Any, message: str) -> None:
    with pytest.raises(ContractError) as caught:
        service_spec(contract)
    assert str(caught.value) == message


def test_a_class_in_place_of_an_instance() -> None:
    with pytest.raises(ContractError, match=r"^Model is a class; an instance of it can be exported$"):
        implemented_spec(Model)

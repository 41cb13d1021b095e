"""Declared exceptions arrive as themselves, undeclared ones do not, and nothing but a declared class is ever made."""

from __future__ import annotations

import enum
import uuid
from dataclasses import dataclass
from typing import Any

import msgpack
import pytest

from steelyard.codec import MethodCodec, codec_for
from steelyard.codec.wire import pack
from steelyard.model import MethodSpec

HERE = __name__


class NoSuchUser(Exception):
    def __init__(self, user_id: int) -> None:
        super().__init__(f"no user {user_id}")
        self.user_id = user_id
        self._secret = "stays here"


class Deleted(NoSuchUser):
    pass


class KeywordOnly(Exception):
    def __init__(self, *, code: int) -> None:
        super().__init__()
        self.code = code


class Reason(enum.Enum):
    FULL = "full"


@dataclass
class Refused(Exception):
    reason: Reason
    by: uuid.UUID


@dataclass(slots=True)
class Slotted(Exception):
    limit: int


class Stubborn(Exception):
    def __new__(cls, *args: Any) -> Stubborn:
        if not args or args[0] != "please":
            raise RuntimeError("not like this")
        return super().__new__(cls, *args)


RAISES = (NoSuchUser, KeywordOnly, Refused, Slotted, KeyError, OSError, Stubborn)


def codec(*raises: type[Exception]) -> MethodCodec:
    return codec_for(MethodSpec(name="m", service="s.S", raises=raises or RAISES))


def arrive(error: BaseException) -> Exception | None:
    details = codec().encode_exception(error)
    return None if details is None else codec().decode_exception(details)


def test_as_itself_with_text_arguments_and_attributes() -> None:
    back = arrive(NoSuchUser(7))
    assert type(back) is NoSuchUser
    assert (str(back), back.args, back.user_id) == ("no user 7", ("no user 7",), 7)
    assert not hasattr(back, "_secret")


def test_a_subclass_arrives_as_the_nearest_declared_class() -> None:
    back = arrive(Deleted(7))
    assert type(back) is NoSuchUser
    assert back.user_id == 7
    details = codec(NoSuchUser, Deleted).encode_exception(Deleted(7)) or b""
    assert type(codec(NoSuchUser, Deleted).decode_exception(details)) is Deleted


@pytest.mark.parametrize("error", [KeyError("a"), KeyError(("a", 1)), OSError(2, "gone"), FileNotFoundError(2, "gone")])
def test_builtins(error: Exception) -> None:
    back = arrive(error)
    assert back is not None
    assert type(back) in (KeyError, OSError, FileNotFoundError)
    assert str(back).replace("[", "(").replace("]", ")") == str(error).replace("[", "(").replace("]", ")")


def test_keyword_only_constructors_and_dataclasses() -> None:
    back = arrive(KeywordOnly(code=3))
    assert isinstance(back, KeywordOnly)
    assert back.code == 3
    refused = Refused(Reason.FULL, uuid.UUID(int=1))
    assert arrive(refused) == refused
    slotted = arrive(Slotted(3))
    assert isinstance(slotted, Slotted)
    assert slotted.limit == 3


def test_what_has_no_wire_form_is_left_out_or_told_as_text() -> None:
    error = NoSuchUser(7)
    error.lock = object()  # type: ignore[attr-defined]
    error.args = (object, 1)
    back = arrive(error)
    assert back is not None
    assert back.args == ("<class 'object'>", 1)
    assert not hasattr(back, "lock")


@pytest.mark.parametrize("error", [ValueError("x"), Exception("x"), KeyboardInterrupt(), LookupError()])
def test_undeclared(error: BaseException) -> None:
    assert codec().encode_exception(error) is None


def test_the_same_contract_in_another_module_is_known_by_its_class_name() -> None:
    body = pack(["elsewhere.contracts:NoSuchUser", ["no user 7"], {"user_id": 7}])
    assert type(codec().decode_exception(body)) is NoSuchUser


def test_two_classes_of_one_name_are_told_apart_by_module_or_not_at_all() -> None:
    other = type("NoSuchUser", (Exception,), {"__module__": "b"})
    both = codec(NoSuchUser, other)
    assert type(both.decode_exception(pack(["b:NoSuchUser", [], {}]))) is other
    assert type(both.decode_exception(pack([f"{HERE}:NoSuchUser", [], {}]))) is NoSuchUser
    assert both.decode_exception(pack(["c:NoSuchUser", [], {}])) is None


@pytest.mark.parametrize(
    "details",
    [
        b"",
        b"\xc1",
        b"\x90",
        pack("x"),
        pack([1, 2, 3]),
        pack(["builtins:ValueError", ["x"], {}]),
        pack(["os:system", ["true"], {}]),
        pack([f"{HERE}:Stubborn", ["no"], {}]),
        pack([f"{HERE}:NoSuchUser", 7, {}]),
        pack([f"{HERE}:NoSuchUser", [], 7]),
        pack([f"{HERE}:NoSuchUser", [], {1: 2}]),
        pack([f"{HERE}:NoSuchUser", [], {f"f{n}": n for n in range(65)}]),
        pack([f"{HERE}:Refused", [], {"reason": "unknown", "by": uuid.UUID(int=1)}]),
        msgpack.packb([f"{HERE}:NoSuchUser", [], {"a": msgpack.ExtType(99, b"")}]),
    ],
)
def test_details_that_are_no_declared_exception(details: bytes) -> None:
    assert codec().decode_exception(details) is None


def test_private_names_and_methods_cannot_be_set_from_outside() -> None:
    fields = {
        "__class__": "x",
        "_secret": 1,
        "__cause__": 1,
        "with_traceback": 1,
        "add_note": 1,
        "not a name": 1,
        "fine": 1,
    }
    back = codec().decode_exception(pack([f"{HERE}:NoSuchUser", ["x"], fields]))
    assert back is not None
    assert vars(back) == {"fine": 1}
    assert back.with_traceback(None) is back

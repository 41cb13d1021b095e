"""Checked by mypy (test_typing.py), never run: decorating changes no type, so editors complete what was declared."""

from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Protocol, assert_type

import numpy as np

from steelyard.service import LAST_GOOD_REPLY, implemented_spec, method, service, service_spec


@service("ads.Ctr", version="1.0.0")
class Ctr(Protocol):
    @method(timeout_s=0.2, idempotent=True, hash_key="user_id", fallback=LAST_GOOD_REPLY, raises=KeyError)
    async def predict(self, user_id: int, features: np.ndarray) -> np.ndarray: ...

    @method
    def explain(self, user_id: int) -> AsyncIterator[str]: ...


@service
class Bare:
    def __init__(self, size: int) -> None:
        self.size = size

    @method
    def double(self, x: int, *, by: float = 2.0) -> float:
        return x * by


class Model:
    async def predict(self, user_id: int, features: np.ndarray) -> np.ndarray:
        return features

    async def explain(self, user_id: int) -> AsyncIterator[str]:
        yield str(user_id)


async def use(ctr: Ctr) -> None:
    predict: Callable[[int, np.ndarray], Coroutine[Any, Any, np.ndarray]] = ctr.predict
    assert_type(await predict(7, np.zeros(3)), np.ndarray)
    assert_type(await ctr.predict(user_id=7, features=np.zeros(3)), np.ndarray)
    async for text in ctr.explain(7):
        assert_type(text, str)


async def implementations_are_checked_against_the_protocol() -> None:
    await use(Model())


bare = Bare(size=3)
assert_type(bare, Bare)
assert_type(bare.size, int)
assert_type(bare.double(1, by=3.0), float)
double: Callable[[int], float] = bare.double

# A wrong use is an error: an ignore that is not needed is one too (warn_unused_ignores).
bare.double("x")  # type: ignore[arg-type]
bare.double(1, 2.0)  # type: ignore[call-arg]
Bare("x")  # type: ignore[arg-type]
method(timeout_s="x")  # type: ignore[call-overload]
method(raises=int)  # type: ignore[arg-type]
service_spec(Bare)
service_spec(Ctr)
service_spec("ads.Ctr")  # type: ignore[arg-type]
implemented_spec(bare)

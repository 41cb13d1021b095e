"""The implementation. It inherits from the contract, so a type checker compares the two; so does export()."""

from __future__ import annotations

from collections.abc import AsyncIterator

import numpy as np

from .contract import Ctr

FEATURES = ("position", "bid", "freshness", "match")
WEIGHTS = np.array([-1.2, 0.4, 0.7, 2.1])


class CtrModel(Ctr):
    """A logistic regression, small enough to be read."""

    async def predict(self, user_id: int, features: np.ndarray) -> np.ndarray:
        scores = np.atleast_2d(features) @ WEIGHTS + self._taste(user_id)
        return 1 / (1 + np.exp(-scores))

    async def explain(self, user_id: int) -> AsyncIterator[str]:
        yield f"user {user_id} starts at {self._taste(user_id):+.2f}"
        for name, weight in zip(FEATURES, WEIGHTS, strict=True):
            yield f"{name} counts {weight:+.1f}"

    @staticmethod
    def _taste(user_id: int) -> float:
        return (user_id % 7 - 3) / 10

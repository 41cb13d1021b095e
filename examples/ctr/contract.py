"""What both sides know: the methods, their types, and what may be done with a call."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

import numpy as np

from steelyard import method, service


@service("ads.Ctr", version="1.0.0")
class Ctr(Protocol):
    """How likely is a click?"""

    @method(timeout_s=0.2, idempotent=True, hash_key="user_id")
    async def predict(self, user_id: int, features: np.ndarray) -> np.ndarray:
        """A probability for each row of features. A user's calls go to one node, so that its caches stay warm."""
        ...

    @method
    def explain(self, user_id: int) -> AsyncIterator[str]:
        """Why, line by line: a server stream."""
        ...

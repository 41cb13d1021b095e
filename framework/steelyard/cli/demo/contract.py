"""The service of the demonstration: which digit is on this picture?"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from steelyard.service import method, service

NAME = "steelyard.demo.Digits"
VERSION = "1.0.0"


@service(NAME, version=VERSION)
class Digits(Protocol):
    """``user_id`` keeps a user's calls on one node; ``pixels`` are 64 grey values in [0, 16]."""

    @method(timeout_s=2.0, idempotent=True, hash_key="user_id")
    async def classify(self, user_id: int, pixels: np.ndarray) -> int: ...

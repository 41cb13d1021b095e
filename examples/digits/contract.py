"""Which digit is on a picture? Types of your own travel as they are, and so does an exception that is declared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from steelyard import method, service


@dataclass(frozen=True)
class Reading:
    digit: int
    confidence: float


class NotAPicture(Exception):
    """The pixels are not 8 x 8."""


@service("vision.Digits", version="1.0.0")
class Digits(Protocol):
    @method(timeout_s=1.0, idempotent=True, raises=NotAPicture)
    def read(self, pixels: np.ndarray) -> Reading:
        """Pixels are 8 x 8 grey values in [0, 16]."""
        ...

"""A support vector machine, trained when the provider starts, on the scans that scikit-learn brings along."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits
from sklearn.svm import SVC

from .contract import Digits, NotAPicture, Reading


def halves() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Pictures and labels: the first half to learn from, the second to ask about."""
    pictures, labels = load_digits(return_X_y=True)
    middle = len(labels) // 2
    return pictures[:middle], labels[:middle], pictures[middle:], labels[middle:]


class DigitModel(Digits):
    def __init__(self) -> None:
        pictures, labels, _, _ = halves()
        self._machine = SVC(gamma=0.001).fit(pictures, labels)

    def read(self, pixels: np.ndarray) -> Reading:
        """A plain method: it may block, so it runs in the provider's pool of threads."""
        if pixels.shape != (8, 8):
            raise NotAPicture(f"8 x 8 pixels, please, not {pixels.shape}")
        votes = self._machine.decision_function(pixels.reshape(1, 64))[0]
        chances = np.exp(votes) / np.exp(votes).sum()
        return Reading(int(votes.argmax()), float(chances.max()))

"""The model: a small classifier of handwritten digits, trained here and now on real ones.

The data are 1,797 scans of 8 x 8 pixels (the test part of "Optical Recognition of Handwritten Digits", UCI, E. Alpaydin
and C. Kaynak, 1998), which scikit-learn carries with it. Training needs scikit-learn; serving needs numpy alone, so
that eight processes start quickly.

A provider answers with the mean over many noisy copies of the picture (test-time augmentation). That is what makes a
call cost CPU time, and it is real work: the number of copies is the knob that fits it to the machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

HIDDEN = (256, 256)
EPOCHS = 12
NOISE = 1.0
HIGHEST_PIXEL = 16.0
MOST_COPIES = 4096
BATCH = 64
"""Copies at once: a layer of them stays in the fastest caches, so a call costs about the same on a busy machine."""


@dataclass(frozen=True, slots=True)
class Classifier:
    """A perceptron with hidden layers. ``noise`` holds one row of 64 values for each copy that is averaged over."""

    weights: tuple[Floats, ...]
    biases: tuple[Floats, ...]
    noise: Floats = field(default_factory=lambda: np.zeros((1, 64), np.float32))

    def with_copies(self, copies: int, seed: int = 0) -> Classifier:
        """The same model, averaging over *copies* noisy copies. The first copy is the picture itself."""
        noise = np.random.default_rng(seed).normal(0.0, NOISE, (copies, 64)).astype(np.float32)
        noise[0] = 0.0
        return Classifier(self.weights, self.biases, noise)

    def classify(self, pixels: NDArray[Any]) -> int:
        """The digit on a picture of 64 grey values in [0, 16]. Raises ValueError for another shape."""
        if pixels.size != 64:
            raise ValueError(f"a picture has 64 pixels, not {pixels.size}")
        picture = pixels.reshape(1, 64).astype(np.float32)
        votes = np.zeros(10)
        for start in range(0, len(self.noise), BATCH):
            votes += self._chances(picture + self.noise[start : start + BATCH]).sum(axis=0)
        return int(votes.argmax())

    def _chances(self, pictures: Floats) -> Floats:
        """For each picture, how likely it is each digit."""
        layer = pictures / np.float32(HIGHEST_PIXEL)
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            layer = np.maximum(layer @ weight + bias, 0.0)
        scores = layer @ self.weights[-1] + self.biases[-1]
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        chances: Floats = odds / odds.sum(axis=1, keepdims=True)
        return chances

    def save(self, path: Path) -> None:
        """Weights only; how many copies to average over is the server's business."""
        arrays = {f"w{at}": weight for at, weight in enumerate(self.weights)}
        arrays |= {f"b{at}": bias for at, bias in enumerate(self.biases)}
        np.savez(path, **arrays)  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: Path) -> Classifier:
        with np.load(path) as stored:
            layers = len(stored.files) // 2
            return cls(tuple(stored[f"w{at}"] for at in range(layers)), tuple(stored[f"b{at}"] for at in range(layers)))


@dataclass(frozen=True, slots=True)
class Trained:
    """A model, the rows it has not seen, and how often it is right on them."""

    model: Classifier
    rows: Floats
    labels: NDArray[np.int64]
    accuracy: float
    data_set: str


def train(on_progress: Callable[[float], None] = lambda _: None, seed: int = 0) -> Trained:
    """Trains on two thirds of the data; the other third becomes the requests. *on_progress* is told the part that is
    done, in [0, 1]. Raises ImportError without scikit-learn (extra ``examples``)."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    from sklearn.neural_network import MLPClassifier

    pixels, labels = load_digits(return_X_y=True)
    seen, unseen, seen_labels, unseen_labels = train_test_split(
        pixels.astype(np.float32), labels, test_size=1 / 3, random_state=seed, stratify=labels
    )
    network = MLPClassifier(HIDDEN, learning_rate_init=0.005, random_state=seed)
    for epoch in range(EPOCHS):
        network.partial_fit(seen / HIGHEST_PIXEL, seen_labels, classes=np.arange(10))
        on_progress((epoch + 1) / EPOCHS)
    model = Classifier(
        tuple(weight.astype(np.float32) for weight in network.coefs_),
        tuple(bias.astype(np.float32) for bias in network.intercepts_),
    )
    right = [model.classify(row) == label for row, label in zip(unseen, unseen_labels, strict=True)]
    return Trained(model, unseen, unseen_labels, float(np.mean(right)), "scikit-learn digits (UCI, 1998)")


def copies_for(model: Classifier, row: Floats, cost_s: float) -> int:
    """How many copies make one call cost *cost_s* seconds of this machine's CPU.

    CPU time and the best of several tries: what else the machine does must not make the model smaller.
    """

    def cost_of(copies: int) -> float:
        candidate = model.with_copies(copies)
        candidate.classify(row)
        best_s = float("inf")
        for _ in range(7):
            started_s = time.thread_time()
            for _ in range(4):
                candidate.classify(row)
            best_s = min(best_s, (time.thread_time() - started_s) / 4)
        return best_s

    copies = 64
    for _ in range(3):  # the cost is not quite proportional: caches
        copies = round(min(max(copies * cost_s / max(cost_of(copies), 1e-9), 1), MOST_COPIES))
    return copies

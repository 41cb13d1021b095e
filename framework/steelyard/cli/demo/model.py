"""The model: a small classifier of handwritten digits, trained here and now on real ones.

The data are 1,797 scans of 8 x 8 pixels (the test part of "Optical Recognition of Handwritten Digits", UCI, E. Alpaydin
and C. Kaynak, 1998), which scikit-learn carries with it. Training and serving need numpy alone: importing scikit-learn
takes longer than the rest of the preparation, and several times as long on a busy machine.

A provider answers with the mean over many noisy copies of the picture (test-time augmentation). That is what makes a
call cost CPU time, and it is real work: the number of copies is the knob that fits it to the machine.
"""

from __future__ import annotations

import importlib.util
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

DATA_PACKAGE = "sklearn"
HIDDEN = (256, 256)
EPOCHS = 12
LESSON = 100
"""Rows of a training step."""
RATE = 0.005
"""How far a step of the training goes."""
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
    done, in [0, 1], many times a second; what it raises ends the training. Raises ImportError without scikit-learn
    (extra ``examples``)."""
    pixels, labels = _digits()
    dice = np.random.default_rng(seed)
    order = dice.permutation(len(labels))
    seen, unseen = np.split(order, [len(order) * 2 // 3])
    model = _fitted(pixels[seen], labels[seen], dice, on_progress)
    right = [model.classify(row) == label for row, label in zip(pixels[unseen], labels[unseen], strict=True)]
    on_progress(1.0)
    return Trained(
        model, pixels[unseen], labels[unseen], float(np.mean(right)), "the digits in scikit-learn (UCI, 1998)"
    )


def _digits() -> tuple[Floats, NDArray[np.int64]]:
    """Pixels and labels. The package's file is read as it lies there: importing scikit-learn for it takes seconds."""
    package = importlib.util.find_spec(DATA_PACKAGE)
    if package is None:
        raise ModuleNotFoundError(f"No module named {DATA_PACKAGE!r}", name=DATA_PACKAGE)
    for folder in package.submodule_search_locations or ():
        path = Path(folder, "datasets", "data", "digits.csv.gz")
        if path.exists():
            table = np.loadtxt(path, delimiter=",", dtype=np.float32)
            return np.ascontiguousarray(table[:, :-1]), table[:, -1].astype(np.int64)
    from sklearn.datasets import load_digits  # another release keeps it elsewhere, and knows where

    pixels, labels = load_digits(return_X_y=True)
    return pixels.astype(np.float32), labels.astype(np.int64)


def _fitted(
    pixels: Floats, labels: NDArray[np.int64], dice: np.random.Generator, on_progress: Callable[[float], None]
) -> Classifier:
    """Mini-batches, cross entropy, Adam (Kingma and Ba, 2015), and first weights by Glorot and Bengio (2010)."""
    sizes = list(itertools.pairwise((pixels.shape[1], *HIDDEN, 10)))
    weights = [dice.uniform(-1, 1, size).astype(np.float32) * np.float32((6 / sum(size)) ** 0.5) for size in sizes]
    learned = weights + [np.zeros(width, np.float32) for _, width in sizes]
    means, squares = ([np.zeros_like(each) for each in learned] for _ in range(2))
    wanted = np.eye(10, dtype=np.float32)[labels]
    step = 0
    for epoch in range(EPOCHS):
        on_progress(epoch / EPOCHS)
        order = dice.permutation(len(labels))
        for start in range(0, len(order), LESSON):
            rows = order[start : start + LESSON]
            step += 1
            slopes = _slopes(learned, pixels[rows] / np.float32(HIGHEST_PIXEL), wanted[rows])
            for value, slope, mean, square in zip(learned, slopes, means, squares, strict=True):
                mean += (slope - mean) * np.float32(0.1)
                square += (slope * slope - square) * np.float32(0.001)
                scale = np.sqrt(square / np.float32(1 - 0.999**step)) + np.float32(1e-8)
                value -= np.float32(RATE / (1 - 0.9**step)) * mean / scale
    return Classifier(tuple(learned[: len(sizes)]), tuple(learned[len(sizes) :]))


def _slopes(learned: Sequence[Floats], batch: Floats, wanted: Floats) -> list[Floats]:
    """How the loss grows with each weight and bias: back propagation."""
    half = len(learned) // 2
    layers = [batch]
    for weight, bias in zip(learned[: half - 1], learned[half:-1], strict=True):
        layers.append(np.maximum(layers[-1] @ weight + bias, 0.0))
    scores = layers[-1] @ learned[half - 1] + learned[-1]
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    blame = (odds / odds.sum(axis=1, keepdims=True) - wanted) / np.float32(len(batch))
    weights: list[Floats] = []
    biases: list[Floats] = []
    for at in reversed(range(half)):
        weights.insert(0, layers[at].T @ blame)
        biases.insert(0, blame.sum(axis=0))
        blame = (blame @ learned[at].T) * (layers[at] > 0)
    return weights + biases


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

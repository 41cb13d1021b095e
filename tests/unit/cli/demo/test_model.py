from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from steelyard.cli.demo.model import MOST_COPIES, Classifier, Trained, _digits, copies_for, train
from steelyard.cli.demo.plan import ONE_THREAD


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """As in the demonstration: threads that wait for one another on a busy machine take a hundred times as long."""
    with threadpool_limits(1):
        yield


TOLD: list[float] = []


@pytest.fixture(scope="module")
def trained() -> Trained:
    TOLD.clear()
    return train(TOLD.append)


def test_it_learns_to_read(trained: Trained) -> None:
    assert trained.accuracy > 0.95
    assert len(trained.rows) == len(trained.labels) > 500


def test_progress_is_told_from_the_beginning_to_the_end(trained: Trained) -> None:
    assert sorted(TOLD) == TOLD
    assert (TOLD[0], TOLD[-1]) == (0.0, 1.0)
    assert len(TOLD) > 10


def test_who_is_told_can_end_it() -> None:
    class Enough(Exception):
        pass

    def enough(done: float) -> None:
        if done > 0.1:
            raise Enough

    with pytest.raises(Enough):
        train(enough)


def test_training_does_not_load_the_package_that_carries_the_data() -> None:
    program = "import sys; from steelyard.cli.demo.model import train; train(); print('sklearn' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={**os.environ, **ONE_THREAD}
    )
    assert done.stdout.strip() == "False"


def test_a_package_that_keeps_its_data_elsewhere_is_asked_for_them(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = _digits()
    monkeypatch.setattr(Path, "exists", lambda path: path.name != "digits.csv.gz")
    asked = _digits()
    assert all((one == other).all() and one.dtype == other.dtype for one, other in zip(read, asked, strict=True))


def test_averaging_over_noisy_copies_keeps_it_right(trained: Trained) -> None:
    model = trained.model.with_copies(130)
    right = [model.classify(row) == label for row, label in zip(trained.rows[:200], trained.labels, strict=False)]
    assert np.mean(right) > 0.95


def test_a_stored_model_answers_like_the_first(trained: Trained, tmp_path: Path) -> None:
    trained.model.save(tmp_path / "model.npz")
    loaded = Classifier.load(tmp_path / "model.npz")
    for row in trained.rows[:50]:
        assert loaded.classify(row) == trained.model.classify(row)


def test_another_shape_is_refused(trained: Trained) -> None:
    with pytest.raises(ValueError, match="64 pixels, not 9"):
        trained.model.classify(np.zeros((3, 3)))


def test_a_dearer_call_averages_over_more_copies(trained: Trained) -> None:
    cheap = copies_for(trained.model, trained.rows[0], 0.0001)
    dear = copies_for(trained.model, trained.rows[0], 0.001)
    assert 1 <= cheap < dear <= MOST_COPIES

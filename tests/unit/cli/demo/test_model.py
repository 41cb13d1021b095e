from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from steelyard.cli.demo.model import MOST_COPIES, Classifier, Trained, copies_for, train


@pytest.fixture(scope="module")
def trained() -> Trained:
    return train()


def test_it_learns_to_read(trained: Trained) -> None:
    assert trained.accuracy > 0.95
    assert len(trained.rows) == len(trained.labels) > 500


def test_progress_is_told_up_to_the_end() -> None:
    told: list[float] = []
    train(told.append)
    assert told == sorted(told)
    assert told[-1] == 1.0


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
    cheap = copies_for(trained.model, trained.rows[0], 0.0002)
    dear = copies_for(trained.model, trained.rows[0], 0.004)
    assert 1 <= cheap < dear <= MOST_COPIES

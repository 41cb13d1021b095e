"""How long the rest will take, and what a report that was stopped need not do again."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from unit.sim.worlds import scenario

from steelyard.sim.contender import contender
from steelyard.sim.progress import Step, effort, in_words, progress
from steelyard.sim.report import regenerate
from steelyard.sim.run import Job, Result
from steelyard.sim.unfinished import NAME, Unfinished


def job(policy: str, seed: int = 1, seconds: float = 20.0) -> Job:
    described = scenario(seconds=seconds)
    return Job(described, {}, contender(policy, described), seed)


def result(of: Job, cpu_s: float) -> Result:
    return Result(of.scenario.name, {}, of.contender.name, of.seed, {"success": 1.0}, 1000, 1000 / cpu_s)


def test_effort_is_calls_and_reports() -> None:
    described = scenario(seconds=100, traffic={"load": [[0, 0.0], [50, 1.0]]}, work={"mean_s": 0.01})
    calls = 4 / 0.01 * (25 + 50)
    assert effort(described) == pytest.approx(calls + 0.5 * 4 * 4 * 100)


def test_what_is_left_goes_by_size_and_by_policy() -> None:
    jobs = [job("random"), job("prequal"), job("random", seconds=40.0), job("prequal", seconds=40.0)]
    times = iter([0.0, 1.0, 5.0, 7.0, 15.0])
    results = [result(one, cpu_s) for one, cpu_s in zip(jobs, (1.0, 4.0, 2.0, 8.0), strict=True)]
    steps = list(progress(jobs, results, lambda: next(times)))
    assert [step.left_s for step in steps] == pytest.approx([5.0, 10.0, 8.0, 0.0])
    assert [(step.done, step.total) for step in steps] == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_in_words() -> None:
    assert [in_words(seconds) for seconds in (8.2, 700.0, 3 * 3600 + 290)] == ["8 s", "12 min", "3 h 05 min"]


def test_a_kept_run_is_taken_for_the_very_same_only(tmp_path: Path) -> None:
    one = job("p2c")
    Unfinished(tmp_path, "code").keep(one, result(one, 1.0))
    assert Unfinished(tmp_path, "code").of(one) == result(one, 1.0)
    assert Unfinished(tmp_path, "other code").of(one) is None
    for other in (job("p2c", seed=2), job("random"), job("p2c", seconds=21.0)):
        assert Unfinished(tmp_path, "code").of(other) is None
    with (tmp_path / NAME).open("a", encoding="utf-8") as file:
        file.write('["cut o')
    assert Unfinished(tmp_path, "code").of(one) is not None


def test_a_smaller_report_in_between_takes_nothing_from_a_larger_one(tmp_path: Path) -> None:
    small, large = job("p2c"), job("p2c", seconds=21.0)
    Unfinished(tmp_path, "code of old").keep(small, result(small, 1.0))
    for one in (small, large):
        Unfinished(tmp_path, "code").keep(one, result(one, 1.0))
    Unfinished(tmp_path, "code").finished([small])
    assert [Unfinished(tmp_path, "code").of(one) for one in (small, large)] == [None, result(large, 1.0)]
    assert Unfinished(tmp_path, "code of old").of(small) is None, "nobody can use it any more"
    Unfinished(tmp_path, "code").finished([large])
    assert not (tmp_path / NAME).exists()


def test_a_report_that_was_stopped_goes_on(tmp_path: Path) -> None:
    kept: list[int] = []
    steps: list[Step] = []

    def stop(step: Step) -> None:
        if step.done == 2:
            raise KeyboardInterrupt

    asked = {"names": ("sparse-calls",), "policies": ("random", "p2c"), "seeds": 2}
    with pytest.raises(KeyboardInterrupt):
        regenerate(tmp_path, **asked, on_step=stop)  # type: ignore[arg-type]
    regenerate(tmp_path, **asked, on_kept=kept.append, on_step=steps.append)  # type: ignore[arg-type]
    assert kept == [2]
    assert [step.total for step in steps] == [2, 2]
    assert not (tmp_path / NAME).exists()
    stopped = (tmp_path / "results.csv").read_text(encoding="utf-8")
    regenerate(tmp_path, **asked)  # type: ignore[arg-type]
    assert (tmp_path / "results.csv").read_text(encoding="utf-8") == stopped


@pytest.mark.parametrize(
    "spoilt",
    [
        b'["cut o',
        b"7\n",
        b"null\n",
        b"[[], {}]\n",
        b'["a", 7]\n',
        b'["a", {"seed": 1}]\n',
        b"\xff\xfe\n",
        b"\n\n",
        b"\0\0\0",
    ],
)
def test_lines_that_are_spoilt_cost_no_others(tmp_path: Path, spoilt: bytes) -> None:
    one, other = job("p2c"), job("random")
    Unfinished(tmp_path, "code").keep(one, result(one, 1.0))
    with (tmp_path / NAME).open("ab") as file:
        file.write(spoilt)
    Unfinished(tmp_path, "code").keep(other, result(other, 1.0))
    unfinished = Unfinished(tmp_path, "code")
    assert unfinished.of(one) == result(one, 1.0)
    assert unfinished.of(other) == result(other, 1.0)


def test_a_report_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"names": ("sparse-calls",), "policies": ("random",), "seeds": 1}
    regenerate(tmp_path, **asked)  # type: ignore[arg-type]
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(path: Path, text: str, encoding: str) -> None:
        path.write_bytes(text[: len(text) // 2].encode(encoding))
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", full)
        with pytest.raises(OSError, match="No space left"):
            regenerate(tmp_path, **asked)  # type: ignore[arg-type]
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name != NAME} == before
    kept: list[int] = []
    regenerate(tmp_path, **asked, on_kept=kept.append)  # type: ignore[arg-type]
    assert kept == [1]

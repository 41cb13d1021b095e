"""Unfinished: the runs of a report that was stopped, so that the next one goes on there.

A kept run is taken only where everything that it depends on is the same: the code, down to the last file of both
packages; Python and numpy; the scenario, with whatever trace it reads; the policy with its settings; the seed. All that
is in one digest. A change of code that cannot matter makes the kept runs worthless as well: to find out which changes
matter is what the report is for.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Iterator
from contextlib import suppress
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypedDict

import msgspec

import steelyard_registry

from .run import Job, Result

NAME = "results.part.jsonl"


class Kept(TypedDict):
    """A result's numbers."""

    scenario: str
    variant: dict[str, Any]
    policy: str
    seed: int
    metrics: dict[str, float]
    calls: int
    calls_per_s: float


class Unfinished:
    """Runs kept in *folder*, one line each, by the digest of what they depend on, until they are ``finished``."""

    def __init__(self, folder: Path, code: str | None = None) -> None:
        self._path = folder / NAME
        self._code = code or code_digest()
        data = self._path.read_bytes() if self._path.is_file() else b""
        self._kept = dict(_lines(data))
        self._is_cut = bool(data) and not data.endswith(b"\n")

    def of(self, job: Job) -> Result | None:
        """What *job* came to, if it has been run."""
        kept = self._kept.get(self._digest(job))
        return None if kept is None else Result(**kept)

    def keep(self, job: Job, result: Result) -> None:
        kept = Kept(
            scenario=result.scenario,
            variant=dict(result.variant),
            policy=result.policy,
            seed=result.seed,
            metrics=dict(result.metrics),
            calls=result.calls,
            calls_per_s=result.calls_per_s,
        )
        with self._path.open("a", encoding="utf-8") as file:
            file.write("\n" * self._is_cut + json.dumps([self._digest(job), kept]) + "\n")
        self._is_cut = False

    def finished(self, jobs: Iterable[Job]) -> None:
        """*jobs* are in the report. Others of the same code stay, for a larger report that was stopped."""
        over = {self._digest(job) for job in jobs}
        data = self._path.read_bytes() if self._path.is_file() else b""
        left = [line for line in _lines(data) if line[0] not in over and line[0].rpartition(" ")[0] == self._code]
        if left:
            self._path.write_text("".join(f"{json.dumps(line)}\n" for line in left), encoding="utf-8")
        else:
            self._path.unlink(missing_ok=True)

    def _digest(self, job: Job) -> str:
        told = sha256(msgspec.json.encode([job.scenario, job.variant, job.contender.policy, job.contender.settings]))
        told.update(f"\n{job.contender.name}\n{job.seed}".encode())
        trace = job.scenario.traffic.trace
        if trace is not None and Path(trace).is_file():
            told.update(Path(trace).read_bytes())
        return f"{self._code} {told.hexdigest()}"


def code_digest() -> str:
    """Of every source file of both packages, and of the versions of what computes with them."""
    told = sha256(f"{platform.python_version()} numpy {version('numpy')}".encode())
    for root in (Path(__file__).parents[1], Path(str(steelyard_registry.__file__)).parent):
        for path in sorted(root.rglob("*.py")):
            told.update(f"\n{path.relative_to(root)}\n".encode())
            told.update(path.read_bytes())
    return told.hexdigest()


def _lines(data: bytes) -> Iterator[tuple[str, Kept]]:
    """Of what a kill, a full disk or an editor has spoilt, the lines that are whole."""
    for line in data.splitlines():
        with suppress(ValueError):
            yield msgspec.convert(json.loads(line), tuple[str, Kept])

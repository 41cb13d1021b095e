"""Unfinished: the runs of a report that was stopped, so that the next one goes on there.

A kept run is taken only where everything that it depends on is the same: the code, down to the last file of both
packages; Python and numpy; the scenario, with whatever trace it reads; the policy with its settings; the seed. All that
is in one digest. A change of code that cannot matter makes the kept runs worthless as well: to find out which changes
matter is what the report is for.
"""

from __future__ import annotations

import json
import platform
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

import steelyard_registry

from .run import Job, Result

NAME = "results.part.jsonl"


class Unfinished:
    """Runs kept in *folder*, one line each, by the digest of what they depend on. ``finished()`` removes them."""

    def __init__(self, folder: Path, code: str | None = None) -> None:
        self._path = folder / NAME
        self._code = code or code_digest()
        self._kept = dict(_lines(self._path))

    def of(self, job: Job) -> Result | None:
        """What *job* came to, if it has been run."""
        kept = self._kept.get(self._digest(job))
        return None if kept is None else Result(**kept)

    def keep(self, job: Job, result: Result) -> None:
        kept = {
            "scenario": result.scenario,
            "variant": dict(result.variant),
            "policy": result.policy,
            "seed": result.seed,
            "metrics": dict(result.metrics),
            "calls": result.calls,
            "calls_per_s": result.calls_per_s,
        }
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([self._digest(job), kept]) + "\n")

    def finished(self) -> None:
        self._path.unlink(missing_ok=True)

    def _digest(self, job: Job) -> str:
        told = sha256(self._code.encode())
        told.update(msgspec.json.encode([job.scenario, job.variant, job.contender.policy, job.contender.settings]))
        told.update(f"\n{job.contender.name}\n{job.seed}".encode())
        trace = job.scenario.traffic.trace
        if trace is not None and Path(trace).is_file():
            told.update(Path(trace).read_bytes())
        return told.hexdigest()


def code_digest() -> str:
    """Of every source file of both packages, and of the versions of what computes with them."""
    told = sha256(f"{platform.python_version()} numpy {version('numpy')}".encode())
    for root in (Path(__file__).parents[1], Path(str(steelyard_registry.__file__)).parent):
        for path in sorted(root.rglob("*.py")):
            told.update(f"\n{path.relative_to(root)}\n".encode())
            told.update(path.read_bytes())
    return told.hexdigest()


def _lines(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """A last line that was cut off is not there."""
    if not path.is_file():
        return []
    found: list[tuple[str, dict[str, Any]]] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            digest, kept = json.loads(line)
        except ValueError:
            continue
        found.append((digest, kept))
    return found

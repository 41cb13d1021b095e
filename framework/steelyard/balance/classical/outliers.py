"""Outlier ejection as in gRFC A50: nodes that succeed far less often than the others are left out for a while.

Two rules, looked at once per interval. Success rate: a node with enough calls whose rate is below mean - 1.9 * standard
deviation of all such nodes. Failure percentage: a node with enough calls that fails more than 85 %. At most a tenth of
the nodes (but one at least) are out at a time. An ejection lasts 30 s times how often it was ejected lately; each quiet
interval lowers that count.

Known limits, which the simulator shows beside the dual law: all or nothing (no sliding), a deviation test that one bad
node among few inflates for itself, and a return to full traffic without a probe.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .trace import Traced

INTERVAL_S = 10.0
BASE_EJECTION_S = 30.0
MAX_EJECTION_S = 300.0
MAX_EJECTED = 0.10
STDEV_FACTOR = 1.9
FAILURE_THRESHOLD = 0.85
LEAST_HOSTS = 5
RATE_VOLUME = 100
FAILURE_VOLUME = 50


@dataclass(slots=True)
class Record:
    ok: int = 0
    failed: int = 0
    ejected_at_s: float | None = None
    times: int = 0


class OutlierEjection:
    """Counts calls and says who is out. ``look`` is called at every tick and acts once per interval."""

    def __init__(self) -> None:
        self._records: dict[Traced, Record] = {}
        self._looked_at_s: float | None = None

    def count(self, candidate: Traced, *, is_ok: bool) -> None:
        record = self._records.setdefault(candidate, Record())
        if is_ok:
            record.ok += 1
        else:
            record.failed += 1

    def is_out(self, candidate: Traced) -> bool:
        record = self._records.get(candidate)
        return record is not None and record.ejected_at_s is not None

    def forget(self, members: Sequence[Traced]) -> None:
        """Keep the records of *members* only."""
        self._records = {member: record for member in members if (record := self._records.get(member)) is not None}

    def look(self, members: Sequence[Traced], now_s: float) -> bool:
        """True when who is out has changed."""
        if self._looked_at_s is None:
            self._looked_at_s = now_s
        if now_s - self._looked_at_s < INTERVAL_S:
            return False
        self._looked_at_s = now_s
        records = [self._records.setdefault(member, Record()) for member in members]
        before = [record.ejected_at_s for record in records]
        limit = max(1, int(len(records) * MAX_EJECTED))
        for record in [*self._by_rate(records), *self._by_failures(records)]:
            if record.ejected_at_s is None and sum(one.ejected_at_s is not None for one in records) < limit:
                record.ejected_at_s = now_s
                record.times += 1
        for record, ejected_at_s in zip(records, before, strict=True):
            self._settle(record, ejected_at_s, now_s)
        return before != [record.ejected_at_s for record in records]

    def _settle(self, record: Record, ejected_at_s: float | None, now_s: float) -> None:
        record.ok = record.failed = 0
        if record.ejected_at_s is None:
            record.times = max(0, record.times - 1)
        elif ejected_at_s is not None:
            lasts_s = min(BASE_EJECTION_S * record.times, max(BASE_EJECTION_S, MAX_EJECTION_S))
            if now_s - ejected_at_s >= lasts_s:
                record.ejected_at_s = None

    def _by_rate(self, records: Sequence[Record]) -> list[Record]:
        rated = [
            (record.ok / (record.ok + record.failed), record)
            for record in records
            if record.ok + record.failed >= RATE_VOLUME
        ]
        if len(rated) < LEAST_HOSTS:
            return []
        mean = sum(rate for rate, _ in rated) / len(rated)
        deviation = math.sqrt(sum((rate - mean) ** 2 for rate, _ in rated) / len(rated))
        return [record for rate, record in rated if rate < mean - deviation * STDEV_FACTOR]

    def _by_failures(self, records: Sequence[Record]) -> list[Record]:
        judged = [record for record in records if record.ok + record.failed >= FAILURE_VOLUME]
        if len(judged) < LEAST_HOSTS:
            return []
        return [record for record in judged if record.failed / (record.ok + record.failed) > FAILURE_THRESHOLD]

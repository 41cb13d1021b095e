"""The bars of the rpc bench, with a verdict each. A ratio is of medians of one run; nothing here is measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

BASE = "grpc.aio unary, uvloop"
PLAIN = "grpc.aio unary, asyncio"
RAW = "raw uvloop, a task a call"
THRIFT = "thriftpy2, 16 threads"


@dataclass(frozen=True)
class Bar:
    """``value`` None: it was not measured. ``is_least``: the bound is the least that will do, not the most."""

    what: str
    value: float | None
    bound: float
    is_least: bool

    @property
    def is_met(self) -> bool | None:
        if self.value is None:
            return None
        return self.value >= self.bound if self.is_least else self.value <= self.bound

    def line(self) -> str:
        verdict = {None: "not measured", True: "met", False: "NOT MET"}[self.is_met]
        measured = "-" if self.value is None else f"{self.value:,.2f}"
        return f"  {self.what:<72} {measured:>9} {'>=' if self.is_least else '<='} {self.bound:<6g} {verdict}"


def bars(rows: Sequence[Mapping[str, Any]], edges: Mapping[str, float]) -> list[Bar]:
    """*rows* are bench_rpc's medians, *edges* what bench_wire found."""

    def of(peer: str, callers: int, field: str) -> float | None:
        return next((row[field] for row in rows if (row["peer"], row["callers"]) == (peer, callers)), None)

    def ratio(one: float | None, other: float | None) -> float | None:
        return one / other if one is not None and other else None

    def calls(peer: str) -> float | None:
        return of(peer, 64, "calls_per_s")

    whole, bare = of("steelyard tcp", 64, "client_cpu_us"), of("wire tcp", 64, "client_cpu_us")
    added = whole - bare if whole is not None and bare is not None else None
    lone, raw = of("steelyard tcp", 1, "p50_us"), of(RAW, 1, "p50_us")
    found = [
        Bar("64 callers, grpc: calls/s x grpc.aio + uvloop", ratio(calls("steelyard grpc"), calls(BASE)), 6, True),
        Bar("64 callers, tcp: calls/s x grpc.aio + uvloop", ratio(calls("steelyard tcp"), calls(BASE)), 8, True),
        Bar("64 callers, tcp: calls/s x thriftpy2's bare echo", ratio(calls("steelyard tcp"), calls(THRIFT)), 1, True),
        Bar(
            "1 caller, grpc: p50 x grpc.aio",
            ratio(of("steelyard grpc", 1, "p50_us"), of(BASE, 1, "p50_us")),
            0.85,
            False,
        ),
        Bar("1 caller, tcp: p50 x raw uvloop", ratio(lone, raw), 1.6, False),
        Bar("balancing and filters: consumer CPU us a call (tcp, over the bare wire)", added, 10, False),
    ]
    for carrier in ("tcp", "uds", "grpc"):
        found += [
            Bar(
                f"1 MiB array echo, 4 at a time, {carrier}: x grpc.aio",
                edges.get(f"array steelyard {carrier}, x grpc.aio"),
                2,
                True,
            ),
            Bar(
                f"small calls beside 1 MiB calls, {carrier}: p99 x alone",
                edges.get(f"small calls {carrier}, p99 beside / alone"),
                2,
                False,
            ),
        ]
    idle = next((value for name, value in edges.items() if name.startswith("idle connections tcp")), None)
    found.append(Bar("an idle tcp connection: provider's KB", None if idle is None else idle / 1000, 20, False))
    return found


def shown(found: Sequence[Bar]) -> str:
    met = sum(bar.is_met is True for bar in found)
    return "\n".join(("The bars:", *(bar.line() for bar in found), f"{met} of {len(found)} met"))


def records(found: Sequence[Bar]) -> list[dict[str, Any]]:
    return [{**asdict(bar), "is_met": bar.is_met} for bar in found]

"""Scenario: what is simulated, as a file a person writes.

    load_scenario("sinkhole")          one that ships
    load_scenario("mine/spike.toml")   one's own

Everything is checked when it is read; an error names the file, the place in it and what was expected. Times are
seconds of virtual time, and rates are per second. Loads are relative to the fleet's capacity: the sum of cores x speed
over the mean work of a call.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

Positive = Annotated[float, msgspec.Meta(gt=0.0)]
NotNegative = Annotated[float, msgspec.Meta(ge=0.0)]
Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
Count = Annotated[int, msgspec.Meta(ge=1)]
Target = str | list[str]


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Frozen, by name only, and a misspelled field is an error."""


class NodeGroup(_Part, frozen=True, kw_only=True):
    """``count`` alike machines. One call uses at most one core, at ``speed``.

    ``fifo`` runs ``slots`` calls at a time [one per core] and lets the others wait; ``sharing`` runs all it has at once
    and divides the cores among them (an asyncio or thread-per-call server). ``batching`` is a GPU that runs up to
    ``slots`` calls together: a batch of n takes ``1 + marginal * (n - 1)`` times as long as one call.

    ``quota`` throttles as Linux does: so many cores' worth of CPU time per 100 ms, then nothing until the next 100 ms.
    ``reports_as`` is the resource's name. ``saturates`` > 1 makes a reported utilization that flattens towards 1 long
    before the node is full (what a GPU's "busy" share does): u -> 1 - (1 - u) ** saturates.
    """

    name: str
    count: Count = 1
    kind: Literal["cpu", "gpu"] = "cpu"
    cores: Positive = 1.0
    speed: Positive = 1.0
    discipline: Literal["fifo", "sharing", "batching"] = "fifo"
    slots: Count | None = None
    queue_limit: Annotated[int, msgspec.Meta(ge=0)] = 1000
    marginal: Share = 0.1
    quota: Positive | None = None
    weight: Annotated[int, msgspec.Meta(ge=0)] = 100
    zone: str = ""
    cache_keys: Annotated[int, msgspec.Meta(ge=0)] = 0
    reports_as: str | None = None
    saturates: Positive = 1.0
    joins_later: bool = False


class Traffic(_Part, frozen=True, kw_only=True):
    """``load`` is a number, or points [second, load] joined by lines (a second given twice is a jump).

    ``keys`` different keys with popularity 1 / rank**zipf; 0: calls without a key. ``closed`` callers each wait for
    their reply and think for ``think_s`` instead of arriving at a rate. ``trace`` is a CSV file of
    ``seconds[,key[,work]]`` that replaces both. ``priorities`` are running shares: [0.2, 0.8] makes 20 % of the calls
    priority 0, 60 % priority 1 and the rest 2.
    """

    load: Positive | list[tuple[NotNegative, NotNegative]] = 0.6
    keys: Annotated[int, msgspec.Meta(ge=0)] = 0
    zipf: NotNegative = 0.9
    closed: Count | None = None
    think_s: Positive = 1.0
    trace: str | None = None
    priorities: list[Share] = []


class Work(_Part, frozen=True, kw_only=True):
    """What a call costs on one core of speed 1, and what a cached answer costs relative to that."""

    mean_s: Positive = 0.02
    distribution: Literal["lognormal", "cut_normal", "pareto", "exponential", "constant"] = "lognormal"
    shape: Positive = 0.5
    hit_cost: Share = 1.0


class Consumers(_Part, frozen=True, kw_only=True):
    """``count`` policy objects, each with its own view. ``delay_s`` is one way of the network, per consumer between 0.5
    and 1.5 times that; 0 leaves the network out. ``subset`` nodes are seen by each (None: all). News of the registry
    takes up to ``registry_delay_s``."""

    count: Count = 4
    delay_s: NotNegative = 0.0
    subset: Count | None = None
    timeout_s: Positive = 1.0
    retries: Annotated[int, msgspec.Meta(ge=0, le=16)] = 1
    retry_ratio: Share = 0.2
    retry_per_s: NotNegative = 10.0
    period_s: Positive = 1.0
    registry_delay_s: NotNegative = 0.5
    protection: bool = False


class Reports(_Part, frozen=True, kw_only=True):
    period_s: Positive = 1.0
    lag_s: NotNegative = 0.1
    noise: NotNegative = 0.03


class Fault(_Part, frozen=True, kw_only=True):
    """Something that happens to ``nodes`` from ``at_s`` until ``until_s``.

    ``nodes`` names groups, or ``group:first-last`` for a part of one. With ``stagger_s`` the nodes *return* one after
    the other, so much apart. With ``every_s`` it all happens again and again, so long after the last beginning.

    fail: a ``rate`` of calls fails, at ``cost`` of their work, so that a node that fails fast also looks idle. slow:
    work takes ``factor`` times as long. pause: nothing moves (SIGSTOP). crash: refuses connections, loses what it
    had. leave: is not registered (and serves what it has). silent, zero, nan, frozen: what its load reports become.
    """

    kind: Literal["fail", "slow", "pause", "crash", "leave", "silent", "zero", "nan", "frozen"]
    nodes: Target
    at_s: NotNegative = 0.0
    until_s: Positive = 1e9
    rate: Share = 1.0
    cost: NotNegative = 0.05
    factor: Positive = 3.0
    stagger_s: NotNegative = 0.0
    every_s: Positive | None = None


class Antagonist(_Part, frozen=True, kw_only=True):
    """A neighbour on the same machine. Every so often (exponential, mean ``every_s``) it takes a new share between
    ``low`` and ``high``: of the node's speed, or, with ``machine_cores``, of the machine, leaving the node what is
    idle and never less than its own cores (spare capacity may be used, as in Borg and Kubernetes)."""

    nodes: Target
    every_s: Positive = 5.0
    low: Share = 0.0
    high: Share = 0.5
    machine_cores: Positive | None = None


class Steps(_Part, frozen=True, kw_only=True):
    """A staircase of loads, each measured by itself after ``settle_s``: for "how much can it carry"."""

    first: Positive
    last: Positive
    ratio: Annotated[float, msgspec.Meta(gt=1.0)] = 1.05
    seconds: Positive = 20.0
    settle_s: NotNegative = 5.0


class Measure(_Part, frozen=True, kw_only=True):
    """The window whose numbers are in the table. ``watch`` are the nodes called "bad" there [those with faults];
    ``disturbed_at_s`` is where convergence is counted from; keys moved are counted between the last ``moved_s`` before
    ``disturbed_at_s`` and the last ``moved_s`` of the run."""

    from_s: NotNegative = 10.0
    until_s: Positive | None = None
    watch: Target = []
    disturbed_at_s: NotNegative = 0.0
    disturbed_until_s: Positive | None = None
    moved_s: Positive = 10.0
    success_target: Share = 0.999
    saturation: Share = 0.95


class Axis(_Part, frozen=True, kw_only=True):
    """One dimension of a scenario's variants: ``sets`` is a path such as ``faults.0.rate`` or ``reports.lag_s`` (or
    several), which takes each of ``values``; ``labels`` name values that are no names themselves."""

    name: str
    sets: Target
    values: list[Any]
    labels: list[str] | None = None

    @property
    def shown(self) -> list[Any]:
        """What the variants are called, in the order of the values."""
        return self.labels if self.labels is not None else self.values


class Gate(_Part, frozen=True, kw_only=True):
    """One claim: ``metric`` of ``policy`` is at most or at least so much; relative to the same metric of policy ``of``
    when that is named (``minus``: the difference instead of the ratio; ``or_tie``: a difference within the noise of the
    seeds passes as well), or, with ``beside``, to itself in another variant. ``only`` narrows it to some variants.
    ``unmet`` says why a gate is known not to be met: it is measured and shown all the same, and fails no test."""

    name: str
    metric: str
    policy: str = "dual"
    at_most: float | None = None
    at_least: float | None = None
    of: str | None = None
    minus: bool = False
    or_tie: bool = False
    beside: dict[str, Any] = {}
    unmet: str = ""
    only: dict[str, list[Any]] = {}


class Scenario(_Part, frozen=True, kw_only=True):
    """One file. ``policies`` narrows ``--policy all`` where a table of everybody would say nothing."""

    name: str
    text: str
    seconds: Positive = 60.0
    nodes: Annotated[list[NodeGroup], msgspec.Meta(min_length=1)]
    traffic: Traffic = Traffic()
    work: Work = Work()
    consumers: Consumers = Consumers()
    reports: Reports = Reports()
    faults: list[Fault] = []
    antagonists: list[Antagonist] = []
    steps: Steps | None = None
    measure: Measure = Measure()
    axes: list[Axis] = []
    gates: list[Gate] = []
    policies: list[str] = []
    settings: dict[str, dict[str, Any]] = {}

    @property
    def capacity(self) -> float:
        """Calls per second that keep every core of the whole fleet busy, without caches and faults."""
        return sum(group.count * parallel(group) * group.speed for group in self.nodes) / self.work.mean_s

    @property
    def until_s(self) -> float:
        """The end of the measured window."""
        return min(self.seconds, self.measure.until_s or self.seconds)


def parallel(group: NodeGroup) -> float:
    """How many calls' worth of work per second a node of *group* does, in calls of one second at speed 1."""
    if group.discipline == "batching":
        slots = group.slots or 16
        return slots / (1.0 + group.marginal * (slots - 1))
    return min(group.cores, group.quota or group.cores)

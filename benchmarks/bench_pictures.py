"""Draws the pictures of docs/law.md, each from runs of the simulator.

    ./dev bench pictures [NAME...] [--to FOLDER] [--format svg]

A run is a function of its seed, so a picture changes only with the law. What one shows is said beside it in
docs/law.md.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from random import Random
from statistics import fmean, median
from typing import Any

import msgspec
from matplotlib import colormaps, rcParams
from matplotlib.figure import Figure

from steelyard.balance import Candidate, Dice, Policy, make_policy
from steelyard.sim import Ending, Scenario, World, draw_arrivals, variants

DOCS = Path(__file__).parent.parent / "docs" / "pictures"
SICK, WELL, OTHER, QUIET = "#c0392b", "#7f8c8d", "#2471a3", "#d5dbdb"
# Text stays text, and two runs write the same bytes.
rcParams.update(
    {"svg.fonttype": "none", "svg.hashsalt": "steelyard", "font.size": 9, "axes.spines.top": False}
    | {"axes.spines.right": False, "legend.frameon": False, "axes.titlesize": 10, "path.simplify_threshold": 0.3}
)


class Noted:
    """A policy that notes when it picked whom for which key."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.picks: list[tuple[float, int | None, str]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def pick(
        self, now_s: float, dice: Dice, key: int | None = None, excluded: Collection[str] = ()
    ) -> Candidate | None:
        picked = self._policy.pick(now_s, dice, key, excluded)
        if picked is not None and not excluded:
            self.picks.append((now_s, key, picked.node.host))
        return picked


def scenario(**parts: Any) -> Scenario:
    return msgspec.convert({"name": "picture", "text": "A picture's.", **parts}, Scenario)


def run(described: Scenario, policy: str, seed: int = 1) -> tuple[World, list[tuple[float, int | None, str]]]:
    """A world at its end, and every first pick of its consumers."""
    made: list[Noted] = []

    def make() -> Any:
        made.append(Noted(make_policy(policy)))
        return made[-1]

    world = World(described, draw_arrivals(described, seed), make, seed)
    world.run()
    return world, sorted((pick for one in made for pick in one.picks), key=lambda pick: pick[0])


def shade(panel: Any, from_s: float, until_s: float, text: str) -> None:
    panel.axvspan(from_s, until_s, color=QUIET, alpha=0.6, linewidth=0)
    panel.text((from_s + until_s) / 2, 1.01, text, ha="center", va="bottom", transform=panel.get_xaxis_transform())


def refused() -> Figure:
    """Calls a second to each of eight nodes, of which one fails half of its calls for half a minute."""
    described = scenario(
        seconds=75,
        nodes=[{"name": "node", "count": 8, "cores": 2, "discipline": "sharing"}],
        work={"mean_s": 0.05},
        consumers={"count": 2},
        faults=[{"kind": "fail", "nodes": "node:0", "at_s": 20, "until_s": 50, "rate": 0.5, "cost": 1.0}],
    )
    runs, seconds = 8, range(5, 75)
    counts: dict[str, Counter[int]] = defaultdict(Counter)
    for seed in range(1, runs + 1):
        for at_s, _, host in run(described, "dual", seed)[1]:
            counts[host][int(at_s)] += 1
    figure = Figure(figsize=(7, 2.9), layout="constrained")
    panel = figure.subplots()
    shade(panel, 20, 50, "node 0 fails half of its calls")
    for host in sorted(counts, reverse=True):
        line = [counts[host][second] / runs for second in seconds]
        is_sick = host == "node-0"
        panel.plot(
            seconds,
            line,
            color=SICK if is_sick else WELL,
            linewidth=1.8 if is_sick else 0.7,
            alpha=1 if is_sick else 0.6,
        )
    panel.plot([], [], color=SICK, label="node 0")
    panel.plot([], [], color=WELL, label="the seven others")
    panel.set(xlabel="seconds", ylabel="calls a second (mean of 8 runs)", ylim=(0, None), xlim=(5, 73))
    panel.legend(loc="lower right")
    return figure


def no_coin() -> Figure:
    """Which keys leave a node that has become slow, by the law's hash and by a coin that refuses as many calls."""
    described = scenario(
        seconds=180,
        nodes=[{"name": "node", "count": 6, "cores": 4, "discipline": "sharing"}],
        traffic={"load": 0.5, "keys": 240, "zipf": 0.3},
        work={"mean_s": 0.15},
        consumers={"count": 1},
        faults=[{"kind": "slow", "nodes": "node:0", "at_s": 30, "until_s": 110, "factor": 2.0}],
    )
    _, picks = run(described, "dual")
    home = {key: host for at_s, key, host in picks if at_s < 20}
    mine = [key for key, host in home.items() if host == "node-0"]
    bins, wide_s = 36, 5.0
    asked: dict[int | None, Counter[int]] = {key: Counter() for key in mine}
    stayed: dict[int | None, Counter[int]] = {key: Counter() for key in mine}
    for at_s, key, host in picks:
        if key in asked:
            asked[key][int(at_s / wide_s)] += 1
            stayed[key][int(at_s / wide_s)] += host == "node-0"
    part = [sum(c[at] for c in stayed.values()) / max(1, sum(c[at] for c in asked.values())) for at in range(bins)]
    order = sorted(mine, key=lambda key: sum(stayed[key].values()) / sum(asked[key].values()))
    dice = Random(1).random
    nothing = float("nan")
    by_hash = [[stayed[key][at] / asked[key][at] if asked[key][at] else nothing for at in range(bins)] for key in order]
    by_coin = [
        [fmean(dice() < part[at] for _ in range(asked[key][at])) if asked[key][at] else nothing for at in range(bins)]
        for key in order
    ]
    colours = colormaps["Blues"].with_extremes(bad="#e8e8e8")
    figure = Figure(figsize=(7, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for panel, cells, title in ((left, by_hash, "by hash, as it is"), (right, by_coin, "by a coin, as it would be")):
        image = panel.imshow(
            cells,
            aspect="auto",
            cmap=colours,
            vmin=0,
            vmax=1,
            extent=(0, bins * wide_s, len(order), 0),
            interpolation="none",
        )
        panel.set(title=title, xlabel="seconds")
        for at_s in (30, 110):
            panel.axvline(at_s, color=SICK, linewidth=1, linestyle="--")
    left.set_ylabel(f"the node's {len(order)} keys, one a row")
    figure.colorbar(image, ax=[left, right], label="part of the key's calls at home", shrink=0.8)
    return figure


def calm() -> Figure:
    """Loads of three generations of machines behind a hash ring, when reports are four periods late."""
    described = next(found for variant, found in variants("lag-gain") if variant["lag"] == 4)
    figure = Figure(figsize=(7, 2.9), layout="constrained")
    for panel, policy, title in zip(
        figure.subplots(1, 2, sharey=True), ("ratio", "dual"), ("the published law (ratio)", "dual"), strict=True
    ):
        world, _ = run(described, policy)
        busy = [list(map(float, second)) for second in world.recorder.busy]
        groups = [server.group.name for server in world.servers]
        for name, colour in (("old", SICK), ("mid", OTHER), ("new", "#1e8449")):
            places = [at for at, group in enumerate(groups) if group == name]
            rows = [[fmean(busy[at + back][place] for back in range(2)) for place in places] for at in range(0, 118, 2)]
            panel.fill_between(
                range(0, 118, 2), [*map(min, rows)], [*map(max, rows)], color=colour, alpha=0.25, linewidth=0
            )
            panel.plot(range(0, 118, 2), [*map(median, rows)], color=colour, label=f"{name} (6)", linewidth=1.3)
        panel.set(title=title, xlabel="seconds", ylim=(0, 1.15), xlim=(0, 118))
        if policy == "ratio":
            panel.set_ylabel("utilization: median, least, largest")
        else:
            panel.legend(loc="upper right", ncols=3)
    return figure


def between_reports() -> Figure:
    """Calls to a node that answers nothing for two seconds, in tenths of a second, as the mean of many runs."""
    described = scenario(
        seconds=26,
        nodes=[{"name": "node", "count": 8, "cores": 4, "discipline": "sharing"}],
        work={"mean_s": 0.05},
        consumers={"count": 1, "timeout_s": 5.0},
        faults=[{"kind": "pause", "nodes": "node:0", "at_s": 20, "until_s": 22}],
    )
    runs = 24
    figure = Figure(figsize=(7, 2.9), layout="constrained")
    panel = figure.subplots()
    shade(panel, 0, 2, "node 0 stands still")
    names = {"round_robin": WELL, "weighted_round_robin": "#b7950b", "dual": OTHER}
    for name, colour in names.items():
        counts: Counter[int] = Counter()
        for seed in range(1, runs + 1):
            _, picks = run(described, name, seed)
            counts.update(int(at_s * 10) for at_s, _, host in picks if host == "node-0")
        # A tenth of a second's count is drawn over the tenth itself.
        tenths = range(190, 256)
        panel.step(
            [at / 10 - 20 for at in tenths],
            [counts[at] * 10 / runs for at in tenths],
            where="post",
            color=colour,
            label=name,
        )
    panel.set(xlabel="seconds since it stopped", ylabel="calls a second to it", ylim=(0, None), xlim=(-1, 5.5))
    panel.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def panic() -> Figure:
    """What sick nodes still get, by how many there are."""
    parts, bad, well = [], [], []
    for variant, described in variants("masking"):
        share = float(variant["bad"].rstrip(" %")) / 100
        count = round(share * 20)
        _, picks = run(described, "dual")
        hits = Counter(host for at_s, _, host in picks if at_s >= 20)
        total = sum(hits.values())
        sick = sum(hits[f"node-{at}"] for at in range(count))
        parts.append(share * 100)
        bad.append(sick / total / share)
        well.append((total - sick) / total / (1 - share))
    figure = Figure(figsize=(7, 2.7), layout="constrained")
    panel = figure.subplots()
    panel.axvspan(50, 62, color=QUIET, alpha=0.6, linewidth=0)
    panel.text(56, 0.04, "panic: all are used", ha="center", transform=panel.get_xaxis_transform())
    panel.axhline(1, color=QUIET, linewidth=1)
    panel.plot(parts, bad, "o-", color=SICK, label="a sick node (fails half)")
    panel.plot(parts, well, "o-", color=OTHER, label="a well node")
    panel.set(xlabel="sick nodes, % of twenty", ylabel="calls over its fair share", ylim=(0, None), xlim=(8, 62))
    panel.legend(loc="upper left")
    return figure


def spike() -> Figure:
    """Four times the load while a quarter of the nodes fails: what became of the calls, with and without protection."""
    figure = Figure(figsize=(7, 3.1), layout="constrained")
    for panel, is_on in zip(figure.subplots(1, 2, sharey=True), (False, True), strict=True):
        described = scenario(
            seconds=80,
            nodes=[{"name": "node", "count": 8, "cores": 2, "discipline": "fifo"}],
            traffic={
                "load": [[0, 0.24], [20, 0.24], [20, 0.96], [50, 0.96], [50, 0.24], [80, 0.24]],
                "priorities": [0.2, 0.6],
            },
            work={"mean_s": 0.025, "distribution": "constant"},
            consumers={"count": 1, "protection": is_on, "retries": 2},
            faults=[{"kind": "fail", "nodes": "node:0-1", "at_s": 20, "until_s": 50, "rate": 1.0, "cost": 0.05}],
        )
        world, _ = run(described, "dual")
        found: dict[str, list[int]] = {
            name: [0] * 80
            for name in ("answered", "degraded, priority 2", "degraded, priority 1", "degraded, priority 0", "failed")
        }
        for at_s, code in zip(world.recorder.over_at_s, world.recorder.code, strict=True):
            ending, priority = code & 15, code >> 4 & 255
            kind = "answered" if ending == Ending.OK else "failed"
            if ending == Ending.DEGRADED:
                kind = f"degraded, priority {priority}"
            found[kind][min(79, int(at_s))] += 1
        colours = ("#a9cce3", "#fdebd0", "#f5cba7", "#ca6f1e", SICK)
        panel.stackplot(range(80), *found.values(), labels=[*found], colors=colours)
        panel.hlines(480, 20, 50, color="black", linewidth=0.8, linestyle="--")
        panel.text(35, 488, "what six nodes can do", ha="center", va="bottom", fontsize=8)
        panel.set(title="with protection" if is_on else "without", xlabel="seconds", xlim=(10, 79), ylim=(0, 900))
        if not is_on:
            panel.set_ylabel("calls that ended in a second")
            handles, labels = panel.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=8, columnspacing=1.0, handlelength=1.2)
    return figure


def comeback() -> Figure:
    """Load of ten nodes that have crashed together and return one by one."""
    described = next(found for _, found in variants("outage-and-return"))
    world, _ = run(described, "dual")
    figure = Figure(figsize=(7, 2.9), layout="constrained")
    panel = figure.subplots()
    shade(panel, 20, 30, "all are gone")
    for place in reversed(range(10)):
        line = [
            fmean(map(float, (world.recorder.busy[at][place], world.recorder.busy[at + 1][place])))
            for at in range(10, 118, 2)
        ]
        panel.plot(
            range(10, 118, 2),
            line,
            color=SICK if place == 0 else WELL,
            linewidth=1.8 if place == 0 else 0.7,
            alpha=1 if place == 0 else 0.6,
        )
    panel.plot([], [], color=SICK, label="the first back (at 30 s)")
    panel.plot([], [], color=WELL, label="the others, each 5 s after the one before")
    panel.axhline(1, color="black", linewidth=0.8, linestyle="--")
    panel.text(117, 1.02, "full", ha="right", fontsize=8)
    panel.set(xlabel="seconds", ylabel="utilization", ylim=(0, 1.3), xlim=(10, 118))
    panel.legend(loc="upper left", bbox_to_anchor=(0.18, 0.98))
    return figure


PICTURES: dict[str, Callable[[], Figure]] = {
    "refused": refused,
    "no-coin": no_coin,
    "calm": calm,
    "between-reports": between_reports,
    "panic": panic,
    "spike": spike,
    "comeback": comeback,
}


def make(names: Sequence[str], folder: Path, ending: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        path = folder / f"{name}.{ending}"
        PICTURES[name]().savefig(path, dpi=110, metadata={"Date": None} if ending == "svg" else None)
        print(f"{path.name}: {path.stat().st_size / 1024:.0f} KiB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(PICTURES)} [all]")
    parser.add_argument("--to", type=Path, default=DOCS, help="folder to write to [docs/pictures]")
    parser.add_argument("--format", choices=("svg", "png"), default="svg")
    options = parser.parse_args()
    unknown = set(options.names) - set(PICTURES)
    if unknown:
        parser.error(f"there is no picture {', '.join(sorted(unknown))}")
    make(options.names or list(PICTURES), options.to, options.format)


if __name__ == "__main__":
    main()

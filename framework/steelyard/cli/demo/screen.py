"""What is seen while it runs: a live table on a terminal, plain lines everywhere else."""

from __future__ import annotations

import time

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from steelyard.balance import NodeStatistics

from .outcome import Expectation, Outcome
from .plan import SICK_NODE, Schedule
from .stage import GLIMPSE_S, Glimpse, hardware_words

PLAIN_EVERY_S = 5.0
MEANT_FOR_S = 30.0
_LIST_STYLE = {
    "accept": "green",
    "refuse": "yellow",
    "probing": "red",
    "ejected": "bold red",
    "warming": "cyan",
    "neutral": "dim",
}
_PHASE_STYLE = {"plain hashing": "cyan", "balancing": "green", "fault": "red", "healed": "green"}


class TerminalScreen:
    """Steps as lines with a tick, then one table that is redrawn in place. Use as a context manager."""

    def __init__(self, console: Console, schedule: Schedule) -> None:
        self._console = console
        self._schedule = schedule
        self._live: Live | None = None
        self._started_at = time.monotonic()

    def step(self, text: str) -> None:
        self._close()
        line = Text.assemble(("✔ ", "green"), text, (f"  {time.monotonic() - self._started_at:.1f} s", "dim"))
        self._console.print(line, soft_wrap=True, highlight=False)

    def training(self, done: float) -> None:
        """Called from the training thread; one short line, overwritten."""
        line = Text.assemble(("  training the model ", "dim"), _bar(done, "cyan", 20), (f" {done:4.0%}", "dim"))
        if self._console.is_terminal:
            self._console.print(line, end="\r" if done < 1 else "\n")

    def look(self, glimpse: Glimpse) -> None:
        picture = table_of(glimpse, self._schedule, self._console.width)
        if self._live is None:
            self._live = Live(picture, console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        self._live.update(picture, refresh=True)

    def __enter__(self) -> TerminalScreen:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


class PlainScreen:
    """For files and pipes: a line for each step, phase, and five seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._phase = ""
        self._next_s = 0.0
        self._started_at = time.monotonic()

    def step(self, text: str) -> None:
        self._line(f"{text} ({time.monotonic() - self._started_at:.1f} s)")

    def training(self, done: float) -> None:
        pass

    def look(self, glimpse: Glimpse) -> None:
        if glimpse.phase.name != self._phase:
            self._phase = glimpse.phase.name
            self._line(f"{glimpse.at_s:5.1f} s  phase: {glimpse.phase.name} ({glimpse.phase.what})")
        if glimpse.at_s >= self._next_s and glimpse.end_s - glimpse.start_s >= GLIMPSE_S - 0.01:
            self._next_s = glimpse.at_s + PLAIN_EVERY_S
            window = f"{glimpse.start_s:.1f} to {glimpse.end_s:.1f} s"
            loads = " ".join(f"{node.name} {node.load:.0%}/{node.share:.0%}" for node in glimpse.nodes)
            self._line(f"{glimpse.at_s:5.1f} s  load/share in {window}: {loads}")

    def __enter__(self) -> PlainScreen:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def _line(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, highlight=False, markup=False)


def table_of(glimpse: Glimpse, schedule: Schedule, width: int) -> RenderableType:
    """The cluster in the last two seconds, in *width* columns."""
    bar = 8 if width < 100 else 14
    has_room = width >= 110
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("node", no_wrap=True, min_width=6)
    table.add_column("hardware", no_wrap=True, min_width=14)
    table.add_column("share of calls", no_wrap=True, min_width=bar + 7)
    table.add_column("utilization", no_wrap=True, min_width=bar + 5)
    table.add_column("avail.", justify="right", no_wrap=True, min_width=6)
    table.add_column("flow", justify="right", no_wrap=True, min_width=5)
    table.add_column("list", no_wrap=True, min_width=8)
    if has_room:
        table.add_column("because", no_wrap=True, overflow="ellipsis", style="dim")
    for node in glimpse.nodes:
        view = glimpse.balancer.get(node.name)
        reason = [view.reason.text if view else ""] if has_room else []
        table.add_row(
            Text(node.name, "bold red" if node.failed > 0 else "bold"),
            Text(glimpse.hardware.get(node.name, ""), "dim"),
            Text.assemble(_bar(node.share / 0.4, "blue", bar), f" {node.share:5.1%}"),
            Text.assemble(_bar(node.load, _load_style(node.load), bar), f" {node.load:4.0%}"),
            *_balancer_cells(view),
            *reason,
        )
    return Group(_header(glimpse, schedule, width), Text(), table, Text(), _footer(glimpse))


def _balancer_cells(view: NodeStatistics | None) -> tuple[Text, Text, Text]:
    if view is None:
        return Text("-"), Text("-"), Text("-")
    availability = "-" if view.availability is None else f"{view.availability:.1%}"
    is_low = view.availability is not None and view.availability < 0.98
    return (
        Text(availability, "red" if is_low else ""),
        Text(f"{view.flow_ratio:.2f}"),
        Text(view.list.value, _LIST_STYLE.get(view.list.value, "")),
    )


def _header(glimpse: Glimpse, schedule: Schedule, width: int) -> RenderableType:
    phase, style = glimpse.phase, _PHASE_STYLE.get(glimpse.phase.name, "")
    words = Text.assemble(
        (f" {phase.name} ", f"bold reverse {style}"),
        f"  {phase.what}",
        (f"   {min(glimpse.at_s, schedule.seconds):4.1f} of {schedule.seconds:g} s", "dim"),
    )
    return Group(words, ProgressBar(total=schedule.seconds, completed=glimpse.at_s, width=min(width - 1, 78)))


def _footer(glimpse: Glimpse) -> Text:
    window = glimpse.consumer
    if window.success is None or window.p50_ms is None:
        return Text("waiting for the first calls", "dim")
    mean = sum(node.load for node in glimpse.nodes) / len(glimpse.nodes)
    return Text.assemble(
        f"{window.calls / (glimpse.end_s - glimpse.start_s):.0f} calls/s  ",
        (f"success {window.success:.2%}", "green" if window.success >= 0.995 else "red"),
        f"  p50 {window.p50_ms:.0f} ms  p99 {window.p99_ms:.0f} ms",
        f"   mean utilization {mean:.0%} ± {glimpse.load_std:.0%}",
    )


def _bar(part: float, style: str, width: int) -> Text:
    filled = max(0.0, min(1.0, part)) * width
    eighths = " ▏▎▍▌▋▊▉"
    whole = int(filled)
    tip = eighths[int((filled - whole) * 8)] if whole < width else ""
    return Text("█" * whole + tip.strip(), style) + Text("·" * (width - whole - len(tip.strip())), "bright_black")


def _load_style(load: float) -> str:
    return "red" if load > 0.85 else "yellow" if load > 0.65 else "green"


def summary(console: Console, outcome: Outcome) -> None:
    """What has been shown, and which bars were met."""
    begin_s, end_s = outcome.settings["after_s"]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", title_justify="left")
    for title in ("node", "hardware"):
        table.add_column(title, no_wrap=True)
    for title in ("share", "utilization", "availability", "flow ratio"):
        table.add_column(title, justify="right")
    table.add_column("list")
    for node in outcome.nodes:
        table.add_row(
            Text(node.name, "bold"),
            Text(hardware_words(node.hardware), "dim"),
            f"{node.share:.1%}",
            f"{node.load:.0%}",
            "-" if node.availability is None else f"{node.availability:.1%}",
            f"{node.flow_ratio:.2f}",
            Text(node.list, _LIST_STYLE.get(node.list, "")),
        )
    console.print()
    console.print(f"from {begin_s:g} to {end_s:g} s, the last seconds:", highlight=False)
    console.print(table)
    console.print()
    console.print(_totals(outcome), highlight=False, soft_wrap=True)
    if outcome.settings["seconds"] < MEANT_FOR_S:
        console.print(f"(what follows is meant for {MEANT_FOR_S:g} s or more)", style="dim", highlight=False)
    for bar in outcome.expectations:
        console.print(_verdict(bar), highlight=False, soft_wrap=True)


def _totals(outcome: Outcome) -> Text:
    latency = "" if outcome.p50_ms is None else f"p50 {outcome.p50_ms:.1f} ms, p99 {outcome.p99_ms:.0f} ms"
    accuracy = "" if outcome.accuracy is None else f", {outcome.accuracy:.1%} of the answers right"
    retried = f"; {outcome.failed_attempts} attempts failed at a node" if outcome.failed_attempts else ""
    sick = f" ({SICK_NODE})" if outcome.sick_node and retried else ""
    return Text.assemble(
        f"{outcome.calls} calls, {outcome.failed_calls} failed{retried}{sick}\n",
        f"{latency}{accuracy}\n",
        f"spread of utilization over the nodes (standard deviation, {outcome.settings['load_std_over_s']:g} s each): "
        f"{outcome.load_std_before:.3f} under plain hashing, {outcome.load_std_after:.3f} in the last seconds",
    )


def _verdict(bar: Expectation) -> Text:
    relation = "at most" if (bar.value <= bar.bound) == bar.is_met else "at least"
    mark, style = ("✔ met   ", "green") if bar.is_met else ("✘ missed", "bold red")
    return Text.assemble((mark, style), f" {bar.what}: {bar.value:.3g} ({relation} {bar.bound:g})")

"""``steelyard nodes``: what is registered, as one JSON document or as a table for people."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from steelyard.balance import NodeList
from steelyard.cluster import open_at, where
from steelyard.security import Credentials
from steelyard_registry import NodeState

from . import words
from .failure import WENT_WRONG
from .output import is_terminal, write_document
from .survey import Load, Observer, Reach, ServiceSight, Sight, Survey

# Nobody reads a pipe's lines on a screen of 80 columns; programs that do not want JSON want one line a node.
PIPE_WIDTH = 200
# Below this the table has no columns of its own for zone, tags and calls in flight.
WIDE = 120
WATCH_EVERY_S = 1.0
MOST_REASONS = 5

_LIST_STYLE = {
    NodeList.REFUSE: "yellow",
    NodeList.ACCEPT: "green",
    NodeList.EJECTED: "bold red",
    NodeList.PROBING: "red",
    NodeList.WARMING: "cyan",
    NodeList.NEUTRAL: "dim",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What ``nodes`` was asked for. ``registry_wait_s`` None: for ever."""

    registry: str | None
    service: str | None = None
    expression: str | None = None
    policy: str = "dual"
    registry_wait_s: float | None = 10.0
    credentials: Credentials | None = None


def run(asked: Asked, *, is_json: bool, is_watch: bool) -> None:
    """Shows the survey. Ends with exit code 1 when a service was named and nobody provides it."""
    if is_watch:
        with contextlib.suppress(KeyboardInterrupt):  # the way to end a watch
            asyncio.run(watch(asked, Console()))
        return
    seen = asyncio.run(survey(asked))
    if is_json:
        write_document(document(seen))
    elif seen.services:
        console = Console() if is_terminal(sys.stdout) else Console(width=PIPE_WIDTH)
        console.print(table(seen, console.width, asked))
    if not seen.services and (asked.service or not is_json):
        typer.echo(f"steelyard nodes: {nothing(seen, asked)}", err=True)
        raise typer.Exit(WENT_WRONG if asked.service else 0)


async def survey(asked: Asked) -> Survey:
    """One look at everything."""
    async with await open_at(asked.registry, asked.registry_wait_s) as registry, _observer(asked, registry) as observer:
        return await observer.look()


async def watch(asked: Asked, console: Console) -> None:
    """Draws the table anew each second until cancelled."""
    async with await open_at(asked.registry, asked.registry_wait_s) as registry, _observer(asked, registry) as observer:
        with Live(console=console, auto_refresh=False, screen=console.is_terminal) as live:
            while True:
                seen = await observer.look()
                live.update(table(seen, console.width, asked), refresh=True)
                await asyncio.sleep(WATCH_EVERY_S)


def _observer(asked: Asked, registry: Any) -> Observer:
    keep: Callable[[Any], bool] | None = where(asked.expression) if asked.expression else None
    return Observer(registry, service=asked.service, keep=keep, policy=asked.policy, credentials=asked.credentials)


# ---- as JSON ---------------------------------------------------------------------------------------------------------


def document(seen: Survey) -> dict[str, Any]:
    """The form of ``nodes --json``; keys are only ever added to it. See the command's help."""
    return {
        "registry": seen.registry,
        "observed_at": seen.observed_at.isoformat(timespec="milliseconds"),
        "observer": {"policy": seen.policy, "note": _OBSERVER_NOTE},
        "services": [
            {
                "service": service.service,
                "is_stale": service.is_stale,
                "skipped": service.skipped,
                "load_ref": service.load_ref,
                "nodes": [_node(sight) for sight in service.nodes],
            }
            for service in seen.services
        ],
    }


def _node(sight: Sight) -> dict[str, Any]:
    node, law = sight.node, sight.law
    started_at = (
        datetime.datetime.fromtimestamp(node.started_at_ms / 1000, datetime.UTC).isoformat(timespec="milliseconds")
        if node.started_at_ms
        else None
    )
    hardware = asdict(node.hardware)
    hardware["accelerators"] = list(node.hardware.accelerators)
    return {
        "address": node.address,
        "state": node.state.value,
        "zone": node.zone,
        "weight": node.weight,
        "application": node.application,
        "protocol": node.protocol,
        "started_at": started_at,
        "methods": list(node.methods),
        "tags": words.shown(node.tags),
        "hardware": hardware,
        "load": _load(sight.load),
        "observer": None
        if law is None
        else {
            "list": law.list.value,
            "flow_ratio": law.flow_ratio,
            "share": law.share,
            "base_share": law.base_share,
            "passes": law.passes,
            "reason": law.because,
        },
    }


def _load(load: Load) -> dict[str, Any]:
    report = load.report
    return {
        "status": load.reach.value,
        "reason": load.reason,
        "utilization": dict(report.utilization) if report else None,
        "in_flight": report.in_flight if report else None,
        "queue_depth": report.queue_depth if report else None,
        "age_s": load.age_s,
    }


# ---- as a table ------------------------------------------------------------------------------------------------------

_OBSERVER_NOTE = (
    "list and flow ratio are what the policy makes of the loads shown, one period after this observer first saw them; "
    "each consumer has lists of its own, which also know how its calls went"
)


def table(seen: Survey, width: int, asked: Asked) -> RenderableType:
    """Everything, one table a service."""
    if not seen.services:
        return Text(nothing(seen, asked))
    parts: list[RenderableType] = [Text(f"{seen.registry}  {seen.observed_at.astimezone():%H:%M:%S}", style="dim")]
    for service in seen.services:
        parts += [Text(""), _title(service), _service(service, is_wide=width >= WIDE), *_remarks(service)]
    parts += [Text(""), Text(f"{seen.policy}: {_OBSERVER_NOTE}.", style="dim")]
    return Group(*parts)


def nothing(seen: Survey, asked: Asked) -> str:
    """Why there is nothing to show, and what to do."""
    if asked.expression:
        return f"no node registered at {seen.registry} fits --where {asked.expression!r}"
    if asked.service:
        return (
            f"no provider of {asked.service} is registered at {seen.registry}; without a name, all services are shown"
        )
    if seen.registry.startswith("static:"):
        return f"{seen.registry} does not know what its nodes serve; name it: steelyard nodes SERVICE"
    return f"nothing is registered at {seen.registry}; start a provider with `steelyard serve`"


def _title(service: ServiceSight) -> Text:
    text = Text.assemble((service.service, "bold"), f"  {words.counted(len(service.nodes), 'node')}")
    if service.load_ref is not None:
        text.append(f", mean load {words.percent(service.load_ref)}")
    if service.is_stale:
        text.append("  stale: the registry does not vouch for this list now", style="yellow")
    if service.skipped:
        entries = "1 entry" if service.skipped == 1 else f"{service.skipped} entries"
        text.append(f"  {entries} could not be read", style="yellow")
    return text


def _service(service: ServiceSight, *, is_wide: bool) -> Table:
    grid = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    grid.add_column("node", no_wrap=True, overflow="fold")
    if is_wide:
        grid.add_column("state", no_wrap=True)
        grid.add_column("zone")
    grid.add_column("hardware", ratio=3 if is_wide else None, min_width=16)
    if is_wide:
        grid.add_column("tags", ratio=2)
    grid.add_column("load", min_width=9)
    grid.add_column("calls", justify="right")
    grid.add_column("list", no_wrap=True)
    grid.add_column("flow", justify="right", no_wrap=True)
    for sight in service.nodes:
        node = sight.node
        name, state = Text(node.address), _state(sight)
        facts = Text(words.hardware(node.hardware))
        tags = Text(words.pairs(node.tags))
        middle: list[Text] = [facts, tags] if is_wide else [_beneath(facts, node.zone, tags)]
        first = [name, state, Text(node.zone or "-")] if is_wide else [_beneath(name, "", _unless_ready(sight, state))]
        grid.add_row(*first, *middle, _load_text(sight.load), _calls(sight.load), *_law(sight))
    return grid


def _remarks(service: ServiceSight) -> list[Text]:
    """Why nodes are unreachable, and whose queue is to drain, for the first few of each."""
    silent = [(sight, sight.load.reason) for sight in service.nodes if sight.load.reach is Reach.UNREACHABLE]
    full = [(sight, sight.law.long_queue.text) for sight in service.nodes if sight.law and sight.law.long_queue.text]
    return [*_first_of(silent), *_first_of(full)]


def _first_of(remarks: Sequence[tuple[Sight, str]]) -> list[Text]:
    lines = [Text(f"{sight.node.address}: {text}", style="dim") for sight, text in remarks[:MOST_REASONS]]
    if len(remarks) > MOST_REASONS:
        lines.append(Text(f"and {len(remarks) - MOST_REASONS} more", style="dim"))
    return lines


def _beneath(first: Text, zone: str, rest: Text) -> Text:
    """Narrow terminals: what would be a column of its own stands under the main fact."""
    extra = Text("  ").join(part for part in (Text(f"zone {zone}" if zone else ""), rest) if part.plain)
    if extra.plain:
        extra.stylize("dim")
        return Text.assemble(first, "\n", extra)
    return first


def _state(sight: Sight) -> Text:
    state, weight = sight.node.state, sight.node.weight
    text = state.value if weight == 100 else f"{state.value}, weight {weight}"
    return Text(text, style="" if state is NodeState.READY and weight > 0 else "yellow")


def _unless_ready(sight: Sight, state: Text) -> Text:
    return Text("") if sight.node.state is NodeState.READY and sight.node.weight == 100 else state


def _load_text(load: Load) -> Text:
    if load.report is not None:
        text = words.utilization(load.report.utilization) or "not measured"
        peak = max(load.report.utilization.values(), default=0.0)
        return Text(text, style="red" if peak >= 0.9 else "yellow" if peak >= 0.75 else "")
    return Text(load.reach.value, style="red" if load.reach is Reach.UNREACHABLE else "dim")


def _calls(load: Load) -> Text:
    report = load.report
    if report is None or report.in_flight is None:
        return Text("-", style="dim")
    return Text(f"{report.in_flight}+{report.queue_depth}" if report.queue_depth else str(report.in_flight))


def _law(sight: Sight) -> tuple[Text, Text]:
    law = sight.law
    if law is None or law.base_share == 0.0:
        return Text("-", style="dim"), Text("-", style="dim")
    style = _LIST_STYLE.get(law.list, "")
    return Text(law.list.value, style=style), Text(f"{law.flow_ratio:.2f}")

"""One picture of the run: load per node, spread, success and shares over time, with the phases and the fault marked.

A PNG, or a self-contained HTML page around the same drawing as SVG.
"""

from __future__ import annotations

import html
import io
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .outcome import Outcome, Second
from .stage import hardware_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Two shades of one hue for two nodes of one kind, dark to light.
_COLOURS = ("#b2182b", "#ef8a62", "#1b7837", "#7fbf7b", "#2166ac", "#67a9cf", "#762a83", "#c2a5cf")
_PHASE_COLOURS = {"plain hashing": "#f2f2f2", "balancing": "#ffffff", "fault": "#fde8e6", "healed": "#ecf7ec"}
_INK = "#333333"
_PHASE_NAME: dict[str, Any] = {"ha": "center", "va": "top", "fontsize": 8, "color": "#777777"}


def load() -> None:
    """Loads the plotting library, which takes most of a second and on its first day finds all fonts."""
    import matplotlib.backends.backend_agg
    import matplotlib.backends.backend_svg
    import matplotlib.figure
    import matplotlib.font_manager  # noqa: F401


def draw(outcome: Outcome, path: Path) -> None:
    """Writes the picture. Raises ImportError without matplotlib (extra ``examples``), OSError when it cannot be
    written."""
    figure = _figure(outcome)
    if path.suffix.lower() == ".html":
        stream = io.StringIO()
        figure.savefig(stream, format="svg")
        svg = stream.getvalue()
        path.write_text(_page(outcome, svg[svg.index("<svg") :]), encoding="utf-8")
    else:
        figure.savefig(path, format="png", dpi=110)


def _figure(outcome: Outcome) -> Figure:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {"font.size": 9, "axes.edgecolor": "#999999", "text.color": _INK, "axes.labelcolor": _INK}
    with rc_context(style):
        figure = Figure(figsize=(12.5, 9.0), layout="constrained", facecolor="white")
        grid = figure.subplots(3, 2, sharex=True, gridspec_kw={"height_ratios": [5, 5, 3]})
        times = [second.at_s - 0.5 for second in outcome.series]
        _loads(grid[0][0], outcome, times)
        _shares(grid[1][0], outcome, times)
        _ratios(grid[0][1], outcome, times)
        _availability(grid[1][1], outcome, times)
        _spread(grid[2][0], outcome, times)
        _success(grid[2][1], outcome, times)
        for axes in grid.flat:
            _phases(axes, outcome, is_named=axes in grid[0])
        for axes in grid[2]:
            axes.set_xlabel("seconds")
        handles, labels = grid[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels) // 2, frameon=False)
        figure.suptitle(_title(outcome), fontsize=13, fontweight="bold", x=0.01, ha="left")
    return figure


def _title(outcome: Outcome) -> str:
    fault = f", {outcome.sick_node} sick for a while" if outcome.sick_node else ""
    calls = f"{outcome.calls:,} calls, {outcome.failed_calls} failed"
    return f"Steelyard, policy {outcome.settings['policy']}: {len(outcome.nodes)} unequal nodes{fault}; {calls}"


def _loads(axes: Axes, outcome: Outcome, times: list[float]) -> None:
    _title_of(axes, "Utilization of each node", "share of what it may use")
    for node, colour in zip(outcome.nodes, _COLOURS, strict=False):
        loads = [second.nodes[node.name].load for second in outcome.series]
        axes.plot(times, loads, color=colour, linewidth=1.7, label=f"{node.name} ({hardware_words(node.hardware)})")
    axes.set_ylim(0, 1.15)
    _percent(axes)


def _shares(axes: Axes, outcome: Outcome, times: list[float]) -> None:
    _title_of(axes, "Shares of the calls", "retries included")
    shares = [[second.nodes[node.name].share for second in outcome.series] for node in outcome.nodes]
    axes.stackplot(times, shares, colors=_COLOURS[: len(shares)], linewidth=0.4, edgecolor="white")
    axes.set_ylim(0, 1)
    _percent(axes)


def _ratios(axes: Axes, outcome: Outcome, times: list[float]) -> None:
    _title_of(axes, "Flow ratio of each node", "planned share / share by hashing; above 1 accepts, below 1 refuses")
    for node, colour in zip(outcome.nodes, _COLOURS, strict=False):
        ratios = [_thought(second, node.name, "flow_ratio") for second in outcome.series]
        axes.plot(times, [max(ratio, 0.01) for ratio in ratios], color=colour, linewidth=1.7)
    axes.axhline(1.0, color="#999999", linewidth=0.8, linestyle=":")
    axes.set_yscale("log", base=2)
    axes.set_ylim(top=axes.get_ylim()[1] * 1.5)  # room for the names of the phases
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")


def _availability(axes: Axes, outcome: Outcome, times: list[float]) -> None:
    _title_of(axes, "Availability of each node", "as the balancer sees it: ok / (ok + failed), last 10 s")
    for node, colour in zip(outcome.nodes, _COLOURS, strict=False):
        seen = [_thought(second, node.name, "availability") for second in outcome.series]
        axes.plot(times, seen, color=colour, linewidth=1.7)
    axes.set_ylim(0.38, 1.03)
    _percent(axes)


def _thought(second: Second, node: str, what: str) -> float:
    """A gap in the line where the balancer knew nothing of the node."""
    value = second.balancer.get(node, {}).get(what)
    return math.nan if value is None else float(value)


def _spread(axes: Axes, outcome: Outcome, times: list[float]) -> None:
    over_s = outcome.settings["load_std_over_s"]
    what = f"standard deviation over the nodes, loads of {over_s:g} s; dotted: the two means that are compared"
    _title_of(axes, "Spread of load", what)
    axes.plot(times, [second.load_std for second in outcome.series], color=_INK, linewidth=1.7)
    bound = 0.4 * outcome.load_std_before
    axes.axhline(bound, color="#b2182b", linewidth=0.9, linestyle="--")
    axes.annotate(
        "0.4 of plain hashing's", (0.995, bound), xycoords=("axes fraction", "data"), ha="right", va="bottom",
        color="#b2182b", fontsize=8,
    )  # fmt: skip
    for window, mean in (("before_s", outcome.load_std_before), ("after_s", outcome.load_std_after)):
        axes.plot(outcome.settings[window], (mean, mean), color="#b2182b", linewidth=1.7, linestyle=":")
    axes.set_ylim(bottom=0)


def _success(axes: Axes, outcome: Outcome, times: list[float]) -> None:
    _title_of(axes, "Success of the consumer's calls", "after retries")
    success = [second.consumer.success for second in outcome.series]
    values = [float("nan") if one is None else one for one in success]
    axes.plot(times, values, color="#1b7837", linewidth=1.7)
    axes.set_ylim(min([0.98, *(one - 0.005 for one in values if one == one)]), 1.002)
    _percent(axes, digits=1)


def _phases(axes: Axes, outcome: Outcome, is_named: bool) -> None:
    for phase in outcome.phases:
        axes.axvspan(phase["start_s"], phase["end_s"], color=_PHASE_COLOURS.get(phase["name"], "white"), zorder=-2)
        if is_named:
            middle_s = (phase["start_s"] + phase["end_s"]) / 2
            axes.text(middle_s, 0.985, phase["name"], transform=axes.get_xaxis_transform(), **_PHASE_NAME)
        if phase["name"] in ("fault", "healed"):
            axes.axvline(phase["start_s"], color="#b2182b", linewidth=0.8, linestyle=":")
    axes.set_xlim(0, outcome.phases[-1]["end_s"])
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _title_of(axes: Axes, title: str, subtitle: str) -> None:
    axes.set_title(f"{title}", loc="left", fontsize=10.5, fontweight="bold", pad=16)
    axes.annotate(
        subtitle, (0, 1), xycoords="axes fraction", xytext=(0, 4), textcoords="offset points", fontsize=8,
        color="#777777",
    )  # fmt: skip


def _percent(axes: Axes, digits: int = 0) -> None:
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.{digits}%}")


def _page(outcome: Outcome, svg: str) -> str:
    rows = "".join(
        f"<tr><td>{html.escape(bar.what)}</td><td>{bar.value:.3g}</td><td>{bar.bound:g}</td>"
        f"<td>{'met' if bar.is_met else 'missed'}</td></tr>"
        for bar in outcome.expectations
    )
    told = ("policy", "seconds", "cpu_shares_by", "data_set")
    facts = " · ".join(f"{html.escape(key)}: {html.escape(str(outcome.settings[key]))}" for key in told)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Steelyard: the demonstration</title>
<style>body{{font:15px/1.5 system-ui,sans-serif;color:{_INK};max-width:1200px;margin:2em auto;padding:0 1em}}
svg{{width:100%;height:auto}}td,th{{text-align:left;padding:.2em 1.5em .2em 0}}small{{color:#777}}</style></head>
<body>{svg}<table><tr><th>expectation</th><th>value</th><th>bound</th><th></th></tr>{rows}</table>
<p><small>{facts}</small></p></body></html>
"""

"""The picture: load per node over time, one panel per policy, all on one scale. The nodes that a scenario watches, as a
rule those with a fault, are red, and dotted lines stand where faults begin and end.

matplotlib, and only when a picture is asked for. A ``.html`` file holds the same drawing as SVG inside a page, so that
it opens anywhere and stays sharp.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from io import StringIO
from pathlib import Path
from typing import Any

from steelyard.errors import ConfigError

from .run import Result
from .table import describe

ENDINGS = (".png", ".svg", ".html")
_MOST_LINES = 200
_WATCHED = "watched"
_COLOURS = ("C0", "C1", "C2", "C4", "C5", "C6", "C8", "C9")  # without the red and the grey of the cycle


def check_picture(path: Path) -> None:
    """Raise ConfigError for an ending that cannot be drawn, a folder that is not there, or where matplotlib is missing:
    before hours of runs."""
    if path.suffix not in ENDINGS:
        raise ConfigError(f"--plot takes a file ending in {', '.join(ENDINGS)}, not {path.name!r}")
    if not path.parent.is_dir():
        raise ConfigError(f"--plot: there is no folder {str(path.parent)!r}")
    try:
        import matplotlib as _  # noqa: F401
    except ImportError:
        raise ConfigError("--plot needs matplotlib: pip install 'steelyard[examples]'") from None


def draw(results: Sequence[Result], path: Path) -> None:
    """One row per scenario and variant, one column per policy, of results that kept their loads."""
    from matplotlib.figure import Figure

    kept = [result for result in results if result.loads]
    rows = list(dict.fromkeys((result.scenario, describe(result.variant)) for result in kept))
    columns = list(dict.fromkeys(result.policy for result in kept))
    figure = Figure(figsize=(3.2 * len(columns) + 0.6, 2.4 * len(rows) + 0.6), layout="constrained")
    panels = figure.subplots(len(rows), len(columns), squeeze=False, sharey=True)
    for panel in panels.flat:
        panel.set_visible(False)
    for result in kept:
        row, column = rows.index((result.scenario, describe(result.variant))), columns.index(result.policy)
        _panel(panels[row][column], result, is_left=column == 0)
    panels[0][0].set_ylim(bottom=0.0)  # of all panels; asked of the first one before the others, it would cut those off
    if path.suffix == ".html":
        path.write_text(_page(figure, rows), encoding="utf-8")
    else:
        figure.savefig(path, dpi=120)


def _panel(panel: Any, result: Result, *, is_left: bool) -> None:
    kinds = [_WATCHED if node in result.watched else node.rpartition("-")[0] for node in result.nodes]
    groups = list(dict.fromkeys(kind for kind in kinds if kind != _WATCHED))
    colours = {_WATCHED: "red", **{group: _COLOURS[at % len(_COLOURS)] for at, group in enumerate(groups)}}
    step = max(1, len(result.nodes) // _MOST_LINES)
    places = [at for at, kind in enumerate(kinds) if kind == _WATCHED or at % step == 0][: 2 * _MOST_LINES]
    for at_s in result.turns_s:
        panel.axvline(at_s, color="grey", linestyle=":", linewidth=0.7)
    labelled: set[str] = set()
    for place in sorted(places, key=lambda at: kinds[at] == _WATCHED):
        kind = kinds[place]
        line = [second[place] for second in result.loads]
        label = None if kind in labelled or len(colours) < 2 else kind
        panel.plot(range(1, len(line) + 1), line, color=colours[kind], alpha=0.5, linewidth=0.7, label=label)
        labelled.add(kind)
    panel.set_visible(True)
    panel.set_title(result.policy, fontsize=9)
    panel.set_xlabel("seconds", fontsize=8)
    if is_left:
        about = ": ".join(filter(None, (result.scenario, describe(result.variant))))
        panel.set_ylabel(f"{about}\nutilization per node", fontsize=8)
        if len(labelled) > 1:
            panel.legend(fontsize=7)
    panel.tick_params(labelsize=7)


def _page(figure: Any, rows: Sequence[tuple[str, str]]) -> str:
    drawing = StringIO()
    figure.savefig(drawing, format="svg")
    svg = drawing.getvalue()
    title = escape(", ".join(dict.fromkeys(scenario for scenario, _ in rows)))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f"<body>{svg[svg.index('<svg') :]}</body></html>\n"
    )

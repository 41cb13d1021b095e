"""``steelyard demo``: the options, the screen, and what is written at the end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..failure import Failure, reported
from ..options import Debug, complete_policy
from .plan import ONE_THREAD, DemoOptions

if TYPE_CHECKING:
    from rich.console import Console

    from .outcome import Outcome
    from .run import Played


def demo_command(
    seconds: Annotated[float, typer.Option("--seconds", metavar="S", help="How long it lasts, 8 or more.")] = 30.0,
    json: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the numbers here.")] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            metavar="FILE",
            help="Where to write the picture, .png or .html; what is there already is overwritten.",
        ),
    ] = Path("steelyard-demo.png"),
    no_plot: Annotated[bool, typer.Option("--no-plot", help="Write no picture.")] = False,
    no_fault: Annotated[bool, typer.Option("--no-fault", help="Let every node stay well.")] = False,
    registry: Annotated[
        str | None,
        typer.Option("--registry", "-r", metavar="URL", help="Register there. [default: a private embedded registry]"),
    ] = None,
    policy: Annotated[
        str,
        typer.Option(
            "--policy",
            metavar="NAME",
            autocompletion=complete_policy,
            help="What follows plain hashing: dual, random, round_robin, ...",
        ),
    ] = "dual",
    debug: Debug = False,
) -> None:
    """Watch an unequal cluster serve a model: eight real processes, two policies, and one node that falls ill.

    First all calls go by plain consistent hashing, after a sixth of the time by --policy.

    After a third, one node starts to fail half its calls; after two thirds it is well again.

    The picture lands in the current folder, as steelyard-demo.png, unless --plot or --no-plot says otherwise.

    Exits with 0 when it could be run, whether or not every expectation was met.
    """
    with reported("demo", is_debug=debug):
        play(
            DemoOptions(
                seconds=seconds,
                json=json,
                plot=None if no_plot else plot,
                has_fault=not no_fault,
                registry=registry,
                policy=policy,
            )
        )


def play(options: DemoOptions) -> Outcome:
    """Plays the demonstration and writes what *options* ask for."""
    import asyncio
    import os

    # gRPC's own log lines (a peer that leaves is one) would tear the live table; it reads this when it is loaded, and
    # numpy the others.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    os.environ.update(ONE_THREAD)

    from rich.console import Console

    from .interrupt import main_task_cancelled_by_signals
    from .plan import Schedule
    from .run import run_demo
    from .screen import PlainScreen, TerminalScreen, summary

    for path in (options.json, options.plot):
        _check_writable(path)
    console = Console()
    schedule = Schedule(options.seconds, options.has_fault, options.policy)
    with TerminalScreen(console, schedule) if console.is_terminal else PlainScreen(console) as screen:
        played = asyncio.run(main_task_cancelled_by_signals(run_demo(options, screen)))
    summary(console, played.outcome)
    _write(options, played, console)
    return played.outcome


def _check_writable(path: Path | None) -> None:
    """Before the play and not after it: half a minute is too long to learn of a typing error."""
    if path is not None and not path.parent.is_dir():
        raise Failure(f"there is no folder {path.parent} to write {path.name} into")


def _write(options: DemoOptions, played: Played, console: Console) -> None:
    if options.json is not None:
        options.json.write_bytes(played.outcome.encoded())
        console.print(f"numbers: {options.json}", highlight=False, soft_wrap=True)
    if options.plot is not None:
        if played.undrawn is not None:
            raise Failure(f"the picture could not be written: {played.undrawn}")
        console.print(f"picture: {options.plot}", highlight=False, soft_wrap=True)

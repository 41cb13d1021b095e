"""The group of commands, and the one command that is another room's.

The demonstration brings a model and a fleet of its own. ``steelyard --help`` shows its line without importing it; it is
imported when it is run (or completed), and a machine that lacks what it needs is told so in one line.
"""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

DEMO = "demo"
DEMO_HELP = "Run an unequal cluster on this machine, and watch its load being evened out."


class LazyGroup(TyperGroup):
    """A group that lists ``demo`` with a short help of ours, and imports it when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*(name for name in super().list_commands(ctx) if name != "version"), DEMO, "version"]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name == DEMO:
            return _stub()
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return (name, demo_command(), rest) if name == DEMO else (name, command, rest)


def demo_command() -> Any:
    """The demonstration as a command. Ends with one line and exit code 1 when it cannot be imported."""
    try:
        from steelyard.cli import demo

        function = demo.demo_command
    except (ImportError, AttributeError) as error:
        missing = getattr(error, "name", None)
        what = f"{missing!r} is missing" if missing and not missing.startswith("steelyard") else str(error)
        typer.echo(
            f"steelyard demo: the demonstration cannot be loaded: {what}; "
            "install what it needs with: pip install 'steelyard[examples]'",
            err=True,
        )
        raise typer.Exit(1) from None
    return _as_command(function)


def _stub() -> Any:
    def stub() -> None:
        """Stands in the list of commands."""

    stub.__doc__ = DEMO_HELP
    return _as_command(stub)


def _as_command(function: Any) -> Any:
    holder = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
    holder.command(DEMO, context_settings={"help_option_names": ["-h", "--help"]})(function)
    return typer.main.get_command(holder)

"""The command line: ``steelyard serve | call | nodes | demo | version``.

It is made so that ``steelyard --help`` loads neither gRPC nor numpy nor a registry client: every command imports what
it needs when it runs, and not before.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line on *arguments* (None: the process's own) and exits with its code: 0 done, 1 it went wrong,
    2 it was asked wrongly, 130 interrupted."""
    from .app import app

    app(args=None if arguments is None else list(arguments), prog_name="steelyard")

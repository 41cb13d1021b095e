"""What a user sees when a command fails: one line on stderr and an exit code, and a traceback only for ``--debug``.

Exit code 2 says that the command was asked wrongly and will fail again however often it is tried; 1 that it was asked
rightly and went wrong.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Callable, Iterator

import typer

from steelyard.errors import ConfigError, ContractError, RegistryUnavailable, RemoteError, RpcError, SteelyardError

WENT_WRONG = 1
ASKED_WRONGLY = 2
INTERRUPTED = 130


class Failure(SteelyardError):
    """A command ends with this line and this exit code."""

    def __init__(self, message: str, exit_code: int = WENT_WRONG) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def usage(message: str) -> Failure:
    """The failure of a command that was asked wrongly."""
    return Failure(message, ASKED_WRONGLY)


@contextlib.contextmanager
def reported(
    command: str, *, is_debug: bool = False, on_error: Callable[[BaseException], None] | None = None
) -> Iterator[None]:
    """Turns what the block raises into one line and an exit code. *on_error* is told instead of everybody but a person
    at a terminal: the commands that it is given for have printed a document, and whoever reads that needs no line."""
    try:
        yield
    except typer.Exit:
        raise
    except KeyboardInterrupt:
        typer.echo(f"steelyard {command}: interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:  # the reader of a pipe has left; whatever is still buffered must not complain at exit
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.close()
        raise typer.Exit(WENT_WRONG) from None
    except Exception as error:
        error = _in_options(error, command)
        if is_debug:
            traceback.print_exception(error)
        if on_error is not None:
            on_error(error)
        if on_error is None or sys.stderr.isatty():
            # A call's own error speaks for itself: it begins with its status.
            typer.echo(
                called(error) if isinstance(error, RpcError) else f"steelyard {command}: {_line(error)}", err=True
            )
        raise typer.Exit(_exit_code(error)) from None


def called(error: RpcError) -> str:
    """An error of a call in one line. One that the service declares goes by its own name; its status says nothing."""
    if not is_declared(error):
        return str(error)
    node = f"; node {error.node}" if error.node else ""
    return f"{error.message} (declared by the service{node})"


def is_declared(error: BaseException) -> bool:
    """Whether it stands for an exception that the service declares; without the contract it is not rebuilt as one."""
    return isinstance(error, RemoteError) and error.details is not None


def _in_options(error: Exception, command: str) -> Exception:
    """The library's advice names its own arguments; here they are options, and the demonstration has no such one."""
    if not isinstance(error, RegistryUnavailable):
        return error
    advice = "" if command == "demo" else ", or use --registry-wait forever to wait for it"
    said = str(error).replace(", or open with registry_wait_s=None to wait for it", advice)
    return RegistryUnavailable(said).with_traceback(error.__traceback__)


def _line(error: Exception) -> str:
    known = isinstance(error, SteelyardError | OSError)
    text = " ".join(str(error).split()) or type(error).__name__
    return text if known else f"internal error: {type(error).__name__}: {text} (--debug shows where)"


def _exit_code(error: Exception) -> int:
    if isinstance(error, Failure):
        return error.exit_code
    if isinstance(error, ConfigError | ContractError) and not isinstance(error, RpcError):
        return ASKED_WRONGLY
    return WENT_WRONG

"""What goes to stdout: exactly one JSON document, or text for people.

Values that JSON does not have follow the JSON mapping of protobuf, which other tools know: bytes as base64, moments in
RFC 3339, and NaN and the infinities as strings. A provider takes bytes and moments back in the same form.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import decimal
import enum
import json
import math
import os
import shutil
import sys
import uuid
from collections.abc import Callable, Mapping
from typing import Any, TextIO

import typer

from steelyard.errors import RpcError

from .failure import is_declared


def plain(value: Any, note: Callable[[str], object] = lambda _: None) -> Any:
    """*value* in JSON's own types. *note* hears what was changed on the way (bytes shown as base64)."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, enum.Enum):
        return plain(value.value, note)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else _odd_number(value)
    if isinstance(value, bytes | bytearray | memoryview):
        note("bytes are shown as base64")
        return base64.b64encode(bytes(value)).decode("ascii")
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else _key(key, note): plain(item, note) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item, note) for item in value]
    return _record(value, note)


def _odd_number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _key(key: Any, note: Callable[[str], object]) -> str:
    value = plain(key, note)
    return value if isinstance(value, str) else json.dumps(value)


def _record(value: Any, note: Callable[[str], object]) -> Any:
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, uuid.UUID | decimal.Decimal):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name), note) for field in dataclasses.fields(value)}
    # Not by type: that would load numpy to ask whether this is one of its arrays.
    if hasattr(value, "tolist") and hasattr(value, "dtype"):
        if getattr(value, "ndim", 0):
            note(f"array of {value.dtype}, shape {'x'.join(map(str, value.shape))}")
        return plain(value.tolist(), note)
    return str(value)


def write_document(value: Any) -> None:
    """The one JSON document of a command, on stdout."""
    sys.stdout.write(json.dumps(plain(value), ensure_ascii=False, allow_nan=False) + "\n")
    sys.stdout.flush()


def error_document(error: BaseException) -> dict[str, Any]:
    """``status`` is gRPC's name, or null where no call was made; ``node`` who answered or failed, if anybody;
    ``is_declared`` says that the message begins with the name of an exception that the service declares."""
    if isinstance(error, RpcError):
        return {
            "status": error.status.name,
            "message": error.message,
            "node": error.node,
            "is_remote": error.is_remote,
            "is_declared": is_declared(error),
        }
    return {"status": None, "message": str(error), "node": None, "is_remote": False, "is_declared": False}


def pretty(value: Any, width: int) -> str:
    """JSON for reading, still JSON: on one line where it fits, and lists of plain values filled line by line."""
    return _laid_out(value, width, "")


def _laid_out(value: Any, width: int, indent: str) -> str:
    text = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(text) <= width or not isinstance(value, list | dict) or not value:
        return text
    inner = indent + "  "
    if isinstance(value, dict):
        rows = [
            f"{inner}{json.dumps(key, ensure_ascii=False)}: {_laid_out(item, width, inner)}"
            for key, item in value.items()
        ]
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    if any(isinstance(item, list | dict) for item in value):
        return "[\n" + ",\n".join(inner + _laid_out(item, width, inner) for item in value) + f"\n{indent}]"
    return "[\n" + _filled([json.dumps(item, ensure_ascii=False) for item in value], width, inner) + f"\n{indent}]"


def _filled(items: list[str], width: int, indent: str) -> str:
    lines, line = [], indent
    for at, item in enumerate(items):
        item = item if at == len(items) - 1 else f"{item},"
        if line != indent and len(line) + len(item) + 1 > width:
            lines.append(line)
            line = indent
        line += item if line == indent else f" {item}"
    return "\n".join([*lines, line])


def is_terminal(stream: TextIO) -> bool:
    """Whether a person reads *stream*."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def terminal_width() -> int:
    """Columns of the terminal, or 100 where there is none."""
    return shutil.get_terminal_size((100, 24)).columns


def remark(text: str) -> None:
    """A remark beside the answer, on stderr."""
    typer.echo(f"({text})", err=True)

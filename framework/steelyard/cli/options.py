"""Options that several commands share, and how their texts become values.

Only built-in types stand in the annotations: Typer reads them when the program starts, whatever the command is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from .failure import usage

REGISTRY_HELP = (
    "Where the nodes are registered: zookeeper://host:port,host:port/root, embedded:///path/file or "
    "static://host:port,...; by default this user's embedded registry."
)
# Offered by the shell; complete enough to go on typing from.
REGISTRY_STARTS = ("zookeeper://", "embedded://", "static://")
LOG_LEVELS = ("debug", "info", "warning", "error")


def complete_registry(incomplete: str) -> list[str]:
    return [start for start in REGISTRY_STARTS if start.startswith(incomplete)]


def complete_log_level(incomplete: str) -> list[str]:
    return [level for level in LOG_LEVELS if level.startswith(incomplete)]


def complete_policy(incomplete: str) -> list[str]:
    from steelyard.balance import policy_names

    return [name for name in policy_names() if name.startswith(incomplete)]


def complete_policies(incomplete: str) -> list[str]:
    """Names with commas between: the last one."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in complete_policy(last)]


def complete_scenario(incomplete: str) -> list[str]:
    from steelyard.sim import scenario_names

    return [name for name in scenario_names() if name.startswith(incomplete)]


def complete_hardware(incomplete: str) -> list[str]:
    names = ("kind=cpu", "kind=gpu", "model=", "cores=", "quota=", "memory_bytes=", "accelerators=")
    return [name for name in names if name.startswith(incomplete)]


Registry = Annotated[
    str | None,
    typer.Option(
        "--registry", "-r", metavar="URL", envvar="STEELYARD_REGISTRY", help=REGISTRY_HELP,
        autocompletion=complete_registry,
    ),
]  # fmt: skip
RegistryWait = Annotated[
    str,
    typer.Option(
        "--registry-wait", metavar="SECONDS|forever", help="How long to wait for the registry before giving up."
    ),
]
Where = Annotated[
    str | None,
    typer.Option(
        "--where",
        metavar="EXPR",
        help="Only nodes whose facts fit, for example: hw.kind == 'gpu' and zone == 'a' and tag.pool == 'ads'",
    ),
]
TlsCa = Annotated[
    str | None,
    typer.Option(
        "--tls-ca", metavar="FILE", envvar="STEELYARD_TLS_CA",
        help="Whose certificates to believe (PEM). Calls then go over TLS only.",
    ),
]  # fmt: skip
TlsCertificate = Annotated[
    str | None,
    typer.Option(
        "--tls-certificate", metavar="FILE", envvar="STEELYARD_TLS_CERTIFICATE",
        help="The own certificate with its chain (PEM).",
    ),
]  # fmt: skip
TlsKey = Annotated[
    str | None,
    typer.Option("--tls-key", metavar="FILE", envvar="STEELYARD_TLS_KEY", help="The key of the own certificate (PEM)."),
]
TlsServerName = Annotated[
    str | None,
    typer.Option(
        "--tls-server-name", metavar="NAME", envvar="STEELYARD_TLS_SERVER_NAME",
        help="What the nodes' certificates say, in place of the address.",
    ),
]  # fmt: skip
BearerFile = Annotated[
    str | None,
    typer.Option(
        "--bearer-file", metavar="FILE", envvar="STEELYARD_BEARER_FILE",
        help="A file with the bearer token that goes with the call; needs TLS.",
    ),
]  # fmt: skip
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error, and debug logs.")]


def credentials(
    ca: str | None,
    certificate: str | None,
    key: str | None,
    server_name: str | None = None,
    *,
    requires_client: bool = False,
) -> Any:
    """Credentials, or None when nothing was given. Raises ConfigError."""
    if not (ca or certificate or key or server_name or requires_client):
        return None
    from steelyard.security import Credentials

    return Credentials(
        ca=ca or None,
        certificate=certificate or None,
        key=key or None,
        server_name=server_name or "",
        require_client_certificate=requires_client,
    )


def pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    """``["k=v", ...]`` as a dict. Fails on what has no ``=``, an empty key, or a key given twice."""
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        key = key.strip()
        if not equals or not key:
            raise usage(f"{option} takes key=value, not {text!r}")
        if key in found:
            raise usage(f"{option} {key}= is given twice")
        found[key] = value
    return found


def wait_s(text: str, option: str = "--registry-wait") -> float | None:
    """Seconds, or None for ``forever``."""
    if text.strip().lower() in ("forever", "inf", "infinity"):
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise usage(f"{option} takes a number of seconds, 0 or more, or 'forever', not {text!r}")
    return seconds


def arguments(text: str) -> list[Any] | dict[str, Any]:
    """The arguments of a call: a JSON list (by position) or object (by name)."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        hint = "; JSON has double quotes" if "'" in text and '"' not in text else ""
        raise usage(f"--json: this is not JSON: {error}{hint}") from None
    if not isinstance(value, list | dict):
        raise usage(
            f'--json takes the arguments as a list, [7, [1, 2]], or by name, {{"user_id": 7}}, not {_short(value)}'
        )
    return value


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

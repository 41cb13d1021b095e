"""``steelyard registry``: what a registry holds, entry by entry, and for the embedded one, its file: shown and
repaired.

Repairing is for the operator who has no time: entries whose lease is over and entries that cannot be read are deleted,
and SQLite checks its file. Living processes lose nothing, since each restores its own entry with its next beat.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import typer

from steelyard.cluster import open_at, translated
from steelyard_registry import DEFAULT_URL, ServiceKey, open_registry

from .failure import WENT_WRONG, usage
from .output import write_document


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """``registry_wait_s`` None: for ever."""

    registry: str | None
    registry_wait_s: float | None = 10.0


async def look(asked: Asked) -> dict[str, Any]:
    """The services of a registry, with their nodes and how many entries could not be read."""
    async with await open_at(asked.registry, asked.registry_wait_s) as registry:
        services = []
        for interface in await registry.services():
            view = await registry.subscribe(ServiceKey(interface=interface, version="*", group="*"))
            found = view.snapshot
            services.append(
                {
                    "interface": interface,
                    "nodes": [{"address": node.address, "state": node.state.value} for node in found.nodes],
                    "skipped": found.skipped,
                    "is_stale": found.is_stale,
                }
            )
            await view.close()
        return {"registry": registry.url, "keeps_rules": registry.keeps_rules, "services": services}


def repair(url: str | None) -> dict[str, Any]:
    """Checks and cleans the embedded registry's file. Raises ConfigError, RegistryUnavailable, or the usage failure."""
    with translated():
        registry = open_registry(url or DEFAULT_URL)
        mend = getattr(registry, "repair", None)
        if mend is None:
            raise usage(f"--repair: {registry.url} has no file of ours to repair; it is for embedded://")
        report = mend()
    return {
        "registry": registry.url,
        "is_sound": report.is_sound,
        "expired": report.expired,
        "unreadable": report.unreadable,
    }


def show(found: dict[str, Any], *, is_json: bool) -> None:
    if is_json:
        write_document(found)
        return
    typer.echo(found["registry"])
    for service in found["services"]:
        stale = ", stale" if service["is_stale"] else ""
        skipped = f", {service['skipped']} entries cannot be read" if service["skipped"] else ""
        count = len(service["nodes"])
        typer.echo(f"  {service['interface']}: {count} node{'' if count == 1 else 's'}{skipped}{stale}")
        for node in service["nodes"]:
            typer.echo(f"    {node['address']}  {node['state']}")
    if not found["services"]:
        typer.echo("  no services")


def run_repair(url: str | None, *, is_json: bool) -> None:
    """Ends with exit code 1 when the file is damaged."""
    report = repair(url)
    if is_json:
        write_document(report)
    else:
        sound = "sound" if report["is_sound"] else "DAMAGED: stop the processes that use it and remove it"
        typer.echo(f"{report['registry']}: {sound}")
        typer.echo(
            f"  removed: {report['expired']} entries past their lease, {report['unreadable']} that cannot be read"
        )
    if not report["is_sound"]:
        raise typer.Exit(WENT_WRONG)

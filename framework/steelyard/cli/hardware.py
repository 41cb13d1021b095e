"""``steelyard hardware``: what a provider started here would say of this machine, and how busy it is now."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import typer

from steelyard.hardware import (
    Sampler,
    detect,
    detect_facts,
    detect_zone,
    gpu_source,
    load_nvml,
    split_overrides,
)
from steelyard_registry import Hardware

from .output import write_document
from .words import hardware as in_words
from .words import percent, size

WATCHED_S = 1.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What was found. ``utilization`` is None where it was not asked for; ``has_gpu`` whether NVML answered."""

    hardware: Hardware
    facts: Mapping[str, str]
    zone: str
    utilization: Mapping[str, float] | None
    has_gpu: bool


def look(overrides: Mapping[str, str], *, is_busy_asked: bool = True) -> Seen:
    """Detects, and watches for WATCHED_S seconds how busy this process's group is. Raises ConfigError."""
    fields, facts = split_overrides(overrides)
    nvml = load_nvml()
    hardware = detect(fields, nvml=lambda: nvml)
    tags = detect_facts(facts, nvml=nvml)
    utilization = None
    if is_busy_asked:
        sampler = Sampler()
        if nvml is not None:
            sampler.add_source("gpu", gpu_source(nvml))
        try:
            sampler.sample()
            time.sleep(WATCHED_S)
            utilization = sampler.sample()
        finally:
            sampler.stop()
    return Seen(hardware, tags, detect_zone(), utilization, nvml is not None)


def run(overrides: Mapping[str, str], *, is_json: bool) -> None:
    seen = look(overrides)
    if is_json:
        write_document(document(seen))
        return
    for line in lines(seen):
        typer.echo(line)


def document(seen: Seen) -> dict[str, Any]:
    """Sizes in bytes, cores as numbers, shares in [0, 1]; what is not known is null or absent."""
    return {
        "hardware": asdict(seen.hardware),
        "facts": dict(seen.facts),
        "zone": seen.zone,
        "utilization": None if seen.utilization is None else dict(seen.utilization),
        "has_nvml": seen.has_gpu,
    }


def lines(seen: Seen) -> list[str]:
    """For people: one fact a line, named as it is overridden."""
    hardware, facts = seen.hardware, dict(seen.facts)
    rows = [
        ("summary", in_words(hardware)),
        ("hw.kind", hardware.kind),
        ("hw.model", hardware.model),
        ("hw.cores", _number(hardware.cores)),
        ("hw.quota", _number(hardware.quota) or "none"),
        ("hw.memory", size(hardware.memory_bytes)),
        ("hw.accelerators", ", ".join(hardware.accelerators) or _no_accelerators(seen)),
        *sorted(facts.items()),
        ("zone", seen.zone or "none"),
    ]
    if seen.utilization is not None:
        rows += [(f"load {name}", percent(share)) for name, share in sorted(seen.utilization.items())]
    width = max(len(name) for name, _ in rows)
    return [f"{name:<{width}}  {value}" for name, value in rows]


def _no_accelerators(seen: Seen) -> str:
    if seen.has_gpu:
        return "none"
    return "none (NVML is not here: no NVIDIA driver, or nvidia-ml-py is not installed: pip install 'steelyard[gpu]')"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:g}"

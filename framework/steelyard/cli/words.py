"""Facts in words for people: sizes, hardware, ages, shares."""

from __future__ import annotations

import re
from collections.abc import Mapping

from steelyard.security import HIDDEN, TOKEN_TAG
from steelyard_registry import Hardware

# What CPU makers add to a model's name and nobody needs to tell two machines apart.
_NOISE = re.compile(r"\((R|TM|C)\)|\b(CPU|Processor|\d+-Core)\b|@ ?[\d.]+ ?GHz", re.IGNORECASE)


def size(count: int | None) -> str:
    """Bytes with a binary unit and three figures at most: ``512 B``, ``1.5 GiB``, ``755 GiB``."""
    if count is None:
        return "?"
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if abs(value) < 1024 or unit == "PiB":
            break
        value /= 1024
    digits = 0 if unit == "B" or value >= 99.95 else 1
    return f"{value:.{digits}f}".removesuffix(".0") + f" {unit}"


def number(value: float) -> str:
    """Without a needless fraction: ``8``, ``0.2``, ``1.25``."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def model(name: str) -> str:
    """A CPU's model without what its maker adds."""
    return " ".join(_NOISE.sub(" ", name).split())


def accelerators(names: tuple[str, ...]) -> str:
    """``2x H100, A10``."""
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return ", ".join(name if count == 1 else f"{count}x {name}" for name, count in counts.items())


def hardware(facts: Hardware) -> str:
    """One line: kind and devices, CPU time that may be used, memory, model. What is not known is left out."""
    parts = [f"{facts.kind} {accelerators(facts.accelerators)}".rstrip()]
    if facts.quota is not None and facts.cores is not None:
        parts.append(f"{number(facts.quota)} of {number(facts.cores)} cores")
    elif facts.quota is not None or facts.cores is not None:
        cores = number(facts.quota if facts.quota is not None else facts.cores or 0.0)
        parts.append(f"{cores} core{'' if cores == '1' else 's'}")
    if facts.memory_bytes is not None:
        parts.append(size(facts.memory_bytes))
    if facts.model:
        parts.append(model(facts.model))
    return ", ".join(parts)


def percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def utilization(shares: Mapping[str, float]) -> str:
    """``cpu 42 %, gpu 7 %``."""
    return ", ".join(f"{name} {percent(share)}" for name, share in sorted(shares.items()))


def shown(tags: Mapping[str, str]) -> dict[str, str]:
    """Tags as anybody may see them."""
    return {key: HIDDEN if key == TOKEN_TAG else value for key, value in tags.items()}


def pairs(tags: Mapping[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in sorted(shown(tags).items()))


def counted(count: int, noun: str) -> str:
    """``1 node``, ``3 nodes``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"

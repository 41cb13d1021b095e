"""Scenario files: found, read, varied and checked.

TOML because a scenario is a document with comments about why its numbers are what they are. The files are package
data, so that an installed ``steelyard sim`` has them; ``tests/sim/scenarios`` in the clone is a link to them.
"""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import msgspec

from steelyard.errors import ConfigError

from .measure import METRICS
from .scenario import Fault, Scenario
from .targets import node_places

SHIPPED = Path(__file__).parent / "scenarios"


def scenario_names() -> tuple[str, ...]:
    """The scenarios that ship, by name."""
    return tuple(sorted(path.stem for path in SHIPPED.glob("*.toml")))


def load_scenario(name: str | Path) -> Scenario:
    """The scenario with its first value on each axis. Raises ConfigError that says what is wrong where."""
    return variants(name)[0][1]


def variants(name: str | Path) -> list[tuple[Mapping[str, Any], Scenario]]:
    """Every combination of the axes' values, in the file's order: (name -> value, scenario)."""
    path = _find(name)
    document = _parse(path)
    base = _convert(path, document)
    found: list[tuple[Mapping[str, Any], Scenario]] = []
    for numbers in product(*(range(len(axis.values)) for axis in base.axes)):
        varied = copy.deepcopy(document)
        for axis, number in zip(base.axes, numbers, strict=True):
            for place in [axis.sets] if isinstance(axis.sets, str) else axis.sets:
                _put(path, varied, place, axis.values[number])
        named = {axis.name: axis.shown[number] for axis, number in zip(base.axes, numbers, strict=True)}
        found.append((named, _convert(path, varied)))
    return found


def _find(name: str | Path) -> Path:
    path = Path(name)
    if path.suffix == ".toml":
        if path.is_file():
            return path
        raise ConfigError(f"there is no scenario file {path}")
    shipped = SHIPPED / f"{path.name}.toml"
    if path.name == str(name) and shipped.is_file():
        return shipped
    raise ConfigError(f"there is no scenario {str(name)!r}; there are: {', '.join(scenario_names())}")


def _parse(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path.name}: this is not TOML: {error}") from None


def _convert(path: Path, document: dict[str, Any]) -> Scenario:
    try:
        scenario = msgspec.convert(document, Scenario)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path.name}: {error}") from None
    for problem in _problems(scenario):
        raise ConfigError(f"{path.name}: {problem}")
    return scenario


def _put(path: Path, document: dict[str, Any], place: str, value: Any) -> None:
    """Set ``faults.0.rate`` and the like in the parsed document. A table may be missing, an item not."""
    *way, last = place.split(".")
    here: Any = document
    try:
        for part, following in zip(way, [*way[1:], last], strict=True):
            if isinstance(here, list):
                here = here[int(part)]
            else:
                here = here[part] if following.isdigit() else here.setdefault(part, {})
        here[int(last) if isinstance(here, list) else last] = value
    except (LookupError, ValueError, AttributeError, TypeError):
        raise ConfigError(f"{path.name}: an axis sets {place!r}, and there is no such place") from None


def _problems(scenario: Scenario) -> Iterator[str]:
    """What types and ranges alone cannot say."""
    if len({group.name for group in scenario.nodes}) < len(scenario.nodes):
        yield "two node groups have the same name"
    for fault in scenario.faults:
        yield from _fault_problems(scenario, fault)
    for target in [*(antagonist.nodes for antagonist in scenario.antagonists), scenario.measure.watch]:
        yield from _target_problems(scenario, target)
    if scenario.measure.from_s >= scenario.until_s:
        yield f"measure.from_s ({scenario.measure.from_s:g}) is not before the end ({scenario.until_s:g})"
    if isinstance(scenario.traffic.load, list):
        times = [at_s for at_s, _ in scenario.traffic.load]
        if times != sorted(times) or not times:
            yield "traffic.load: the points' seconds must ascend"
    for gate in scenario.gates:
        if (gate.at_most is None) == (gate.at_least is None):
            yield f"gate {gate.name!r} needs at_most or at_least, and not both"
        if gate.metric not in METRICS:
            yield f"gate {gate.name!r}: there is no metric {gate.metric!r}; there are: {', '.join(METRICS)}"
        unknown = (set(gate.only) | set(gate.beside)) - {axis.name for axis in scenario.axes}
        if unknown:
            yield f"gate {gate.name!r} names {', '.join(sorted(unknown))}, and there is no such axis"
    for axis in scenario.axes:
        if not axis.values or len(axis.shown) != len(axis.values):
            yield f"axis {axis.name!r} needs values, and as many labels as values or none"


def _fault_problems(scenario: Scenario, fault: Fault) -> Iterator[str]:
    if fault.every_s is not None and fault.at_s + fault.every_s < fault.until_s:
        yield f"fault {fault.kind!r} begins again after {fault.every_s:g} s, before it has ended"
    if fault.until_s <= fault.at_s:
        yield f"fault {fault.kind!r} ends ({fault.until_s:g}) before it begins ({fault.at_s:g})"
    yield from _target_problems(scenario, fault.nodes)


def _target_problems(scenario: Scenario, target: str | list[str]) -> Iterator[str]:
    try:
        node_places(scenario.nodes, target)
    except ConfigError as error:
        yield str(error)

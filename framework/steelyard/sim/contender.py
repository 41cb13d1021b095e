"""Contender: a policy with its settings, as the command line and scenarios name it.

dual                                        as it ships
weighted_round_robin:outlier_ejection=true  with settings, separated by semicolons
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from steelyard.balance import Policy, make_policy, policy_names
from steelyard.errors import ConfigError

from .scenario import Scenario


@dataclass(frozen=True, slots=True)
class Contender:
    """``name`` is how tables call it; ``make()`` gives a new policy object."""

    name: str
    policy: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def make(self) -> Policy:
        return make_policy(self.policy, **self.settings)


def contender(text: str, scenario: Scenario | None = None) -> Contender:
    """Read ``policy[:setting=value;...]``; a scenario's own ``[settings.policy]`` go under them. Raises ConfigError
    for what no policy takes."""
    policy, _, rest = text.partition(":")
    settings: dict[str, Any] = dict(scenario.settings.get(policy, {})) if scenario is not None else {}
    for part in filter(None, rest.split(";")):
        name, equals, value = part.partition("=")
        if not equals:
            raise ConfigError(f"policy {text!r}: settings are written name=value, not {part!r}")
        settings[name.strip()] = _value(value.strip())
    found = Contender(text, policy, settings)
    found.make()
    return found


def contenders(texts: Sequence[str], scenario: Scenario) -> list[Contender]:
    """``all`` stands for what the scenario compares, or for every policy there is. No name twice."""
    wanted: list[str] = []
    for text in texts:
        wanted += (scenario.policies or list(everybody())) if text == "all" else [text]
    return [contender(text, scenario) for text in dict.fromkeys(wanted)]


def everybody() -> tuple[str, ...]:
    """Every policy as it ships, and the variants that a reader asks for."""
    return (*policy_names(), *(text for text in _VARIANTS if _takes(text)))


_VARIANTS = ("weighted_round_robin:outlier_ejection=true",)


def _takes(text: str) -> bool:
    try:
        contender(text)
    except (ConfigError, TypeError):
        return False
    return True


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text

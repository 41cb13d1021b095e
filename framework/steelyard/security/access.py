"""Who may call what: rules over names of callers, services and methods.

Order means nothing: a deny that fits wins over every allow, and where there is any rule, what no allow fits is
refused. A list whose first match wins would be shorter to write, and is where a line put into the wrong place opens
everything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from steelyard.errors import ConfigError
from steelyard.setting import checked

MOST_DECISIONS = 4096


@dataclass(frozen=True, slots=True)
class Rule:
    """See ``allow`` and ``deny``, which make them."""

    is_allowed: bool
    caller: str
    service: str
    method: str


def allow(caller: str, service: str = "*", method: str = "*") -> Rule:
    """Whoever has a name that fits *caller* may call what fits the others. ``*`` stands for any text, also within:
    ``dns:*.ads.internal``, ``sub:batch-*``, ``uid:0``; ``*`` alone is everybody, ``anonymous`` those whom nobody has
    vouched for. *service* is its name, or its key with group and version. Raises ConfigError."""
    return _rule(True, caller, service, method)


def deny(caller: str, service: str = "*", method: str = "*") -> Rule:
    """As ``allow``, and the opposite."""
    return _rule(False, caller, service, method)


class Access:
    """The rules, at work. Without any rule everybody may call everything."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        for rule in rules:
            checked("access", rule, isinstance(rule, Rule), "a list of allow(...) and deny(...)")
        self.rules = tuple(rules)
        self._patterns = [
            (rule.is_allowed, _pattern(rule.caller), _pattern(rule.service), _pattern(rule.method)) for rule in rules
        ]
        self._decided: dict[tuple[tuple[str, ...], str, str], bool] = {}

    def admits(self, names: tuple[str, ...], service: str, key: str, method: str) -> bool:
        """Whether whoever has *names* may call *method* of *service* (its name; *key* with group and version)."""
        if not self._patterns:
            return True
        question = (names, key, method)
        answer = self._decided.get(question)
        if answer is None:
            answer = self._decide(names, service, key, method)
            if len(self._decided) >= MOST_DECISIONS:
                self._decided.clear()
            self._decided[question] = answer
        return answer

    def _decide(self, names: tuple[str, ...], service: str, key: str, method: str) -> bool:
        is_allowed = False
        for allows, caller_fits, service_fits, method_fits in self._patterns:
            if not (method_fits(method) and (service_fits(service) or service_fits(key))):
                continue
            if any(caller_fits(name) for name in names):
                if not allows:
                    return False
                is_allowed = True
        return is_allowed


def _rule(is_allowed: bool, caller: str, service: str, method: str) -> Rule:
    for name, value in (("caller", caller), ("service", service), ("method", method)):
        if not isinstance(value, str) or not value:
            raise ConfigError(f"a rule's {name}: text, where * stands for anything, not {value!r}")
    return Rule(is_allowed, caller, service, method)


def _pattern(text: str) -> Callable[[str], object]:
    return re.compile(".*".join(map(re.escape, text.split("*"))), re.DOTALL).fullmatch

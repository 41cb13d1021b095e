"""Manual switches: an operator's word on what is done when a method cannot, or shall not, be answered by the cluster.

    FORCE   never call; the fallback answers           a dependency is to be spared, or is known to be down
    FAIL    call; the fallback answers after a failure, and when protection does not send the call
    OFF     call; no fallback, and protection sends every call of it

They are Dubbo's ``mock=force:`` and ``mock=fail:``. A method without a switch is at FAIL when its contract has a
fallback. Without one, only protection's refusal differs: at OFF it is not refused.

One object per reference, read at every call: a look-up in a dict that is nearly always empty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from steelyard.errors import ConfigError, ContractError
from steelyard.model import MethodSpec, ServiceSpec
from steelyard.service import fallback_call


class Mode(StrEnum):
    FORCE = "force"
    FAIL = "fail"
    OFF = "off"


class _Own:
    def __repr__(self) -> str:
        return "OWN_FALLBACK"


OWN_FALLBACK: Final = _Own()
"""The fallback of the method's contract."""


@dataclass(frozen=True, slots=True)
class Switch:
    """One switch. ``answer`` is what answers instead of the contract's fallback: a value, or a function of the call's
    arguments."""

    mode: Mode
    answer: Any = OWN_FALLBACK


class Switches:
    """The switches of one service: for a method, or for all of them (method None). A method's own goes first."""

    def __init__(self, service: ServiceSpec) -> None:
        self._service = service
        self._set: dict[str | None, Switch] = {}
        self.are_set = False
        """Whether there is any: asked before each call."""

    def set(self, mode: Mode | str | None, method: str | None = None, *, answer: Any = OWN_FALLBACK) -> None:
        """Sets the switch, or takes it away (*mode* None). Raises ConfigError for a mode or method that is not
        there, and for a function that does not take the arguments that it would be called with."""
        if method is not None and method not in self._service.methods:
            known = ", ".join(sorted(self._service.methods))
            raise ConfigError(f"{self._service.key} has no method {method!r} to switch; it has: {known}")
        if mode is None:
            self._set.pop(method, None)
            self.are_set = bool(self._set)
            return
        if callable(answer):
            for name in self._service.methods if method is None else (method,):
                _check_answer(answer, self._service.methods[name])
        try:
            self._set[method] = Switch(Mode(mode), answer)
            self.are_set = True
        except ValueError:
            raise ConfigError(f"a switch is one of force, fail, off, or None to take it away; not {mode!r}") from None

    def of(self, method: str) -> Switch | None:
        """The switch that rules *method*; None when nobody has set one."""
        if not self._set:
            return None
        return self._set.get(method) or self._set.get(None)

    def shown(self) -> Mapping[str, str]:
        """Mode by method; ``*`` is the whole service."""
        return MappingProxyType({method or "*": switch.mode.value for method, switch in self._set.items()})

    def __repr__(self) -> str:
        shown = ", ".join(f"{method}: {mode}" for method, mode in self.shown().items())
        return f"Switches({shown or 'none'})"


def _check_answer(answer: Callable[..., Any], method: MethodSpec) -> None:
    try:
        fallback_call(answer, method.parameters, f"the switch of {method.name}")
    except ContractError as error:
        raise ConfigError(str(error)) from None

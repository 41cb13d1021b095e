"""What stands before a provider's calls, from what it was given: who calls, how often, and whether it may."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from steelyard.errors import ConfigError
from steelyard.filter import Refusals, server_authenticate, server_authorize, server_rate, server_token
from steelyard.guard import Rates
from steelyard.invoke import Position
from steelyard.security import Access, Authenticator, Rule
from steelyard.setting import checked


class Guards:
    """Raises ConfigError for what cannot be used. ``refusals`` counts."""

    def __init__(
        self,
        authenticator: Authenticator | None = None,
        access: Sequence[Rule] = (),
        calls_per_s: float | None = None,
    ) -> None:
        if authenticator is not None and not callable(getattr(authenticator, "authenticate", None)):
            raise ConfigError(f"authenticator: an object with authenticate(call), not {type(authenticator).__name__}")
        self._authenticator = authenticator
        is_rules = isinstance(access, Sequence) and not isinstance(access, str)
        self._access = Access(checked("access", access, is_rules, "a list of allow(...) and deny(...)"))
        is_number = isinstance(calls_per_s, int | float) and not isinstance(calls_per_s, bool)
        is_good = calls_per_s is None or (is_number and 0.001 <= calls_per_s <= 1e9)
        self._calls_per_s = checked("caller_calls_per_s", calls_per_s, is_good, "0.001 to 1e9 calls a second, or None")
        self.refusals = Refusals()

    @property
    def asks_who(self) -> bool:
        """Whether not everybody is served."""
        return self._authenticator is not None or bool(self._access.rules)

    def positions(self, tokens: Mapping[str, Sequence[str]], clock: Callable[[], float]) -> list[Position]:
        """The filters, in their order. *tokens* by service key; it may still grow."""
        found: list[Position] = []
        if self._authenticator is not None:
            filter_ = server_authenticate(self._authenticator, self.refusals)
            found.append(Position("authenticate", filter_, "who calls is asked before anything is spent on the call"))
        if self._calls_per_s is not None:
            filter_ = server_rate(Rates(self._calls_per_s), clock, self.refusals)
            found.append(Position("rate", filter_, "by caller: so after who it is, and before what it may"))
        found.append(Position("token", server_token(tokens, self.refusals), "who comes past the registry is no caller"))
        if self._access.rules:
            filter_ = server_authorize(self._access, self.refusals)
            found.append(Position("authorize", filter_, "what is not allowed is not decoded, and learns of no state"))
        return found

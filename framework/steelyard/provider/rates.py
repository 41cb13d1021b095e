"""Rates of calls and errors, for load reports."""

from __future__ import annotations


class Rates:
    """Calls and errors a second between one question and the next. One period is what the utilization beside them
    covers too, so that their quotient (gRFC A58: calls a second for what utilization) compares like with like."""

    def __init__(self, now_s: float) -> None:
        self._at_s = now_s
        self._calls = 0
        self._errors = 0

    def since(self, calls: int, errors: int, now_s: float) -> tuple[float, float] | None:
        """*calls* and *errors* are counted from the start. None when no time has passed since the last question."""
        elapsed_s = now_s - self._at_s
        if elapsed_s <= 0.0:
            return None
        rates = ((calls - self._calls) / elapsed_s, (errors - self._errors) / elapsed_s)
        self._at_s, self._calls, self._errors = now_s, calls, errors
        return rates

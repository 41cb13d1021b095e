"""The rule URLs of one service and category, kept true. None at all is believed at once: the rule was taken back."""

from __future__ import annotations

import logging

from ..errors import MalformedUrl
from ..rule_urls import RuleUrl, RuleUrlsView, parse_rule_name
from .children import DOUBT_S, Children
from .place import Place
from .reconciler import Reconciler
from .session import Session
from .showing import AUDIT_S

log = logging.getLogger(__name__)

_TOLD = 20


class RuleUrlsWatch(Reconciler):
    """Feeds *view*. Its task runs until ``cancel``."""

    def __init__(self, session: Session, place: Place, view: RuleUrlsView) -> None:
        super().__init__(session, place, place.folder(view.interface, view.category))
        self._view = view
        self._children = Children(session, self.path, self.wake)
        self._rules: dict[str, RuleUrl | None] = {}
        self._told = 0

    async def cancel(self) -> None:
        self._children.close()
        await super().cancel()

    def _went_away(self) -> None:
        self._children.went_away()
        self._view.mark_stale()

    async def _pass(self) -> float | None:
        self._follow(self.path)
        come, gone = await self._children.catch_up(self._rules.keys())
        for name in [*gone]:
            del self._rules[name]
        for name in [*come]:
            self._rules[name] = self._parsed(name)
        found = [(rule.priority, name, rule) for name, rule in self._rules.items() if rule is not None]
        found.sort(key=lambda one: one[:2])
        self._view.publish(tuple(rule for _, _, rule in found), skipped=len(self._rules) - len(found))
        return AUDIT_S if self._children.is_settled else DOUBT_S

    def _parsed(self, name: str) -> RuleUrl | None:
        try:
            return parse_rule_name(name, self._view.category)
        except MalformedUrl as error:
            self._told += 1
            level = logging.WARNING if self._told <= _TOLD else logging.DEBUG
            log.log(level, "%s: skipped a rule of %s: %s", self._place.url, self._view.interface, error)
            return None

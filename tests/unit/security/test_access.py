"""Rules: a deny wins, order means nothing, and where there is a rule the rest is closed."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.errors import ConfigError
from steelyard.security import Access, Rule, allow, deny


def may(rules: list[Rule], name: str, service: str = "ads.Ctr", method: str = "predict") -> bool:
    return Access(rules).admits((name,), service, service, method)


def test_without_rules_everything_is_open_and_with_one_the_rest_is_closed() -> None:
    assert may([], "anonymous")
    assert not may([allow("dns:web.test")], "anonymous")
    assert not may([deny("dns:web.test")], "dns:api.test"), "a deny alone opens nothing"
    assert may([allow("dns:web.test")], "dns:web.test")


def test_patterns() -> None:
    assert may([allow("dns:*.ads.test")], "dns:a.b.ads.test")
    assert not may([allow("dns:*.ads.test")], "dns:ads.test")
    assert not may([allow("dns:*.ads.test")], "dns:a.ads.test.evil")
    assert not may([allow("dns:web.test")], "dns:webxtest"), "a dot is a dot"
    assert not may([allow("dns:web.test")], "sub:dns:web.test")
    assert not may([allow("dns:web.test")], "dns:web.test\n")
    assert may([allow("*")], "anonymous")
    assert may([allow("sub:a[b]?(c)+")], "sub:a[b]?(c)+")
    assert may([allow("*", "ads.*", "pre*")], "x")
    assert not may([allow("*", "ads.*", "pre*")], "x", method="explain")
    assert not may([allow("*", "shop.*")], "x")


def test_a_deny_wins_wherever_it_stands() -> None:
    rules = [allow("dns:*"), deny("dns:bad.test"), allow("dns:bad.test")]
    for order in itertools.permutations(rules):
        assert not may(list(order), "dns:bad.test")
        assert may(list(order), "dns:good.test")


def test_any_of_a_callers_names_counts() -> None:
    access = Access([allow("sub:batch"), deny("dns:old.test")])
    assert access.admits(("sub:batch", "dns:new.test"), "s", "s", "m")
    assert not access.admits(("sub:batch", "dns:old.test"), "s", "s", "m")


def test_a_service_by_its_name_or_by_its_key() -> None:
    access = Access([allow("a", "ads.Ctr"), allow("b", "blue/ads.Ctr:2")])
    for name, key, expected in (("a", "blue/ads.Ctr:2", True), ("b", "blue/ads.Ctr:2", True), ("b", "ads.Ctr", False)):
        assert access.admits((name,), "ads.Ctr", key, "m") is expected


@given(
    st.lists(
        st.tuples(st.booleans(), st.sampled_from(["*", "a", "b", "a*"]), st.sampled_from(["*", "s", "t"])), max_size=6
    ),
    st.sampled_from(["a", "b", "ab"]),
    st.sampled_from(["s", "t"]),
)
def test_the_law(rules: list[tuple[bool, str, str]], name: str, service: str) -> None:
    made = [(allow if allows else deny)(caller, where) for allows, caller, where in rules]

    def fits(pattern: str, text: str) -> bool:
        return pattern == "*" or pattern == text or (pattern == "a*" and text.startswith("a"))

    hits = [allows for allows, caller, where in rules if fits(caller, name) and fits(where, service)]
    access = Access(made)
    for _ in range(2):  # the second answer is remembered
        assert access.admits((name,), service, service, "m") is (not rules or (bool(hits) and all(hits)))


def test_what_was_decided_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steelyard.security.access.MOST_DECISIONS", 5)
    access = Access([allow("sub:*")])
    for number in range(20):
        assert access.admits((f"sub:{number}",), "s", "s", "m")
    assert len(access._decided) <= 5


@pytest.mark.parametrize("bad", ["", None, 7])
def test_a_rule_is_text(bad: Any) -> None:
    for made in (lambda: allow(bad), lambda: deny("a", bad), lambda: allow("a", "b", bad)):
        with pytest.raises(ConfigError, match="a rule's"):
            made()
    with pytest.raises(ConfigError, match="access"):
        Access([("dns:x",)])  # type: ignore[list-item]

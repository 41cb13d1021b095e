"""A throttled process reads the clock, sleeps, and gets the lock later: it must not bury rows renewed meanwhile."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from steelyard_registry.embedded import store as module
from steelyard_registry.embedded.store import Store

URL = "tri://127.0.0.1:50051/shop.Shop"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "registry.db", 3.0)
    store.open()
    return store


def times(monkeypatch: pytest.MonkeyPatch, *moments: float) -> None:
    coming = list(moments)
    clock = SimpleNamespace(monotonic=lambda: coming.pop(0) if len(coming) > 1 else coming[0])
    monkeypatch.setattr(module, "time", clock)


def test_a_row_renewed_while_waiting_for_the_lock_stays(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    times(monkeypatch, 104.0)
    store.put("other", "shop.Shop", URL)
    times(monkeypatch, 100.0, 105.0)
    store.beat({}, may_reap=True)
    assert len(store.nodes("shop.Shop")[0]) == 1
    store.close()


def test_a_lease_is_renewed_from_when_the_lock_was_had(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    times(monkeypatch, 100.0)
    store.put("own", "shop.Shop", URL)
    times(monkeypatch, 100.5, 104.0)
    store.beat({"own": ("shop.Shop", URL)}, may_reap=False)
    for moment in (105.0, 106.0):
        times(monkeypatch, moment)
        store.beat({}, may_reap=True)
    assert len(store.nodes("shop.Shop")[0]) == 1
    store.close()


def test_a_row_past_its_lease_goes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    times(monkeypatch, 100.0)
    store.put("other", "shop.Shop", URL)
    for moment, left in ((102.0, 1), (103.5, 0)):
        times(monkeypatch, moment)
        store.beat({}, may_reap=True)
        assert len(store.nodes("shop.Shop")[0]) == left
    store.close()


def test_whoever_could_not_write_does_not_judge(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock was held by somebody for longer than a lease: all beats are late, and nobody is dead."""
    times(monkeypatch, 100.0)
    store.put("other", "shop.Shop", URL)
    times(monkeypatch, 101.7, 101.7, 110.0)  # asked for the lock, and had it after eight seconds
    store.beat({}, may_reap=True)
    assert len(store.nodes("shop.Shop")[0]) == 1
    times(monkeypatch, 110.5)  # its owner has not had its turn yet
    store.beat({}, may_reap=True)
    assert len(store.nodes("shop.Shop")[0]) == 1
    times(monkeypatch, 111.5)
    store.beat({}, may_reap=True)
    assert store.nodes("shop.Shop")[0] == []
    store.close()

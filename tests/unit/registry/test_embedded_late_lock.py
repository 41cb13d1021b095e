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
    times(monkeypatch, 106.0)
    store.beat({}, may_reap=True)
    assert len(store.nodes("shop.Shop")[0]) == 1
    store.close()


def test_a_row_past_its_lease_goes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    times(monkeypatch, 100.0)
    store.put("other", "shop.Shop", URL)
    times(monkeypatch, 103.5)
    store.beat({}, may_reap=True)
    assert store.nodes("shop.Shop")[0] == []
    store.close()

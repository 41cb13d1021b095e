"""What every test gets. Kept small: fixtures live beside the tests that use them, helpers in tests/support."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

# Hypothesis' deadline is an absolute time for one example: on a busy machine it would fail a correct law.
settings.register_profile("steelyard", deadline=None)
settings.load_profile("steelyard")


@pytest.fixture(scope="session", autouse=True)
def own_cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Lists that registries keep on disk do not come from, or go to, the cache of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield

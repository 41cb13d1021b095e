"""What every test gets. Kept small: fixtures live beside the tests that use them, helpers in tests/support."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

TESTS = Path(__file__).parent

# Hypothesis' deadline is an absolute time for one example: on a busy machine it would fail a correct law.
settings.register_profile("steelyard", deadline=None)
settings.load_profile("steelyard")


# Tests that neither fill the machine nor compare times: they compute, or wait for others' answers. All others, new ones
# too, run one after another: they start fleets, or measure one way beside another, and would measure each other.
SIDE_BY_SIDE = (
    "architecture",
    "conformance",
    "integration/test_bad_input.py",
    "integration/test_cli.py",
    "integration/test_compression.py",
    "integration/test_documents.py",
    "integration/test_examples.py",
    "integration/test_interop_",
    "integration/test_registry_",
    "integration/test_security.py",
    "integration/test_standard_services.py",
    "integration/test_tls.py",
    "integration/test_zookeeper_",
    "sim",
    "typing",
    "unit",
)
BY_THEMSELVES = ("unit/hardware", "unit/registry/test_embedded_hostile.py", "unit/wire/test_hostile_peers.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        place = item.path.relative_to(TESTS).as_posix()
        if not place.startswith(SIDE_BY_SIDE) or place.startswith(BY_THEMSELVES):
            item.add_marker(pytest.mark.alone)


@pytest.fixture(scope="session", autouse=True)
def own_cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Lists that registries keep on disk do not come from, or go to, the cache of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Commands that run in this process set up logging for the whole of it; every test gets it back as it was."""
    loggers = [logging.getLogger(name) for name in (None, "kazoo", "steelyard_registry")]
    levels = [logger.level for logger in loggers]
    handlers = list(loggers[0].handlers)
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
    loggers[0].handlers[:] = handlers

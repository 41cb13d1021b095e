"""What every test gets. Kept small: fixtures live beside the tests that use them, helpers in tests/support."""

from __future__ import annotations

from hypothesis import settings

# Hypothesis' deadline is an absolute time for one example: on a busy machine it would fail a correct law.
settings.register_profile("steelyard", deadline=None)
settings.load_profile("steelyard")

"""``embedded://``: a registry in a SQLite file, for many processes on one machine and nothing to install."""

from .registry import EmbeddedRegistry

__all__ = ["EmbeddedRegistry"]

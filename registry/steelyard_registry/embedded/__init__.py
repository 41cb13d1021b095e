"""``embedded://``: a registry in a SQLite file, for many processes on one machine and nothing to install."""

from .registry import EmbeddedRegistry
from .repair import Repair, repair_file

__all__ = ["EmbeddedRegistry", "Repair", "repair_file"]

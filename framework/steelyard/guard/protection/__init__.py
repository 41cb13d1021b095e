"""The protection law: when even the healthy nodes sicken, less is sent."""

from .protection import Protection
from .records import Admission, Level, ProtectionEvent, ProtectionStatistics, WaitStatistics
from .settings import ProtectionSettings

__all__ = [
    "Admission",
    "Level",
    "Protection",
    "ProtectionEvent",
    "ProtectionSettings",
    "ProtectionStatistics",
    "WaitStatistics",
]

"""Call: one logical call through all of its attempts, and how an attempt can end."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from steelyard.balance import Candidate

if TYPE_CHECKING:
    from .client import Client


class Ending(IntEnum):
    """How an attempt ended: an answer, the handler's error, a full queue, a broken connection, or too late."""

    OK = 0
    ERROR = 1
    OVERLOAD = 2
    TRANSPORT = 3
    DEADLINE = 4
    NO_NODE = 5
    DEGRADED = 6


class Call:
    """``began_at_s`` counts for the caller, ``sent_at_s`` for the attempt. A call is over when its caller has its
    answer; a server may still hold it then."""

    __slots__ = (
        "arrived_at_s",
        "began_at_s",
        "candidate",
        "client",
        "excluded",
        "fails",
        "hash",
        "is_over",
        "key",
        "met",
        "priority",
        "sent_at_s",
        "work_s",
    )

    candidate: Candidate | None
    arrived_at_s: float
    met: int

    def __init__(
        self, client: Client, began_at_s: float, work_s: float, key: int, hashed: int | None, priority: int
    ) -> None:
        self.client = client
        self.began_at_s = self.sent_at_s = began_at_s
        self.work_s = work_s
        self.key = key
        self.hash = hashed
        self.priority = priority
        self.candidate = None
        self.excluded: tuple[str, ...] = ()
        self.is_over = False
        self.fails = False

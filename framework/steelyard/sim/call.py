"""Call: one logical call through all of its attempts, and how an attempt can end."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

import msgspec

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


class Call(msgspec.Struct, eq=False, gc=False):
    """``began_at_s`` counts for the caller, ``sent_at_s`` for the attempt. A call is over when its caller has its
    answer; a server may still hold it then. ``arrived_at_s`` and ``met`` are the server's, where somebody probes.

    A Struct because one is made for every call, and is made in C. It is in no cycle: who holds it is not held by it.
    """

    client: Client
    began_at_s: float
    sent_at_s: float
    work_s: float
    key: int
    hash: int | None
    priority: int
    candidate: Candidate | None = None
    excluded: tuple[str, ...] = ()
    is_over: bool = False
    fails: bool = False
    arrived_at_s: float = 0.0
    met: int = 0

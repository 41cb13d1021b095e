"""Authenticator: who calls, by what came with the call."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from steelyard.errors import Unauthenticated
from steelyard.model import Identity, Invocation

from .bearer import AUTHORIZATION, SCHEME


class Authenticator(Protocol):
    def authenticate(self, call: Invocation) -> Identity | Awaitable[Identity | None] | None:
        """Who makes *call*, whose body is not decoded yet: by its ``attachments``, and by ``caller``, which is whom the
        connection vouches for. None: nobody more than that. Raises Unauthenticated, with a message that repeats no
        secret; whatever else it raises is logged here, and the caller is told only that it was not let in."""


def bearer_token(call: Invocation) -> str | None:
    """The call's bearer token; None when it has none. Raises Unauthenticated for another scheme."""
    value = call.attachments.get(AUTHORIZATION)
    if value is None:
        return None
    if value[: len(SCHEME)].lower() != SCHEME.lower():
        raise Unauthenticated(f"{call.service}: the authorization is none of the form 'Bearer TOKEN'")
    return value[len(SCHEME) :].strip()

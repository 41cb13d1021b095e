"""Who calls, whether it comes by way of the registry, how often, and whether it may: four filters of the provider's
that stand before anything is decoded, and one of the consumer's.

Each is in a stack only where it was asked for, so that nobody pays for it otherwise. Secrets end here: what a handler
and the filters behind see are the call's attachments without them.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from steelyard.errors import Overloaded, PermissionDenied, RpcError, Unauthenticated
from steelyard.guard import Rates
from steelyard.invoke import Bound, Filter, Invoker
from steelyard.model import ANONYMOUS, Identity, Invocation, Reply, names_of
from steelyard.security import AUTHORIZATION, TOKEN_TAG, Access, Authenticator, fits

log = logging.getLogger(__name__)


class Refusals:
    """What was refused since the start: ``unauthenticated``, ``limited``, and ``denied`` by ``service.method``."""

    __slots__ = ("denied", "limited", "unauthenticated")

    def __init__(self) -> None:
        self.unauthenticated = 0
        self.limited = 0
        self.denied: dict[str, int] = {}


def client_bearer(token: Callable[[], str | Awaitable[str]]) -> Filter:
    """Attaches the bearer token of now."""

    async def bearer(invocation: Invocation, following: Invoker) -> Reply:
        given = token()
        if not isinstance(given, str):
            given = await given
        attachments = {**invocation.attachments, AUTHORIZATION: f"Bearer {given}"}
        return await following(msgspec.structs.replace(invocation, attachments=attachments))

    return bearer


def server_authenticate(authenticator: Authenticator, refusals: Refusals) -> Filter:
    """Asks *authenticator* who calls; UNAUTHENTICATED when it says no. A bearer's names come before those that the
    connection vouches for, and rules may speak of both."""

    async def authenticate(invocation: Invocation, following: Invoker) -> Reply:
        try:
            found = authenticator.authenticate(invocation)
            identity = await found if inspect.isawaitable(found) else found
        except RpcError:
            refusals.unauthenticated += 1
            raise
        except Exception as error:
            refusals.unauthenticated += 1
            log.exception("%s: the authenticator raised", invocation.service)
            raise Unauthenticated(f"{invocation.service}: it could not be found out who calls") from error
        return await following(_known(invocation, identity))

    return authenticate


def server_rate(rates: Rates, clock: Callable[[], float], refusals: Refusals) -> Filter:
    """So many calls a second of each caller, by its name; all those without one share one bucket."""

    def rate(invocation: Invocation, following: Invoker) -> Awaitable[Reply]:
        caller = invocation.caller
        name = ANONYMOUS if caller is None else caller.name
        bucket = rates.of(name, clock())
        if not bucket.admits(clock()):
            refusals.limited += 1
            raise Overloaded(
                f"{invocation.service}: more than {bucket.per_s:g} calls a second of {name}",
                retry_after_s=bucket.wait_s(),
            )
        return following(invocation)

    return rate


def server_token(tokens: Mapping[str, Sequence[str]], refusals: Refusals) -> Filter:
    """Calls to a service that has tokens must bring one. A stack that is built while no service has any is built
    without this."""

    def bind(following: Invoker) -> Invoker:
        if not tokens:
            return following

        def token(invocation: Invocation) -> Awaitable[Reply]:
            accepted = tokens.get(invocation.service)
            if accepted is None:
                return following(invocation)
            if not fits(accepted, invocation.attachments.get(TOKEN_TAG)):
                refusals.unauthenticated += 1
                raise Unauthenticated(
                    f"{invocation.service} asks for its token, which consumers find in the registry; the one that came "
                    "is missing, wrong or out of date"
                )
            return following(_without(invocation, TOKEN_TAG))

        return token

    return Bound(bind)


def server_authorize(access: Access, refusals: Refusals) -> Filter:
    """PERMISSION_DENIED for what the rules do not allow. Whoever is refused learns its own name, and no rule."""

    def authorize(invocation: Invocation, following: Invoker) -> Awaitable[Reply]:
        spec, key = invocation.spec, invocation.service
        names = names_of(invocation.caller)
        if access.admits(names, key if spec is None else spec.service, key, invocation.method):
            return following(invocation)
        what = f"{key}.{invocation.method}"
        refusals.denied[what] = refusals.denied.get(what, 0) + 1
        raise PermissionDenied(f"{what} is not open to {names[0]}")

    return authorize


def _known(invocation: Invocation, identity: Identity | None) -> Invocation:
    """With whom it was made sure of, and without the proof."""
    if AUTHORIZATION in invocation.attachments:
        invocation = _without(invocation, AUTHORIZATION)
    if identity is None:
        return invocation
    before = invocation.caller
    names = dict.fromkeys((*names_of(identity), *(() if before is None else names_of(before))))
    if identity.names != tuple(names):
        identity = msgspec.structs.replace(identity, names=tuple(names))
    return msgspec.structs.replace(invocation, caller=identity)


def _without(invocation: Invocation, name: str) -> Invocation:
    left = {key: value for key, value in invocation.attachments.items() if key != name}
    return msgspec.structs.replace(invocation, attachments=left)

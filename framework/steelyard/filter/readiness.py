"""readiness: calls to a service that is not ready are refused before anything is spent on them.

The balancer picks only ready nodes, so such calls are few: those that crossed the news on its way through the registry,
and those of clients that balance by themselves. They are told "did not run" and go elsewhere.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from steelyard.errors import RpcError
from steelyard.invoke import Filter, Invoker
from steelyard.model import Invocation, Reply


def server_readiness(refusal: Callable[[str], RpcError | None]) -> Filter:
    """*refusal* is asked with the service key: None lets the call through, an error is its answer."""

    def readiness(invocation: Invocation, following: Invoker) -> Awaitable[Reply]:
        error = refusal(invocation.service)
        if error is not None:
            raise error
        return following(invocation)

    return readiness

"""Whether a node speaks our wire, as far as its entry tells."""

from __future__ import annotations

from steelyard.wire import WIRE_TAG
from steelyard_registry import Node


def is_foreign(node: Node) -> bool:
    """True: a gRPC or Triple server that knows nothing of us. False says nothing: the server is asked (a list of
    addresses, a name server's answer). An entry that was registered, which a time of start shows, has our mark if it
    is ours."""
    return node.protocol == "grpc" or (WIRE_TAG not in node.tags and _is_registered(node))


def _is_registered(node: Node) -> bool:
    # Dubbo for Java and Go write the first two; apache-dubbo for Python writes only the last.
    return bool(node.started_at_ms or node.methods or "service" in node.tags)

"""The names under which calls are told to OpenTelemetry.

Followed are the semantic conventions for RPC of release 1.44 (schema https://opentelemetry.io/schemas/1.44.0, the
package opentelemetry-semantic-conventions 0.66b2), in which ``rpc.system.name``, a fully-qualified ``rpc.method`` and
``rpc.response.status_code`` replaced ``rpc.system``, ``rpc.service`` and ``rpc.grpc.status_code``. They are written
out here, and compared with the installed package by a test, because that package keeps them in a module marked as
unstable.

What the conventions have no word for is under ``steelyard.``. The system is "steelyard" and not "grpc": a client span
covers a call to a cluster, with its retries, and not one gRPC call. Status codes are gRPC's names in either case.
"""

from __future__ import annotations

from typing import Final

from steelyard.errors import Status

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"

RPC_SYSTEM_NAME: Final = "rpc.system.name"
RPC_METHOD: Final = "rpc.method"
RPC_RESPONSE_STATUS_CODE: Final = "rpc.response.status_code"
ERROR_TYPE: Final = "error.type"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
CLIENT_CALL_DURATION: Final = "rpc.client.call.duration"
SERVER_CALL_DURATION: Final = "rpc.server.call.duration"

SYSTEM: Final = "steelyard"
OTHER_METHOD: Final = "_OTHER"

SERVICE: Final = "steelyard.service"
"""The service key, ``[group/]interface[:version]``; ``rpc.method`` holds ``interface/method`` without them."""
NODE: Final = "steelyard.node"
"""The identity of the node that was asked last, ``service@host:port``."""
ATTEMPTS: Final = "steelyard.attempts"
"""How many nodes were asked, where it was more than one."""
OUTCOME: Final = "steelyard.outcome"
"""ok, failed or ignored: what the call says about the node (see ``model.Outcome``)."""
RESOURCE: Final = "steelyard.resource"

CLIENT_CALLS: Final = "steelyard.client.calls"
SERVER_CALLS: Final = "steelyard.server.calls"
CLIENT_ACTIVE_CALLS: Final = "steelyard.client.active_calls"
SERVER_ACTIVE_CALLS: Final = "steelyard.server.active_calls"

SERVER_BATCH_CALLS: Final = "steelyard.server.batch.calls"
SERVER_BATCH_WAIT: Final = "steelyard.server.batch.wait"
SERVER_BATCH_DURATION: Final = "steelyard.server.batch.duration"

NODE_SHARE: Final = "steelyard.node.share"
NODE_REFUSE_RATIO: Final = "steelyard.node.refuse_ratio"
NODE_AVAILABILITY: Final = "steelyard.node.availability"
NODE_UTILIZATION: Final = "steelyard.node.utilization"
SERVER_UTILIZATION: Final = "steelyard.server.utilization"
PROTECTION_LEVEL: Final = "steelyard.protection.level"
PROTECTION_DEGRADED_SHARE: Final = "steelyard.protection.degraded_share"

GAUGES: Final = {
    NODE_SHARE: "Share of the calls that this consumer's plan gives to the node.",
    NODE_REFUSE_RATIO: "Part of the node's base share that is refused and sent elsewhere.",
    NODE_AVAILABILITY: "ok / (ok + failed) of the node's calls in this consumer's window.",
    NODE_UTILIZATION: "Busy share of the node's dominant resource, as the balancer sees it.",
    SERVER_UTILIZATION: "Busy share of this provider's resource, as it reports it.",
    PROTECTION_LEVEL: "Level of active protection: 0 none, 1 hold, 2 degrade, 3 no retry.",
    PROTECTION_DEGRADED_SHARE: "Share of this consumer's calls that was degraded in the last period.",
}
"""Every gauge and what it says. The unit of all is 1: they are shares in [0, 1], and one level."""

# The conventions' bounds begin at 5 ms, which puts every call within a data centre into one bucket; these add finer
# ones below and keep theirs, so that the two can be added up.
DURATION_BOUNDS_S: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025),
    *(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10),
)

# Batches are powers of two as often as not.
BATCH_BOUNDS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

# On the server only these are the server's fault (conventions for gRPC spans); to a client every status but OK is one.
SERVER_FAULTS: Final = frozenset(
    {
        Status.UNKNOWN,
        Status.DEADLINE_EXCEEDED,
        Status.UNIMPLEMENTED,
        Status.INTERNAL,
        Status.UNAVAILABLE,
        Status.DATA_LOSS,
    }
)

"""Calls between processes: frames and their pure core, carriers, and the Channel and Listener that users of this folder
see. Importing it loads grpc."""

from .channel import Channel, ChannelState
from .frames import VERSION as WIRE_VERSION
from .frames import ProtocolError
from .lane import CARRIERS, WIRE_TAG, LaneConnector, checked_carrier, lane_tag, offer_tags, read_lanes, read_offer
from .limits import WireLimits
from .listener import Listener
from .loopback import LocalChannel, LoopbackListener
from .mux import OpenCall
from .plain import HealthService, OpenOrcaService
from .unary import Streamed

__all__ = [
    "CARRIERS",
    "WIRE_TAG",
    "WIRE_VERSION",
    "Channel",
    "ChannelState",
    "HealthService",
    "LaneConnector",
    "Listener",
    "LocalChannel",
    "LoopbackListener",
    "OpenCall",
    "OpenOrcaService",
    "ProtocolError",
    "Streamed",
    "WireLimits",
    "checked_carrier",
    "lane_tag",
    "offer_tags",
    "read_lanes",
    "read_offer",
]

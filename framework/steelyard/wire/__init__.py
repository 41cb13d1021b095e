"""Calls between processes: frames and their pure core, carriers, and the Channel and Listener that users of this folder
see. Importing it loads grpc."""

from .channel import Channel, ChannelState
from .frames import ProtocolError
from .lane import CARRIERS, LaneConnector, checked_carrier, lane_tag, offer_tags, read_lanes, read_offer
from .limits import WireLimits
from .listener import Listener
from .loopback import LocalChannel, LoopbackListener

__all__ = [
    "CARRIERS",
    "Channel",
    "ChannelState",
    "LaneConnector",
    "Listener",
    "LocalChannel",
    "LoopbackListener",
    "ProtocolError",
    "WireLimits",
    "checked_carrier",
    "lane_tag",
    "offer_tags",
    "read_lanes",
    "read_offer",
]

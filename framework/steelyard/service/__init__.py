"""What a user declares: services and methods, read once into specs, and matched with what implements them."""

from .arguments import bind_arguments
from .binding import BoundMethod, bind
from .contract import implemented_spec, service_spec
from .declare import LAST_GOOD_REPLY, LastGoodReply, method, service
from .fallback import fallback_call

__all__ = [
    "LAST_GOOD_REPLY",
    "BoundMethod",
    "LastGoodReply",
    "bind",
    "bind_arguments",
    "fallback_call",
    "implemented_spec",
    "method",
    "service",
    "service_spec",
]

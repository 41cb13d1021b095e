"""The calling side: Consumer, its blocking twin, and what ``refer`` gives."""

from .blocking import BlockingConsumer, BlockingProxy
from .consumer import Consumer
from .proxy import CallOptions, Proxy, Stream, reference_of, with_options
from .reference import ReferenceStatistics, default_stack

__all__ = [
    "BlockingConsumer",
    "BlockingProxy",
    "CallOptions",
    "Consumer",
    "Proxy",
    "ReferenceStatistics",
    "Stream",
    "default_stack",
    "reference_of",
    "with_options",
]

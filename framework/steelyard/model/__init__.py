"""The records that travel through every floor: frozen, and without behaviour."""

from .annotation import unaliased
from .call import NOTHING, Invocation, LoadReport, Outcome, Reply
from .spec import Batch, CallShape, Codec, MethodSpec, Parameter, ServiceSpec

__all__ = [
    "NOTHING",
    "Batch",
    "CallShape",
    "Codec",
    "Invocation",
    "LoadReport",
    "MethodSpec",
    "Outcome",
    "Parameter",
    "Reply",
    "ServiceSpec",
    "unaliased",
]

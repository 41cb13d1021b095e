"""The records that travel through every floor: frozen, and without behaviour."""

from .annotation import unaliased
from .call import NOTHING, Invocation, LoadReport, Outcome, Reply
from .identity import ANONYMOUS, Identity, names_of
from .packed import Packed
from .spec import Batch, CallShape, Codec, MethodSpec, Parameter, ServiceSpec

__all__ = [
    "ANONYMOUS",
    "NOTHING",
    "Batch",
    "CallShape",
    "Codec",
    "Identity",
    "Invocation",
    "LoadReport",
    "MethodSpec",
    "Outcome",
    "Packed",
    "Parameter",
    "Reply",
    "ServiceSpec",
    "names_of",
    "unaliased",
]

"""Bodies: arguments, results and declared exceptions as bytes and back, checked against the contract."""

from .base import MethodCodec
from .buffers import LARGE_BYTES, take_buffer
from .choose import codec_for, generic_codec
from .exception import text_of
from .generic import plain_codec
from .packing import PACKINGS, Unpackable, packed, packings, unpacked, worth_packing

__all__ = [
    "LARGE_BYTES",
    "PACKINGS",
    "MethodCodec",
    "Unpackable",
    "codec_for",
    "generic_codec",
    "packed",
    "packings",
    "plain_codec",
    "take_buffer",
    "text_of",
    "unpacked",
    "worth_packing",
]

"""Bodies: arguments, results and declared exceptions as bytes and back, checked against the contract."""

from .base import MethodCodec
from .buffers import LARGE_BYTES, take_buffer
from .choose import codec_for, generic_codec
from .exception import text_of
from .generic import plain_codec

__all__ = ["LARGE_BYTES", "MethodCodec", "codec_for", "generic_codec", "plain_codec", "take_buffer", "text_of"]

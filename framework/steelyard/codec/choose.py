"""Which codec a method has."""

from __future__ import annotations

import logging

from steelyard.model import Codec, MethodSpec

from .base import MethodCodec
from .messagepack import MsgpackCodec
from .packing import packings
from .protobuf import ProtobufCodec
from .streamed import StreamedCodec

log = logging.getLogger(__name__)


def codec_for(spec: MethodSpec) -> MethodCodec:
    """The codec of a contract's method. Compiles its annotations, so make it once and keep it.
    Raises ContractError naming the parameter whose type cannot be carried."""
    if spec.compress and spec.compress not in packings():
        log.warning(
            "%s is to travel compressed with %s, which is not installed here, and so it does not: "
            "pip install 'steelyard[compression]'",
            spec.qualified_name,
            spec.compress,
        )
    if spec.stream_at is not None:
        return StreamedCodec(spec)
    return ProtobufCodec(spec) if spec.codec is Codec.PROTOBUF else MsgpackCodec(spec)


def generic_codec() -> MethodCodec:
    """The codec of calls without a contract: any plain values, any number of arguments, nothing checked here.

    Dataclasses and structs arrive as dicts, enums as their values, tuples and sets as lists; arrays, datetimes, UUIDs,
    Decimals and big integers arrive as themselves.
    """
    return MsgpackCodec(None)

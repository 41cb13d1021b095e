"""The codec of methods that take a stream.

The stream is none of the arguments on the wire: they travel first, without it, and its items follow one by one, each as
a result would.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from steelyard.model import Codec, MethodSpec, Parameter

from .base import MethodCodec
from .messagepack import MsgpackCodec
from .protobuf import ProtobufCodec


class StreamedCodec:
    """See MethodCodec; ``items`` writes and reads the items of the caller's stream as its results."""

    def __init__(self, spec: MethodSpec) -> None:
        others = tuple(each for at, each in enumerate(spec.parameters) if at != spec.stream_at)
        self._arguments = MsgpackCodec(replace(spec, parameters=others, returns=Any))  # its results are not asked of it
        self._results = self._of(spec, spec.returns)
        self.items = self._of(spec, spec.items)

    def _of(self, spec: MethodSpec, kind: Any) -> MethodCodec:
        """What writes values of *kind* as results."""
        if spec.codec is Codec.PROTOBUF:
            return ProtobufCodec(replace(spec, parameters=(Parameter("item", kind),), returns=kind))
        return MsgpackCodec(replace(spec, parameters=(), returns=kind))

    def encode_arguments(self, args: tuple[Any, ...]) -> bytes:
        return self._arguments.encode_arguments(args)

    def decode_arguments(self, body: bytes) -> tuple[Any, ...]:
        return self._arguments.decode_arguments(body)

    def encode_result(self, value: Any) -> bytes:
        return self._results.encode_result(value)

    def decode_result(self, body: bytes) -> Any:
        return self._results.decode_result(body)

    def encode_exception(self, error: BaseException) -> bytes | None:
        return self._results.encode_exception(error)

    def decode_exception(self, details: bytes) -> Exception | None:
        return self._results.decode_exception(details)

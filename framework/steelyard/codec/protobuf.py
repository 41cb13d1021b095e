"""The codec of methods whose one argument and result are protobuf messages: the body is the message, nothing around it.

A plain gRPC or Triple client needs nothing of ours to call such a method. The protobuf library is never imported here:
the message classes in the contract bring what is needed.
"""

from __future__ import annotations

from typing import Any

from steelyard.errors import InternalError, InvalidArgument
from steelyard.model import MethodSpec

from .exception import decode_exception, encode_exception
from .mismatch import type_name


class ProtobufCodec:
    """See MethodCodec. *spec* has one parameter and it and the result are message classes (``service`` checks)."""

    def __init__(self, spec: MethodSpec) -> None:
        self._name = spec.qualified_name
        self._argument = spec.parameters[0].name
        self._takes: Any = spec.parameters[0].annotation
        self._returns: Any = spec.returns
        self._raises = spec.raises

    def encode_arguments(self, args: tuple[Any, ...]) -> bytes:
        if len(args) != 1:
            raise InvalidArgument(f"{self._name}: takes 1 argument ({self._argument}), got {len(args)}")
        try:
            return _encode(args[0], self._takes)
        except Exception as error:
            raise InvalidArgument(f"{self._name}: argument {self._argument!r}: {error}") from error

    def decode_arguments(self, body: bytes) -> tuple[Any, ...]:
        try:
            return (self._takes.FromString(body),)
        except Exception as error:
            raise InvalidArgument(
                f"{self._name}: argument {self._argument!r} is not a {type_name(self._takes)}: {error}"
            ) from error

    def encode_result(self, value: Any) -> bytes:
        try:
            return _encode(value, self._returns)
        except Exception as error:
            raise InternalError(f"{self._name}: the result cannot be sent: {error}", may_have_run=True) from error

    def decode_result(self, body: bytes) -> Any:
        try:
            return self._returns.FromString(body)
        except Exception as error:
            raise InternalError(
                f"{self._name}: the result is not a {type_name(self._returns)}: {error}", may_have_run=True
            ) from error

    def encode_exception(self, error: BaseException) -> bytes | None:
        return encode_exception(error, self._raises)

    def decode_exception(self, details: bytes) -> Exception | None:
        return decode_exception(details, self._raises)


def _encode(message: Any, kind: Any) -> bytes:
    if not isinstance(message, kind):
        raise TypeError(f"expected {type_name(kind)}, got {type_name(type(message))}")
    encoded: bytes = message.SerializeToString()
    return encoded

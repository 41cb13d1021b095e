"""The codec of most methods: msgpack bodies, checked and rebuilt by annotation.

Arguments are one list (or a map, from callers without the contract: see ``plain``), a result is one value. The common
case, where everything is a number, text or bytes, is written and read by msgspec in one step each, about a microsecond
for a whole echo call; all else takes the general way. The fast way only ever answers "yes": what it does not like, the
general way looks at again and words the error.
"""

from __future__ import annotations

import struct
import sys
from typing import Any, cast

import msgspec

from steelyard.errors import InternalError, InvalidArgument
from steelyard.model import MethodSpec, Parameter

from .buffers import LARGE_BYTES, take_buffer
from .exception import decode_exception, encode_exception
from .extension import NDARRAY
from .mismatch import Mismatch, plainly
from .plain import PlainArguments
from .plan import SCALARS, Convert, compile_plan
from .wire import pack, unpack

_encode_scalars = msgspec.msgpack.Encoder().encode
_are_scalars = SCALARS.issuperset
_EXTENSION = struct.Struct(">BIb")  # msgpack's ext 32: marker, length, code


class MsgpackCodec:
    """See MethodCodec. Without a spec it takes and gives plain values of any number."""

    def __init__(self, spec: MethodSpec | None) -> None:
        self._name = "this call" if spec is None else spec.qualified_name
        self._parameters: tuple[Parameter, ...] | None = None if spec is None else spec.parameters
        self._raises = () if spec is None else spec.raises
        self._plain: PlainArguments | None = None  # made when somebody without the contract calls
        self._required = sum(parameter.is_required for parameter in self._parameters or ())
        self._plans: tuple[Convert | None, ...] = tuple(
            compile_plan(parameter.annotation, f"{self._name}: parameter {parameter.name!r}")
            for parameter in self._parameters or ()
        )
        returns = Any if spec is None else spec.returns
        self._result_plan = compile_plan(returns, f"{self._name}: the result")
        self._decode_scalars = _fast_arguments(self._parameters)
        self._decode_scalar = _fast_decoder(returns) if _is_scalar(returns) else None

    def encode_arguments(self, args: tuple[Any, ...]) -> bytes:
        if _are_scalars(map(type, args)):
            try:
                return _encode_scalars(args)
            except (OverflowError, UnicodeEncodeError):
                pass  # an integer beyond 64 bits, or half a surrogate pair: the general way knows
        parts: list[bytes | memoryview] = [_list_header(len(args))]
        offset = len(parts[0])
        for at, arg in enumerate(args):
            try:
                packed = _pack_parts(arg, offset)
            except Exception as error:
                raise InvalidArgument(f"{self._name}: {self._argument(at)} cannot be sent: {_why(error)}") from error
            parts += packed
            offset += sum(map(len, packed))
        return _joined(parts)

    def decode_arguments(self, body: bytes) -> tuple[Any, ...]:
        if self._decode_scalars is not None:
            try:
                args: tuple[Any, ...] = self._decode_scalars.decode(body)
            except Exception:  # the general way says what is wrong, if anything is
                pass
            else:
                return args
        try:
            values = unpack(body)
        except Exception as error:
            raise InvalidArgument(f"{self._name}: the arguments cannot be decoded: {_why(error)}") from error
        if type(values) is dict and self._parameters is not None:
            if self._plain is None:
                self._plain = PlainArguments(self._name, self._parameters)
            return self._plain.read(values)
        if type(values) is not list:
            raise InvalidArgument(f"{self._name}: the arguments must be a list, not {type(values).__name__}")
        if self._parameters is None:
            return tuple(values)
        return self._rebuilt(values, self._parameters)

    def encode_result(self, value: Any) -> bytes:
        try:
            if type(value) in SCALARS:
                try:
                    return _encode_scalars(value)
                except (OverflowError, UnicodeEncodeError):
                    pass
            return _joined(_pack_parts(value, 0))
        except Exception as error:
            raise InternalError(f"{self._name}: the result cannot be sent: {_why(error)}", may_have_run=True) from error

    def decode_result(self, body: bytes) -> Any:
        if self._decode_scalar is not None:
            try:
                return self._decode_scalar.decode(body)
            except Exception:  # as with arguments
                pass
        try:
            value = unpack(body)
        except Exception as error:
            raise InternalError(
                f"{self._name}: the result cannot be decoded: {_why(error)}", may_have_run=True
            ) from error
        if self._result_plan is None:
            return value
        try:
            return self._result_plan(value)
        except Exception as error:
            raise InternalError(
                f"{self._name}: the result is not what the contract says: {_why(error)}", may_have_run=True
            ) from error

    def encode_exception(self, error: BaseException) -> bytes | None:
        return encode_exception(error, self._raises)

    def decode_exception(self, details: bytes) -> Exception | None:
        return decode_exception(details, self._raises)

    def _rebuilt(self, values: list[Any], parameters: tuple[Parameter, ...]) -> tuple[Any, ...]:
        count = len(parameters)
        if len(values) > count:
            raise InvalidArgument(f"{self._name}: {self._takes(parameters)}, got {len(values)}")
        # A consumer with an older contract leaves out what was added at the end; only defaults can stand in.
        for parameter in parameters[len(values) :]:
            if parameter.is_required:
                raise InvalidArgument(
                    f"{self._name}: {self._takes(parameters)}, got {len(values)}: {parameter.name!r} is missing"
                )
        for at, plan in enumerate(self._plans[: len(values)]):
            if plan is not None:
                try:
                    values[at] = plan(values[at])
                except Exception as error:
                    raise InvalidArgument(f"{self._name}: {self._argument(at)}: {_why(error)}") from error
        values.extend(parameter.default for parameter in parameters[len(values) :])
        return tuple(values)

    def _takes(self, parameters: tuple[Parameter, ...]) -> str:
        count = len(parameters)
        range_ = f"{count}" if self._required == count else f"from {self._required} to {count}"
        names = ", ".join(parameter.name for parameter in parameters)
        return f"takes {range_} argument{'s' * (range_ != '1')}{f' ({names})' if names else ''}"

    def _argument(self, at: int) -> str:
        parameters = self._parameters
        named = parameters is not None and at < len(parameters)
        return f"argument {parameters[at].name!r}" if parameters is not None and named else f"argument {at + 1}"


def _is_scalar(annotation: Any) -> bool:
    return annotation is None or annotation in (int, float, str, bytes, bool, type(None))


def _fast_decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind)


def _fast_arguments(parameters: tuple[Parameter, ...] | None) -> msgspec.msgpack.Decoder[Any] | None:
    if parameters is None or not all(_is_scalar(parameter.annotation) for parameter in parameters):
        return None
    kinds = tuple(parameter.annotation for parameter in parameters)
    return _fast_decoder(tuple[kinds] if kinds else tuple[()])  # type: ignore[valid-type]


def _list_header(count: int) -> bytes:
    return bytes([0x90 | count]) if count < 16 else b"\xdc" + count.to_bytes(2, "big")


def _pack_parts(value: Any, offset: int) -> list[bytes | memoryview]:
    """*value* as pieces to be joined at *offset* of the body. An array's memory is a piece of its own, so that joining
    is the only copy ever made of it, and it can be padded to lie well."""
    numpy = sys.modules.get("numpy")
    if numpy is None or type(value) is not numpy.ndarray:
        return [pack(value)]
    from .ndarray import array_parts

    header, data = array_parts(value, offset + _EXTENSION.size)
    return [_EXTENSION.pack(0xC9, len(header) + data.nbytes, NDARRAY), header, data]


def _joined(parts: list[bytes | memoryview]) -> bytes:
    """A large body is a bytearray in fact, which the wire takes as well."""
    size = sum(map(len, parts))
    if size < LARGE_BYTES:
        return b"".join(parts)
    body, at = take_buffer(size), 0
    view = memoryview(body)  # a bytearray's own slices would make a copy of each part first, in fresh memory
    for part in parts:
        view[at : at + len(part)] = part
        at += len(part)
    return cast("bytes", body)


def _why(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, msgspec.ValidationError):
        return plainly(str(error))
    text = str(error).removeprefix("MessagePack data is malformed: ")
    return text if isinstance(error, Mismatch) else (text or type(error).__name__)

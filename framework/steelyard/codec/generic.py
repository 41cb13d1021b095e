"""The codec of a caller that has JSON's types and no contract: it writes the plain form (see ``plain``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from steelyard.errors import InvalidArgument

from .base import MethodCodec
from .messagepack import MsgpackCodec
from .plain import POSITIONAL


class PlainCodec(MsgpackCodec):
    """As the generic codec, but its one argument holds all arguments: a list by position, a mapping by name."""

    def __init__(self) -> None:
        super().__init__(None)

    def encode_arguments(self, args: tuple[Any, ...]) -> bytes:
        given = args[0] if len(args) == 1 else None
        if isinstance(given, list | tuple):
            given = {POSITIONAL: list(given)}
        if not isinstance(given, Mapping):
            raise InvalidArgument("plain arguments are one list, by position, or one mapping, by name")
        try:
            return self.encode_result(dict(given))
        except Exception as error:
            raise InvalidArgument(f"the arguments cannot be sent: {error}") from error


def plain_codec() -> MethodCodec:
    """A codec for calls without a contract whose one argument is a list (arguments by position) or a mapping (by
    name). Text may stand for bytes, datetimes, UUIDs and Decimals, and lists for arrays: the provider rebuilds them."""
    return PlainCodec()

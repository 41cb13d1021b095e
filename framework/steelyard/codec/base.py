"""What a method's codec does, whatever the bytes look like."""

from __future__ import annotations

from typing import Any, Protocol


class MethodCodec(Protocol):
    """The bodies of one method. Made once for a method and kept by whoever calls or serves it; safe to share.

    A stream is encoded item by item with ``encode_result`` and ``decode_result``.
    """

    def encode_arguments(self, args: tuple[Any, ...]) -> bytes:
        """Raises InvalidArgument naming the argument that cannot be sent."""
        ...

    def decode_arguments(self, body: bytes) -> tuple[Any, ...]:
        """As many arguments as the contract has. Raises InvalidArgument, and nothing else, whatever *body* is."""
        ...

    def encode_result(self, value: Any) -> bytes:
        """Raises InternalError when the value cannot be sent."""
        ...

    def decode_result(self, body: bytes) -> Any:
        """Raises InternalError, and nothing else, whatever *body* is."""
        ...

    def encode_exception(self, error: BaseException) -> bytes | None:
        """The details that let the caller rebuild *error*; None when the contract does not declare it."""
        ...

    def decode_exception(self, details: bytes) -> Exception | None:
        """The declared exception; None when it is none, or cannot be rebuilt. Never raises."""
        ...

"""Credentials at work: contexts for Python's sockets and PEM texts for gRPC, made anew when the files change.

Each connection asks for its context when it is made, so that a rotation needs no restart: connections that stand keep
what they began with, new ones take the new pair. Both ends of our lanes are ours, so they speak TLS 1.3 and nothing
older; gRPC's side takes 1.2 too, for the sake of foreign clients.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

from steelyard.errors import ConfigError

from .credentials import Credentials
from .watched import Source, Watched

_BLANK = b""


@dataclass(frozen=True, slots=True, repr=False)
class Pems:
    """What the files hold; None where there is none."""

    ca: bytes | None
    certificate: bytes | None
    key: bytes | None


@dataclass(frozen=True, slots=True, repr=False)
class _Made:
    pems: Pems
    server: ssl.SSLContext | None
    client: ssl.SSLContext | None


class Tls:
    """*credentials*, read and checked. Raises ConfigError when they cannot be used. May be asked from any thread."""

    def __init__(self, credentials: Credentials) -> None:
        self.credentials = credentials
        given = (credentials.ca, credentials.certificate, credentials.key)
        self._has = tuple(source is not None for source in given)
        sources: list[Source] = [source for source in given if source is not None]
        self._watched = Watched("TLS credentials", sources, self._make)
        self._watched.value()

    @property
    def is_mutual(self) -> bool:
        return self.credentials.is_mutual

    @property
    def server_name(self) -> str:
        return self.credentials.server_name

    @property
    def changes(self) -> int:
        """How often the files were taken in anew."""
        return self._watched.changes

    def pems(self) -> Pems:
        """What is in force now."""
        return self._watched.value().pems

    def server_context(self) -> ssl.SSLContext:
        """For the next connection that comes. Raises ConfigError without a certificate."""
        context = self._watched.value().server
        if context is None:
            self.credentials.check_for_provider()
            raise AssertionError
        return context

    def client_context(self) -> ssl.SSLContext:
        """For the next connection that is made. Raises ConfigError without a CA."""
        context = self._watched.value().client
        if context is None:
            self.credentials.check_for_consumer()
            raise AssertionError
        return context

    def _make(self, contents: list[bytes]) -> _Made:
        left = iter(contents)
        pems = Pems(*(next(left) if has else None for has in self._has))
        server = client = None
        if pems.certificate is not None:
            server = self._server(pems)
        if pems.ca is not None:
            client = self._client(pems)
        return _Made(pems, server, client)

    def _server(self, pems: Pems) -> ssl.SSLContext:
        context = _context(ssl.PROTOCOL_TLS_SERVER)
        _prove(context, pems)
        # Connections are few and long, so resuming saves nothing; a ticket is a key that has to be kept.
        context.num_tickets = 0
        if self.is_mutual:
            context.verify_mode = ssl.CERT_REQUIRED
            _believe(context, pems)
        return context

    def _client(self, pems: Pems) -> ssl.SSLContext:
        context = _context(ssl.PROTOCOL_TLS_CLIENT)  # verifies, and compares names
        _believe(context, pems)
        if pems.certificate is not None:
            _prove(context, pems)
        return context


def _context(protocol: ssl._SSLMethod) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def _believe(context: ssl.SSLContext, pems: Pems) -> None:
    try:
        context.load_verify_locations(cadata=(pems.ca or _BLANK).decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(f"Credentials.ca: no certificates in PEM form: {_reason(error)}") from error
    if not context.cert_store_stats()["x509_ca"]:
        raise ConfigError("Credentials.ca: these certificates are not those of an authority (CA:TRUE)")


def _prove(context: ssl.SSLContext, pems: Pems) -> None:
    with _as_file((pems.key or _BLANK) + b"\n" + (pems.certificate or _BLANK)) as path:
        try:
            # OpenSSL would ask the terminal for a passphrase.
            context.load_cert_chain(path, password=lambda: b"")
        except (ssl.SSLError, OSError, ValueError) as error:
            raise ConfigError(
                "Credentials.certificate and key: not a certificate and its own key in PEM form (a key with a "
                f"passphrase has to be stored without it, readable for its user alone): {_reason(error)}"
            ) from error


@contextlib.contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """Python's ssl reads keys from files only; this one is in memory where the system can do that, and of this user
    alone elsewhere."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("steelyard-tls", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, content)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
    else:
        with tempfile.NamedTemporaryFile() as file:
            file.write(content)
            file.flush()
            yield file.name


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or type(error).__name__

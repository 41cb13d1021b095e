"""Certificates for tests, made when they are needed: an authority, and whoever it vouches for."""

from __future__ import annotations

import datetime
import functools
from pathlib import Path
from typing import Any

import trustme

from steelyard.security import Credentials


class Pki:
    """One authority. Names are those of identities: ``dns:api.test``, ``ip:127.0.0.1``, ``uri:spiffe://test/api``;
    without a kind, whatever trustme takes them for."""

    def __init__(self) -> None:
        self._ca = trustme.CA(key_type=trustme.KeyType.ECDSA)

    @property
    def ca(self) -> bytes:
        return self._ca.cert_pem.bytes()

    def pair(self, *names: str, **facts: Any) -> tuple[bytes, bytes]:
        """Certificate with chain, and key. *facts*: ``not_after``, ``not_before``."""
        plain = [name.split(":", 1)[1] if name.split(":", 1)[0] in ("dns", "ip") else name for name in names]
        made = self._ca.issue_cert(*plain, key_type=trustme.KeyType.ECDSA, **facts)
        return b"".join(each.bytes() for each in made.cert_chain_pems), made.private_key_pem.bytes()

    def provider(self, *names: str, mutual: bool = False, **facts: Any) -> Credentials:
        certificate, key = self.pair(*(names or ("127.0.0.1",)), **facts)
        return Credentials(
            ca=self.ca if mutual else None, certificate=certificate, key=key, require_client_certificate=mutual
        )

    def consumer(self, *names: str, **facts: Any) -> Credentials:
        if not names:
            return Credentials(ca=self.ca, **facts)
        certificate, key = self.pair(*names)
        return Credentials(ca=self.ca, certificate=certificate, key=key, **facts)

    def write(self, folder: Path, *names: str, **facts: Any) -> dict[str, Path]:
        """ca.pem, certificate.pem and key.pem in *folder*, each replaced whole."""
        certificate, key = self.pair(*(names or ("127.0.0.1",)), **facts)
        paths = {}
        for name, content in (("ca", self.ca), ("key", key), ("certificate", certificate)):
            paths[name] = folder / f"{name}.pem"
            new = folder / f"{name}.new"
            new.write_bytes(content)
            new.replace(paths[name])
        return paths


@functools.cache
def shared_pki() -> Pki:
    """One for all tests that do not care: a key takes time to make."""
    return Pki()


def from_now(seconds: float) -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds)

"""JSON Web Tokens for tests, and the documents with the keys that verify them."""

from __future__ import annotations

import json
import time
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

ISSUER, AUDIENCE = "https://issuer.test", "steelyard.test"


class Signer:
    """One key pair. ``kid`` None: its tokens name no key."""

    def __init__(self, kid: str | None = None, algorithm: str = "ES256") -> None:
        self.kid = kid
        self.algorithm = algorithm
        self._key: Any = (
            ec.generate_private_key(ec.SECP256R1())
            if algorithm.startswith("ES")
            else rsa.generate_private_key(public_exponent=65537, key_size=2048)
        )

    def token(self, subject: str | None = "batch", *, header: dict[str, Any] | None = None, **claims: Any) -> str:
        """Claims that are given as None are left out."""
        said = {"sub": subject, "iss": ISSUER, "aud": AUDIENCE, "exp": time.time() + 600, **claims}
        said = {name: value for name, value in said.items() if value is not None}
        headers = {**({"kid": self.kid} if self.kid else {}), **(header or {})}
        return jwt.encode(said, self._key, algorithm=self.algorithm, headers=headers)

    @property
    def pem(self) -> bytes:
        public: bytes = self._key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        return public

    @property
    def private_pem(self) -> bytes:
        private: bytes = self._key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return private

    @property
    def jwk(self) -> dict[str, Any]:
        algorithm = jwt.algorithms.get_default_algorithms()[self.algorithm]
        facts = json.loads(algorithm.to_jwk(self._key.public_key()))
        return {**facts, "alg": self.algorithm, "use": "sig", **({"kid": self.kid} if self.kid else {})}


def jwks(*keys: Signer | dict[str, Any]) -> bytes:
    return json.dumps({"keys": [key.jwk if isinstance(key, Signer) else key for key in keys]}).encode()

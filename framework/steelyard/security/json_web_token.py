"""Bearer tokens that are JSON Web Tokens (RFC 7519), verified by PyJWT; needs the extra ``jwt``.

What has gone wrong with them elsewhere is settled here: the algorithms are a list of the verifier's and not what the
token says; all of them are asymmetric, so that no public key can be taken for a shared secret and whoever verifies
cannot sign; audience, issuer, subject and an end are required; a clock may differ by a bounded time.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from steelyard.errors import ConfigError, Unauthenticated
from steelyard.model import Identity, Invocation
from steelyard.setting import checked, text

from .authenticator import bearer_token
from .watched import Source, Watched, checked_source

log = logging.getLogger(__name__)

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
MOST_LEEWAY_S = 300.0
MOST_KEYS = 64
# A verified token is believed again without its signature until it ends or the keys change: checking one takes 50 to
# 150 us (ES256, RS256), looking it up 2. Kept are digests, so that the cache holds no secret and a bounded size.
MOST_VERIFIED = 4096
MOST_TOKEN_CHARACTERS = 16 * 1024

Keys = Mapping[str, tuple[Any, str | None]]
"""By key id ("" where there is none): the key, and the one algorithm that it says it is for."""


class JwtVerifier:
    """An Authenticator.

    ``keys``: a public key in PEM form or a JWKS document (RFC 7517), as a path that is read again when it changes, or
    as bytes. ``issuer``, ``audience``: what the token must say; of several audiences one has to fit. ``algorithms``:
    the list that is accepted [ES256]. ``leeway_s``: how far clocks may be apart [30 s, at most 300]. ``required``: a
    call without a token is refused [True]; otherwise it is whoever its connection vouches for. ``prefix``: the identity
    is called ``sub:SUBJECT`` [``sub``], or ``PREFIX:SUBJECT``.

    Raises ConfigError for a setting or keys that cannot be used, and when PyJWT is not installed.
    """

    def __init__(
        self,
        *,
        keys: Source,
        issuer: str,
        audience: str | Sequence[str],
        algorithms: Sequence[str] = ("ES256",),
        leeway_s: float = 30.0,
        required: bool = True,
        prefix: str = "sub",
    ) -> None:
        self._jwt = _library()
        if checked_source("JwtVerifier.keys", keys) is None:
            raise ConfigError("JwtVerifier.keys: the path of a file, or its content as bytes, not None")
        self._issuer = checked(
            "JwtVerifier.issuer", text("JwtVerifier.issuer", issuer), bool(issuer), "who issues them"
        )
        audiences = [audience] if isinstance(audience, str) else list(audience)
        is_good = bool(audiences) and all(isinstance(each, str) and each for each in audiences)
        self._audiences = checked("JwtVerifier.audience", audiences, is_good, "one or more names")
        self._algorithms = list(algorithms)
        is_good = bool(self._algorithms) and set(self._algorithms) <= set(ALGORITHMS)
        checked("JwtVerifier.algorithms", self._algorithms, is_good, f"some of {', '.join(ALGORITHMS)}")
        is_good = isinstance(leeway_s, int | float) and 0 <= leeway_s <= MOST_LEEWAY_S
        self._leeway_s = checked("JwtVerifier.leeway_s", leeway_s, is_good, f"0 to {MOST_LEEWAY_S:g} seconds")
        self._required = checked("JwtVerifier.required", required, isinstance(required, bool), "True or False")
        self._prefix = checked(
            "JwtVerifier.prefix", prefix, bool(prefix) and ":" not in prefix, "a word without a colon"
        )
        self._watched = Watched("JwtVerifier.keys", [keys], self._read)
        self._verified: OrderedDict[bytes, tuple[Identity, float]] = OrderedDict()
        self._keys = self._watched.value()

    def __repr__(self) -> str:
        return f"JwtVerifier(issuer={self._issuer!r}, audience={self._audiences!r}, algorithms={self._algorithms!r})"

    def authenticate(self, call: Invocation) -> Identity | None:
        token = bearer_token(call)
        if token is None:
            if self._required:
                raise Unauthenticated(f"{call.service} asks for a bearer token: Consumer(bearer=Bearer(file=...))")
            return None
        if len(token) > MOST_TOKEN_CHARACTERS:
            raise Unauthenticated(f"{call.service}: a bearer token of {len(token)} characters")
        keys = self._watched.value()
        if keys is not self._keys:
            self._keys = keys
            self._verified.clear()
        digest = hashlib.sha256(token.encode("utf-8", "replace")).digest()
        known = self._verified.get(digest)
        if known is not None and time.time() < known[1]:
            return known[0]
        identity, end_at = self._verify(token, keys, call.service)
        if len(self._verified) >= MOST_VERIFIED:
            self._verified.popitem(last=False)
        self._verified[digest] = (identity, end_at)
        return identity

    def _verify(self, token: str, keys: Keys, service: str) -> tuple[Identity, float]:
        try:
            claims = self._claims(token, keys)
            subject, end_at = claims["sub"], float(claims["exp"]) + self._leeway_s
            if not isinstance(subject, str) or not subject:
                raise self._jwt.InvalidTokenError("no subject")
        except Unauthenticated as error:
            raise Unauthenticated(f"{service}: {error.message}") from None
        except Exception as error:
            # What a token can say is without end, and so is what a library says about it: the caller learns the kind.
            log.debug("a bearer token was not accepted: %s", type(error).__name__)
            raise Unauthenticated(f"{service}: the bearer token is not accepted: {self._reason(error)}") from None
        name = f"{self._prefix}:{subject}"
        return Identity(name, "bearer", (name,), MappingProxyType(claims)), end_at

    def _claims(self, token: str, keys: Keys) -> dict[str, Any]:
        header = self._jwt.get_unverified_header(token)
        algorithm = header.get("alg")
        if algorithm not in self._algorithms:
            raise Unauthenticated(f"the bearer token is not signed by one of {', '.join(self._algorithms)}")
        chosen = _chosen(keys, header.get("kid"))
        if chosen is None:
            raise Unauthenticated("the bearer token is signed by a key that is not known here")
        key, declared = chosen
        if declared not in (None, algorithm):
            raise Unauthenticated("the bearer token's algorithm is not that of its key")
        claims: dict[str, Any] = self._jwt.decode(
            token,
            key,
            algorithms=self._algorithms,
            audience=self._audiences,
            issuer=self._issuer,
            leeway=self._leeway_s,
            options={"require": ["exp", "iss", "aud", "sub"]},
        )
        return claims

    def _reason(self, error: Exception) -> str:
        jwt = self._jwt
        for kind, words in (
            (jwt.ExpiredSignatureError, "it has expired"),
            (jwt.ImmatureSignatureError, "it is not valid yet"),
            (jwt.InvalidIssuedAtError, "it is not valid yet"),
            (jwt.InvalidAudienceError, "it is for somebody else"),
            (jwt.InvalidIssuerError, "it is from another issuer"),
            (jwt.MissingRequiredClaimError, "it lacks exp, iss, aud or sub"),
        ):
            if isinstance(error, kind):
                return words
        return "its form or its signature is not valid"

    def _read(self, contents: list[bytes]) -> Keys:
        content = contents[0].strip()
        if b"PRIVATE" in content:
            raise ConfigError("JwtVerifier.keys: this is a private key; whoever verifies needs the public one only")
        try:
            if content.startswith(b"{"):
                return self._key_set(content)
            serialization = importlib.import_module("cryptography.hazmat.primitives.serialization")
            return {"": (serialization.load_pem_public_key(content), None)}
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(f"JwtVerifier.keys: neither a PEM key nor a JWKS: {type(error).__name__}") from error

    def _key_set(self, content: bytes) -> Keys:
        listed = json.loads(content).get("keys")
        if not isinstance(listed, list) or not 0 < len(listed) <= MOST_KEYS:
            raise ConfigError(f"JwtVerifier.keys: a JWKS of 1 to {MOST_KEYS} keys")
        found: dict[str, tuple[Any, str | None]] = {}
        for each in listed:
            # Shared secrets and keys for encryption are not for verifying, and a kind that is not known is no error.
            if not isinstance(each, dict) or each.get("kty") == "oct" or each.get("use", "sig") != "sig":
                continue
            try:
                found[str(each.get("kid", ""))] = (self._jwt.PyJWK.from_dict(each).key, each.get("alg"))
            except Exception as error:
                log.warning("JwtVerifier.keys: a key is left out: %s", type(error).__name__)
        if not found:
            raise ConfigError("JwtVerifier.keys: a JWKS without a public key for signatures")
        return found


def _chosen(keys: Keys, kid: object) -> tuple[Any, str | None] | None:
    """The key that the token names. One that names none is believed to mean the only one there is."""
    if kid is None or "" in keys:
        return next(iter(keys.values())) if len(keys) == 1 else None
    return keys.get(kid) if isinstance(kid, str) else None


def _library() -> Any:
    try:
        return importlib.import_module("jwt")
    except ImportError as error:
        raise ConfigError("JwtVerifier needs PyJWT: pip install 'steelyard[jwt]'") from error

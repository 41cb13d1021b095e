"""The JWT verifier: what it believes, and each of the ways in which others have been fooled."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from support.jwts import AUDIENCE, ISSUER, Signer, jwks

from steelyard.errors import ConfigError, Unauthenticated
from steelyard.model import Identity, Invocation
from steelyard.security import JwtVerifier

SIGNER = Signer()
OTHER = Signer()


def verifier(**settings: Any) -> JwtVerifier:
    return JwtVerifier(**{"keys": SIGNER.pem, "issuer": ISSUER, "audience": AUDIENCE, **settings})


def with_token(token: str | None, scheme: str = "Bearer ") -> Invocation:
    attachments = {} if token is None else {"authorization": scheme + token}
    return Invocation("ads.Ctr", "predict", attachments=attachments)


def refusal(token: str | None, **settings: Any) -> str:
    with pytest.raises(Unauthenticated) as raised:
        verifier(**settings).authenticate(with_token(token))
    message = raised.value.message
    assert message.startswith("ads.Ctr"), message
    assert not token or token not in message
    return message


def test_a_good_token_is_an_identity_with_its_claims() -> None:
    identity = verifier().authenticate(with_token(SIGNER.token("batch", scope="ads")))
    assert isinstance(identity, Identity)
    assert (identity.name, identity.kind, identity.names) == ("sub:batch", "bearer", ("sub:batch",))
    assert identity.claims["scope"] == "ads"
    assert verifier(prefix="user").authenticate(with_token(SIGNER.token("x"))).name == "user:x"  # type: ignore[union-attr]
    assert verifier().authenticate(with_token(SIGNER.token(), scheme="bearer ")) is not None


@pytest.mark.parametrize("algorithm", ["RS256", "PS256", "ES256"])
def test_algorithms_of_the_list(algorithm: str) -> None:
    signer = Signer("k", algorithm)
    one = verifier(keys=jwks(signer), algorithms=[algorithm])
    assert one.authenticate(with_token(signer.token("a"))).name == "sub:a"  # type: ignore[union-attr]


def test_times_and_names() -> None:
    now = time.time()
    assert "it has expired" in refusal(SIGNER.token(exp=now - 31))
    assert "it is not valid yet" in refusal(SIGNER.token(nbf=now + 100))
    assert "it is not valid yet" in refusal(SIGNER.token(iat=now + 100))
    assert "for somebody else" in refusal(SIGNER.token(aud="else"))
    assert "another issuer" in refusal(SIGNER.token(iss="https://else"))
    assert verifier().authenticate(with_token(SIGNER.token(exp=now - 5))), "within the leeway"
    assert "it has expired" in refusal(SIGNER.token(exp=now - 5), leeway_s=0)
    assert verifier(audience=["x", AUDIENCE]).authenticate(with_token(SIGNER.token(aud=["y", AUDIENCE])))


@pytest.mark.parametrize("missing", ["exp", "iss", "aud", "sub"])
def test_claims_that_must_be_there(missing: str) -> None:
    facts = {missing: None} if missing != "sub" else {}
    assert "lacks" in refusal(SIGNER.token(None if missing == "sub" else "batch", **facts))


def test_signatures() -> None:
    assert "signature is not valid" in refusal(OTHER.token())
    head, body, signature = SIGNER.token().split(".")
    forged = (
        base64.urlsafe_b64encode(
            json.dumps({"sub": "root", "iss": ISSUER, "aud": AUDIENCE, "exp": time.time() + 9}).encode()
        )
        .decode()
        .rstrip("=")
    )
    assert "signature is not valid" in refusal(f"{head}.{forged}.{signature}")
    for nonsense in ("", "a.b.c", "x" * 1000, f"{head}.{body}", f"{head}.{body}.", "\x00", "é" * 30):
        assert refusal(nonsense)
    assert "17000 characters" in refusal("x" * 17_000)


def test_no_algorithm_and_another_one() -> None:
    unsigned = jwt.encode(
        {"sub": "root", "iss": ISSUER, "aud": AUDIENCE, "exp": time.time() + 9}, None, algorithm="none"
    )
    assert "not signed by one of ES256" in refusal(unsigned)
    assert "not signed by one of ES256" in refusal(Signer(algorithm="RS256").token())


def test_a_public_key_is_no_shared_secret() -> None:
    """The classic: an HMAC with the public key's text, which everybody has, as its secret."""
    signer = Signer(algorithm="RS256")

    def part(value: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    said = {"sub": "root", "iss": ISSUER, "aud": AUDIENCE, "exp": time.time() + 60}
    signed = f"{part({'alg': 'HS256', 'typ': 'JWT'})}.{part(said)}"
    mac = hmac.new(signer.pem, signed.encode(), hashlib.sha256).digest()
    token = f"{signed}.{base64.urlsafe_b64encode(mac).decode().rstrip('=')}"
    assert "not signed by one of RS256" in refusal(token, keys=signer.pem, algorithms=["RS256"])
    with pytest.raises(ConfigError, match=r"JwtVerifier\.algorithms"):
        verifier(keys=signer.pem, algorithms=["RS256", "HS256"])


def test_keys_by_their_ids() -> None:
    one, two = Signer("one"), Signer("two")
    both = {"keys": jwks(one, two)}
    assert verifier(**both).authenticate(with_token(two.token()))
    assert "a key that is not known" in refusal(Signer("three").token(), **both)
    assert "a key that is not known" in refusal(jwt_without_kid(one), **both)
    assert "signature is not valid" in refusal(two.token(header={"kid": "one"}), **both)
    only = {"keys": jwks(one)}
    assert verifier(**only).authenticate(with_token(jwt_without_kid(one)))


def jwt_without_kid(signer: Signer) -> str:
    kid, signer.kid = signer.kid, None
    try:
        return signer.token()
    finally:
        signer.kid = kid


def test_a_key_is_for_its_own_algorithm() -> None:
    signer = Signer("k", "RS256")
    weaker = Signer("k", "RS256")
    weaker._key, weaker.algorithm = signer._key, "RS512"
    both = {"keys": jwks(signer), "algorithms": ["RS256", "RS512"]}
    assert verifier(**both).authenticate(with_token(signer.token()))
    assert "algorithm is not that of its key" in refusal(weaker.token(), **both)
    with pytest.raises(ConfigError, match="without a public key"):  # one that contradicts itself is left out
        verifier(keys=jwks({**Signer("k").jwk, "alg": "RS256"}))


def test_shared_secrets_and_unknown_keys_are_left_out() -> None:
    secret = {"kty": "oct", "kid": "s", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0"}
    unknown = {"kty": "NEW", "kid": "n"}
    signer = Signer("k")
    assert verifier(keys=jwks(secret, unknown, signer)).authenticate(with_token(signer.token()))
    with pytest.raises(ConfigError, match="without a public key"):
        verifier(keys=jwks(secret))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"keys": None}, r"JwtVerifier\.keys: the path"),
        ({"keys": b"nonsense"}, "neither a PEM key nor a JWKS"),
        ({"keys": b"{}"}, "a JWKS of 1 to 64 keys"),
        ({"keys": b'{"keys": ['}, "neither a PEM key nor a JWKS"),
        ({"keys": SIGNER.private_pem}, "this is a private key"),
        ({"keys": "/no/such/file"}, "cannot be read"),
        ({"issuer": ""}, r"JwtVerifier\.issuer"),
        ({"audience": []}, r"JwtVerifier\.audience"),
        ({"algorithms": []}, r"JwtVerifier\.algorithms"),
        ({"algorithms": ["none"]}, r"JwtVerifier\.algorithms"),
        ({"leeway_s": 301}, r"JwtVerifier\.leeway_s: 0 to 300 seconds"),
        ({"prefix": "a:b"}, r"JwtVerifier\.prefix"),
    ],
)
def test_settings_that_cannot_be_meant(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        verifier(**settings)
    assert "BEGIN" not in str(raised.value)


def test_without_a_token() -> None:
    assert "asks for a bearer token" in refusal(None)
    assert verifier(required=False).authenticate(with_token(None)) is None
    with pytest.raises(Unauthenticated, match="Bearer TOKEN"):
        verifier(required=False).authenticate(Invocation("s", "m", attachments={"authorization": "Basic eDp5"}))


def test_keys_rotate_and_take_what_was_believed_with_them(tmp_path: Path) -> None:
    old, new = Signer("old"), Signer("new")
    file = tmp_path / "jwks.json"
    file.write_bytes(jwks(old))
    one = verifier(keys=str(file))
    token = old.token()
    assert one.authenticate(with_token(token)) is one.authenticate(with_token(token)), "looked up the second time"
    (tmp_path / "next").write_bytes(jwks(new))
    os.replace(tmp_path / "next", file)
    with pytest.raises(Unauthenticated, match="a key that is not known"):
        one.authenticate(with_token(token))
    assert one.authenticate(with_token(new.token()))


def test_what_was_believed_ends_with_its_token() -> None:
    one = verifier(leeway_s=0)
    token = SIGNER.token(exp=time.time() + 1.2)
    assert one.authenticate(with_token(token))
    time.sleep(2.3)  # PyJWT counts whole seconds
    with pytest.raises(Unauthenticated, match="expired"):
        one.authenticate(with_token(token))


def test_the_memory_of_tokens_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steelyard.security.json_web_token.MOST_VERIFIED", 3)
    one = verifier()
    for number in range(10):
        assert one.authenticate(with_token(SIGNER.token(f"{number}")))
    assert len(one._verified) == 3
    assert not any(isinstance(key, str) for key in one._verified), "digests, and no tokens"

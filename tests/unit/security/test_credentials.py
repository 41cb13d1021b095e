"""Credentials: what they take, what they refuse, and what they never show."""

from __future__ import annotations

import dataclasses
import logging
import ssl
from pathlib import Path
from typing import Any

import pytest
from support.pki import Pki, shared_pki

from steelyard.errors import ConfigError
from steelyard.security import Credentials, Tls, Watched


@pytest.fixture
def pki() -> Pki:
    return shared_pki()


def test_the_repr_shows_no_secret(pki: Pki) -> None:
    certificate, key = pki.pair("dns:api.test")
    credentials = Credentials(ca="/etc/ca.pem", certificate=certificate, key=key, server_name="api.test")
    shown = f"{credentials!r} {credentials}"
    assert "/etc/ca.pem" in shown
    assert f"<{len(key)} bytes>" in shown
    assert "BEGIN" not in shown
    assert key.decode().splitlines()[1] not in shown
    for made in (Tls(Credentials(ca=pki.ca, certificate=certificate, key=key)),):
        assert "BEGIN" not in f"{made!r} {made.pems()!r} {vars(made)!r}"


def test_it_is_a_value(pki: Pki) -> None:
    assert Credentials(ca="a") == Credentials(ca="a") != Credentials(ca="b")
    with pytest.raises(dataclasses.FrozenInstanceError):
        Credentials(ca="a").ca = "b"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ca": 7}, r"Credentials\.ca: the path of a file, or its content as bytes, not int"),
        ({"ca": b""}, r"Credentials\.ca: the path"),
        ({"key": "k"}, r"Credentials\.certificate: a certificate and its key go together"),
        ({"certificate": "c"}, r"Credentials\.key: a certificate and its key go together"),
        ({"require_client_certificate": True}, r"Credentials\.ca: require_client_certificate needs to know"),
        ({"require_client_certificate": 1}, r"Credentials\.require_client_certificate: True or False"),
        ({"server_name": None}, r"Credentials\.server_name: text"),
    ],
)
def test_what_cannot_be_meant_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Credentials(**given)


def test_a_key_in_the_place_of_a_path_is_not_shown() -> None:
    with pytest.raises(ConfigError) as raised:
        Credentials(ca=["-----BEGIN PRIVATE KEY-----"])  # type: ignore[arg-type]
    assert "PRIVATE" not in str(raised.value)


def test_the_environment() -> None:
    assert Credentials.from_environment({}) is None
    assert Credentials.from_environment({"STEELYARD_TLS_CA": ""}) is None
    assert Credentials.from_environment(
        {
            "STEELYARD_TLS_CA": "ca.pem",
            "STEELYARD_TLS_CERTIFICATE": "c.pem",
            "STEELYARD_TLS_KEY": "k.pem",
            "STEELYARD_TLS_REQUIRE_CLIENT_CERTIFICATE": "yes",
            "STEELYARD_TLS_SERVER_NAME": "api.test",
            "STEELYARD_TLS_ALLOW_PLAINTEXT": "0",
        }
    ) == Credentials(
        ca="ca.pem", certificate="c.pem", key="k.pem", require_client_certificate=True, server_name="api.test"
    )
    with pytest.raises(ConfigError, match=r"\$STEELYARD_TLS_ALLOW_PLAINTEXT: 1 or 0, not 'perhaps'"):
        Credentials.from_environment({"STEELYARD_TLS_CA": "ca.pem", "STEELYARD_TLS_ALLOW_PLAINTEXT": "perhaps"})


def test_what_is_in_the_files_is_checked_at_once(tmp_path: Path, pki: Pki) -> None:
    certificate, key = pki.pair("dns:api.test")
    other_certificate, _ = pki.pair("dns:other.test")
    with pytest.raises(ConfigError, match=r"missing\.pem cannot be read: No such file"):
        Tls(Credentials(ca=tmp_path / "missing.pem"))
    with pytest.raises(ConfigError, match=r"Credentials\.ca: no certificates in PEM form"):
        Tls(Credentials(ca=b"nonsense"))
    with pytest.raises(ConfigError, match="not those of an authority"):
        Tls(Credentials(ca=certificate.split(b"-----END CERTIFICATE-----")[0] + b"-----END CERTIFICATE-----\n"))
    with pytest.raises(ConfigError, match="not a certificate and its own key"):
        Tls(Credentials(certificate=other_certificate, key=key))
    huge = tmp_path / "huge.pem"
    huge.write_bytes(b"x" * (1024 * 1024 + 1))
    with pytest.raises(ConfigError, match="has more than 1048576 bytes"):
        Tls(Credentials(ca=huge))


def test_a_key_with_a_passphrase_is_refused_and_asks_nobody(pki: Pki) -> None:
    from cryptography.hazmat.primitives import serialization

    certificate, plain = pki.pair("dns:api.test")
    key = serialization.load_pem_private_key(plain, None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    with pytest.raises(ConfigError, match="a key with a passphrase"):
        Tls(Credentials(certificate=certificate, key=key))


def test_contexts_are_made_once_and_anew_when_a_file_changes(tmp_path: Path, pki: Pki) -> None:
    paths = pki.write(tmp_path)
    tls = Tls(Credentials(**paths, require_client_certificate=True))
    first = tls.server_context(), tls.client_context()
    assert (tls.server_context(), tls.client_context()) == first
    assert first[0].verify_mode is ssl.CERT_REQUIRED
    assert first[1].check_hostname
    assert first[0].minimum_version is ssl.TLSVersion.TLSv1_3
    pki.write(tmp_path)
    assert tls.server_context() is not first[0]
    assert tls.changes == 1


def test_what_is_not_there_is_not_asked_for(pki: Pki) -> None:
    with pytest.raises(ConfigError, match=r"Credentials\.certificate"):
        Tls(pki.consumer()).server_context()
    with pytest.raises(ConfigError, match=r"Credentials\.ca"):
        Tls(pki.provider()).client_context()


# What is read again.


def number(contents: list[bytes]) -> int:
    try:
        return int(contents[0])
    except ValueError as error:
        raise ConfigError("no number") from error


def test_a_file_is_read_again_when_it_changes_and_only_then(tmp_path: Path) -> None:
    file = tmp_path / "n"
    file.write_text("1")
    read: list[int] = []

    def make(contents: list[bytes]) -> int:
        read.append(number(contents))
        return read[-1]

    watched = Watched("numbers", [str(file)], make)
    assert [watched.value() for _ in range(3)] == [1, 1, 1]
    (tmp_path / "new").write_text("2")
    (tmp_path / "new").replace(file)
    assert [watched.value() for _ in range(3)] == [2, 2, 2]
    assert read == [1, 2]


def test_the_last_good_value_stays_and_the_bad_one_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "n"
    file.write_text("1")
    watched = Watched("numbers", [file], number)
    assert watched.value() == 1
    with caplog.at_level(logging.WARNING):
        file.write_text("secret")
        assert [watched.value() for _ in range(3)] == [1, 1, 1]
        file.unlink()
        assert watched.value() == 1
    assert len(caplog.records) == 2
    assert "secret" not in caplog.text
    file.write_text("3")
    assert watched.value() == 3


def test_without_a_good_value_it_fails_each_time(tmp_path: Path) -> None:
    watched = Watched("numbers", [tmp_path / "n"], number)
    for _ in range(2):
        with pytest.raises(ConfigError, match="cannot be read"):
            watched.value()
    (tmp_path / "n").write_text("5")
    assert watched.value() == 5

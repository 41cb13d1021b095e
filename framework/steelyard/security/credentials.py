"""Credentials: one value that says how this process proves itself and whom it believes, for every way in and out.

A frozen value and not an ssl.SSLContext, because gRPC and Python's sockets want different objects made of the same
files, and because a context cannot be made again when the files change. ``tls.Tls`` puts it to work.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields

from steelyard.errors import ConfigError
from steelyard.setting import checked, text

from .watched import Source, checked_source

VARIABLE = "STEELYARD_TLS_"
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Credentials:
    """Paths of PEM files, which are read again when they change, or their content as bytes, which is not.

    ``certificate`` (with its chain) and ``key``: who this is. A provider needs them; a consumer where the provider asks
    for them. ``ca``: whom to believe, one or more certificates. A consumer needs it; a provider with
    ``require_client_certificate``, which turns callers away that none of these has vouched for (mutual TLS).
    ``server_name``: what a provider's certificate must say, in place of the host that is connected to; for fleets that
    share one certificate. ``allow_plaintext``: a consumer calls nodes as well that do not announce TLS; for the time
    in which a fleet changes over, because whoever can write to the registry can take that announcement away.

    Raises ConfigError. Its repr shows names of files and never what is in them.
    """

    ca: Source | None = None
    certificate: Source | None = None
    key: Source | None = None
    require_client_certificate: bool = False
    server_name: str = ""
    allow_plaintext: bool = False

    def __post_init__(self) -> None:
        for name in ("ca", "certificate", "key"):
            checked_source(f"Credentials.{name}", getattr(self, name))
        for name in ("require_client_certificate", "allow_plaintext"):
            value = getattr(self, name)
            checked(f"Credentials.{name}", value, isinstance(value, bool), "True or False")
        text("Credentials.server_name", self.server_name)
        if (self.certificate is None) != (self.key is None):
            missing = "key" if self.key is None else "certificate"
            raise ConfigError(f"Credentials.{missing}: a certificate and its key go together; this one is missing")
        if self.require_client_certificate and self.ca is None:
            raise ConfigError("Credentials.ca: require_client_certificate needs to know whose certificates to believe")

    def __repr__(self) -> str:
        shown = (f"{each.name}={_shown(getattr(self, each.name))}" for each in fields(self))
        return f"Credentials({', '.join(shown)})"

    @property
    def is_mutual(self) -> bool:
        """Whether a provider with these turns callers without a certificate away."""
        return self.require_client_certificate

    def check_for_provider(self) -> None:
        """Raises ConfigError when a provider cannot do with these."""
        if self.certificate is None:
            raise ConfigError(
                "Credentials.certificate: a provider proves itself by a certificate and its key; give both "
                "(--tls-certificate and --tls-key, or $STEELYARD_TLS_CERTIFICATE and $STEELYARD_TLS_KEY)"
            )

    def check_for_consumer(self) -> None:
        """Raises ConfigError when a consumer cannot do with these."""
        if self.ca is None:
            raise ConfigError(
                "Credentials.ca: a consumer has to know whose certificates to believe (--tls-ca, $STEELYARD_TLS_CA); "
                "for public ones that is the system's file, such as /etc/ssl/certs/ca-certificates.crt"
            )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Credentials | None:
        """What ``$STEELYARD_TLS_CA``, ``_CERTIFICATE``, ``_KEY``, ``_REQUIRE_CLIENT_CERTIFICATE``, ``_SERVER_NAME`` and
        ``_ALLOW_PLAINTEXT`` say; None when none of them is set. Raises ConfigError."""
        found = os.environ if environment is None else environment
        given = {each.name: found.get(VARIABLE + each.name.upper(), "") for each in fields(cls)}
        if not any(given.values()):
            return None
        return cls(
            ca=given["ca"] or None,
            certificate=given["certificate"] or None,
            key=given["key"] or None,
            require_client_certificate=_flag("require_client_certificate", given),
            server_name=given["server_name"],
            allow_plaintext=_flag("allow_plaintext", given),
        )


def checked_credentials(name: str, value: object) -> Credentials | None:
    """*value*, or what the environment says where it is None. Raises ConfigError."""
    if value is None:
        return Credentials.from_environment()
    if not isinstance(value, Credentials):
        raise ConfigError(f"{name}: Credentials or None, not {type(value).__name__}")
    return value


def _flag(name: str, given: Mapping[str, str]) -> bool:
    word = given[name].strip().lower()
    checked(f"${VARIABLE}{name.upper()}", word, word in (*_TRUE, *_FALSE), "1 or 0")
    return word in _TRUE


def _shown(value: object) -> str:
    return f"<{len(value)} bytes>" if isinstance(value, bytes) else repr(value)

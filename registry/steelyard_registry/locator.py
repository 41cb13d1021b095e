"""The URL that says which registry to use, taken apart.

Not ``urllib.parse.urlsplit``: a registry's authority may be a list of hosts, of which urlsplit takes one that is not
all brackets for a broken IPv6 address (in some releases of Python; others let it pass). Besides, a bad option must be
named (a typing error in ``session_timeout_s`` that is silently ignored is found at three in the morning), and no
message, log line or repr may carry the password.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from urllib.parse import parse_qsl, unquote

from .errors import MalformedUrl

MAX_LOCATOR_CHARACTERS = 64 * 1024
_FLAGS = {"true": True, "1": True, "yes": True, "": True, "false": False, "0": False, "no": False}


def redacted(url: str) -> str:
    """*url* without user and password, for messages. Greedy up to the last ``@``: too much hidden beats too little."""
    return re.sub(r"(://|^).*@", r"\1***@", url[:200], flags=re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Locator:
    """``scheme://[username:password@]authority/path?query``.

    ``path`` keeps its leading slash and is decoded; ``options`` is the decoded query, ``query`` the raw one.
    """

    scheme: str
    authority: str = ""
    path: str = ""
    query: str = ""
    options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    username: str = field(default="", repr=False)
    password: str = field(default="", repr=False)

    @classmethod
    def parse(cls, url: str) -> Locator:
        """Raises MalformedUrl; the message never holds the user or the password."""
        if len(url) > MAX_LOCATOR_CHARACTERS:
            raise MalformedUrl(f"registry URL of {len(url)} characters; at most {MAX_LOCATOR_CHARACTERS} are read")
        scheme, separator, rest = url.partition("://")
        if not separator or not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme):
            raise MalformedUrl(
                f"registry URL {redacted(url)!r} has no scheme; write for example "
                "'zookeeper://127.0.0.1:2181', or 'embedded://' for one machine"
            )
        if re.search(r"[\x00-\x1f\x7f]", rest):
            raise MalformedUrl(f"registry URL {redacted(url)!r} has a control character in it, a line break maybe")
        before, hash_sign, fragment = rest.partition("#")
        before, _, query = before.partition("?")
        netloc, slash, path = before.partition("/")
        path = slash + path
        if "@" in path + query + fragment:
            # Most likely the end of a password with a slash in it, which must not be taken for a host and shown.
            raise MalformedUrl(
                f"registry URL {redacted(url)!r} has a '@' after the host part; write it as %40, and in a user or "
                "password / as %2F, ? as %3F, # as %23"
            )
        if hash_sign:
            raise MalformedUrl(f"registry URL {redacted(url)!r} has a '#'; write it as %23")
        credentials, _, authority = netloc.rpartition("@")
        username, _, password = credentials.partition(":")
        return cls(
            scheme=scheme.lower(),
            authority=authority,
            path=unquote(path),
            query=query,
            options=MappingProxyType(dict(parse_qsl(query, keep_blank_values=True))),
            username=unquote(username),
            password=unquote(password),
        )

    def require_options(self, *known: str) -> None:
        """Raises MalformedUrl for an option that this scheme does not have."""
        unknown = sorted(set(self.options) - set(known))
        if unknown:
            have = ", ".join(known) if known else "none"
            raise MalformedUrl(f"{self.scheme}:// has no option {unknown[0]!r}; it has: {have}")

    def number(self, option: str, default: float, *, low: float, high: float) -> float:
        """A number option in [low, high]; MalformedUrl names the option, the range and the value."""
        text = self.options.get(option)
        if text is None:
            return default
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise MalformedUrl(f"{self.scheme}:// option {option}={text!r} is not a number in [{low:g}, {high:g}]")
        return value

    def flag(self, option: str, default: bool = False) -> bool:
        """A yes/no option; MalformedUrl names what it takes."""
        text = self.options.get(option)
        if text is None:
            return default
        if text.lower() not in _FLAGS:
            raise MalformedUrl(f"{self.scheme}:// option {option}={text[:40]!r} is neither true nor false")
        return _FLAGS[text.lower()]

    def reject_credentials(self) -> None:
        if self.username or self.password:
            raise MalformedUrl(f"{self.scheme}:// takes no user and password")


def split_address(text: str, default_port: int | None = None) -> tuple[str, int]:
    """``host:port`` or ``[v6]:port`` -> (host without brackets, port in 1..65535). Raises MalformedUrl."""
    match = re.fullmatch(r"(?:\[([^\[\]]+)\]|([^:\[\]]+))(?::([0-9]{1,5}))?", text.strip())
    if match is None:
        raise MalformedUrl(f"address {text[:100]!r} is not host:port (IPv6 hosts stand in brackets)")
    host = match[1] or match[2]
    port = int(match[3]) if match[3] else default_port
    if port is None or not 1 <= port <= 65535:
        raise MalformedUrl(f"address {text[:100]!r} needs a port in 1..65535")
    if not is_host(host):
        raise MalformedUrl(f"address {text[:100]!r}: the host is neither a name nor an IP address")
    return host, port


def is_host(host: str) -> bool:
    """A host name (underscores allowed: container names have them) or an IP address, IPv6 with an optional scope."""
    if ":" in host:
        return re.fullmatch(r"[0-9A-Fa-f:.]{2,45}(%[A-Za-z0-9_.~-]{1,32})?", host) is not None
    return re.fullmatch(r"[A-Za-z0-9_.-]{1,253}", host) is not None

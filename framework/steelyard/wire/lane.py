"""Fast lanes: where a provider can be reached without gRPC, told in its node's tag ``lane``.

``tcp:PORT`` is a port of the node's own host. ``uds:PATH`` is a Unix socket; its name is random, so that a file of that
name exists only on the machine of this very provider, and a consumer elsewhere simply does not find it.

A lane is an offer. A consumer that cannot take it (a firewall, another machine, a node that has moved on) uses gRPC
within the same attempt to connect, and does not ask again for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import stat
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from steelyard.errors import ConfigError
from steelyard.security import Tls

from .carrier import Carrier, CarrierLost
from .frames import Hello, ProtocolError, parse
from .grpc_carrier import NotSpoken
from .grpc_carrier import connect as connect_grpc
from .limits import WireLimits
from .plain import PlainPeer, connect_plain
from .socket_carrier import Link, connect_tcp, connect_uds

TAG = "lane"
TLS_TAG = "tls"
TLS_SERVER, TLS_MUTUAL = "server", "mutual"
"""Values of that tag: the provider proves itself; both do."""
WIRE_TAG = "wire"
"""In the entries of our providers: the version of our wire that they speak beside plain gRPC."""
CARRIERS = ("auto", "grpc", "tcp", "uds")
# Quick in any one cluster, and a fraction of what an attempt to connect may take: a port behind a firewall that drops
# costs the first connection this and no more.
LANE_TIMEOUT_S = 0.5
# How long a lane that failed is left alone, when others served instead.
LANE_PAUSE_S = 30.0
_PATH_BYTES = 100  # sockaddr_un has 108 with the final zero; some systems have 104
_MODE_OURS = 0o700


def lane_tag(lanes: Mapping[str, str]) -> str:
    """The tag of these lanes: ``{"tcp": "4001", "uds": "/run/x"}`` is ``tcp:4001,uds:/run/x``."""
    return ",".join(f"{kind}:{place}" for kind, place in sorted(lanes.items()))


def read_lanes(tag: str) -> dict[str, str]:
    """What a tag offers; what is not understood (a newer provider's) is left out. Never raises: it is somebody else's
    text."""
    lanes: dict[str, str] = {}
    for part in tag.split(","):
        kind, colon, place = part.partition(":")
        if kind == "tcp" and place.isascii() and place.isdigit() and 0 < int(place[:6]) < 65536:
            lanes["tcp"] = place
        elif kind == "uds" and colon and place.startswith("/") and len(os.fsencode(place)) <= _PATH_BYTES:
            lanes["uds"] = place
    return lanes


def read_offer(tags: Mapping[str, str]) -> dict[str, str]:
    """What a node's tags offer: its lanes, and under ``tls`` what it speaks (absent: it does not say)."""
    offer = read_lanes(tags.get(TAG, ""))
    tls = tags.get(TLS_TAG, "")
    if tls:
        offer[TLS_TAG] = tls
    return offer


def offer_tags(offer: Mapping[str, str]) -> dict[str, str]:
    """A Listener's offer as tags of a node: what ``read_offer`` reads."""
    tags = {TLS_TAG: offer[TLS_TAG]} if TLS_TAG in offer else {}
    lanes = {kind: place for kind, place in offer.items() if kind != TLS_TAG}
    return {TAG: lane_tag(lanes), **tags} if lanes else tags


def checked_carrier(name: str, value: object) -> str:
    """Raises ConfigError for anything but one of CARRIERS."""
    if not isinstance(value, str) or value not in CARRIERS:
        raise ConfigError(f"{name} must be one of {', '.join(CARRIERS)}, not {value!r}")
    return value


class LaneConnector:
    """A Connector that takes the best lane it can have: the socket of this machine, the plain one, gRPC.

    *carrier* pins one: with ``tcp`` or ``uds`` there is no falling back, and an address that does not offer it is
    unreachable. ``lanes`` (see ``read_offer``) may be replaced at any time; it counts from the next attempt on. With
    *tls* every connection speaks it, except to a node that does not say that it does where the credentials allow that;
    and except over the Unix socket of a node that asks for no certificate: its file belongs to this user alone, so the
    kernel has made sure of both ends, and nobody stands in between. ``last`` names what the last connection was made
    over: a carrier, or ``plain`` for a server that does not speak our wire. ``is_foreign``: the node's entry says that
    it does not; otherwise the server is asked with each connection, because what stands behind an address may change
    with it.
    """

    def __init__(
        self,
        carrier: str = "auto",
        lanes: Mapping[str, str] | None = None,
        tls: Tls | None = None,
        is_foreign: bool = False,
    ) -> None:
        self._carrier = carrier
        self._tls = tls
        self.is_foreign = is_foreign
        self._lanes = dict(lanes or {})
        self._avoided: dict[tuple[str, str], float] = {}
        self.last = ""

    @property
    def lanes(self) -> Mapping[str, str]:
        return self._lanes

    @lanes.setter
    def lanes(self, lanes: Mapping[str, str]) -> None:
        self._lanes = dict(lanes)
        places = self._lanes.items()
        self._avoided = {lane: until for lane, until in self._avoided.items() if lane in places}

    async def __call__(self, address: str, limits: WireLimits) -> Carrier | Link | PlainPeer:
        self._check(address)
        if self._carrier in ("tcp", "uds"):
            return await self._take(self._carrier, address, limits)
        failed: list[str] = []
        if self._carrier == "auto":
            for kind in ("uds", "tcp"):
                link = await self._try(kind, address, limits)
                if link is not None:
                    return link
                failed.append(kind)
        try:
            carrier = await self._grpc(address, limits)
        except CarrierLost as error:
            raise CarrierLost(f"{error}{self._hint()}") from error
        self.last = "plain" if isinstance(carrier, PlainPeer) else "grpc"
        # Only now: where gRPC fails too, the provider is gone, and its lane is as good as ever when it comes back.
        for kind in failed:
            self._avoid(kind)
        return carrier

    async def _grpc(self, address: str, limits: WireLimits) -> Carrier | PlainPeer:
        if not self.is_foreign:
            try:
                return await connect_grpc(address, limits, self._used_tls)
            except NotSpoken:
                pass
        return await connect_plain(address, limits, self._used_tls)

    @property
    def _used_tls(self) -> Tls | None:
        tls = self._tls
        if tls is not None and tls.credentials.allow_plaintext and TLS_TAG not in self._lanes:
            return None
        return tls

    def _check(self, address: str) -> None:
        """What cannot succeed is said in words that help, and not found out in a handshake. Raises CarrierLost."""
        asked = self._lanes.get(TLS_TAG)
        if asked is None:
            return
        if self._tls is None:
            raise CarrierLost(
                f"{address} speaks TLS only, and this consumer has no credentials: give Consumer(credentials="
                "Credentials(ca=...)), --tls-ca FILE, or set $STEELYARD_TLS_CA"
            )
        if asked == TLS_MUTUAL and self._tls.credentials.certificate is None:
            raise CarrierLost(
                f"{address} asks its callers for a certificate, and this consumer has none: give Credentials("
                "certificate=..., key=...), --tls-certificate and --tls-key, or set $STEELYARD_TLS_CERTIFICATE and "
                "$STEELYARD_TLS_KEY"
            )

    def _hint(self) -> str:
        """A plain port answers a handshake with nonsense."""
        if self._used_tls is None or TLS_TAG in self._lanes:
            return ""
        return "; the node does not say that it speaks TLS, and these credentials do not allow_plaintext"

    def _avoid(self, kind: str) -> None:
        if kind in self._lanes:
            self._avoided[kind, self._lanes[kind]] = time.monotonic() + LANE_PAUSE_S

    async def _try(self, kind: str, address: str, limits: WireLimits) -> Link | None:
        place = self._lanes.get(kind)
        if place is None or self._avoided.get((kind, place), 0.0) > time.monotonic():
            return None
        try:
            async with asyncio.timeout(min(LANE_TIMEOUT_S, limits.connect_timeout_s / 3)):
                return await self._take(kind, address, limits)
        except (CarrierLost, TimeoutError):
            return None

    async def _take(self, kind: str, address: str, limits: WireLimits) -> Link:
        place = self._lanes.get(kind)
        if place is None:
            raise CarrierLost(f"{address} offers no {kind} lane")
        try:
            link = await self._open(kind, place, address, limits)
        except CarrierLost as error:
            raise CarrierLost(f"{error}{self._hint()}") from error
        try:
            _check_hello(await link.first(), kind, address)
        except BaseException:
            link.abort()
            raise
        self.last = kind
        return link

    async def _open(self, kind: str, place: str, address: str, limits: WireLimits) -> Link:
        host = address.rpartition(":")[0].removeprefix("[").removesuffix("]")
        if kind == "uds":
            if not os.path.exists(place):  # noqa: ASYNC240  # a stat of a local file
                raise CarrierLost("its uds lane is on another machine")
            tls = self._used_tls
            is_plain = self._lanes.get(TLS_TAG) == TLS_SERVER
            link = await connect_uds(place, limits, None if is_plain else tls, host)
            if is_plain and tls is not None:
                _check_user(link)
            return link
        return await connect_tcp(host, int(place), limits, self._used_tls)


def _check_user(link: Link) -> None:
    """The socket's path is only what the registry says; who listens there, the kernel says. Raises CarrierLost."""
    caller = link.caller
    if caller is None or caller.name != f"uid:{os.getuid()}":
        link.abort()
        raise CarrierLost("its uds lane belongs to another user, and is not believed without TLS")


def _check_hello(packet: bytes, kind: str, address: str) -> None:
    """A port is taken up again soon after its owner has died: whoever is there must be the provider that was meant.
    Raises CarrierLost."""
    try:
        frames = parse(packet)
    except ProtocolError as error:
        raise CarrierLost(f"{address}: its {kind} lane leads to something else: {error}") from error
    identity = frames[0].identity if frames and isinstance(frames[0], Hello) else None
    if identity is None or identity not in ("", address):
        raise CarrierLost(f"{address}: its {kind} lane leads to {identity or 'something else'}")


def socket_folder() -> Path:
    """This user's folder for sockets, mode 0700. Raises OSError when it cannot be had or belongs to somebody else."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    base = Path(runtime) if runtime and os.access(runtime, os.W_OK) else Path(tempfile.gettempdir())
    folder = base / f"steelyard-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=_MODE_OURS)
    facts = folder.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid() or stat.S_IMODE(facts.st_mode) & 0o077:
        raise OSError(f"{folder} is not a folder of this user alone")
    return folder


def socket_path(port: int) -> str:
    """A new name for a Unix socket, that exists nowhere else. Raises OSError when there is no place for it."""
    path = socket_folder() / f"{port}-{secrets.token_hex(8)}.sock"
    if len(os.fsencode(path)) > _PATH_BYTES:
        raise OSError(f"{path} is too long for a socket")
    return str(path)

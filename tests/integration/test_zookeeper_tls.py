"""A ZooKeeper that speaks only TLS: who may come in, and how soon and how clearly it is told to others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from support.pki import Pki, shared_pki
from support.zookeeper import ZooKeeperServer, free_port

from steelyard_registry import Node, RegistryUnreachable, ServiceKey, Snapshot, Subscription, open_registry

pytestmark = pytest.mark.zookeeper

LIVENESS_S = 60.0
CTR = ServiceKey(interface="ads.Ctr")
NODE = Node(interface="ads.Ctr", host="10.0.0.1", port=20880, started_at_ms=1700000000000)


class Secure:
    """The server, and the files of the authority that vouches for it."""

    def __init__(self, folder: Path, *names: str) -> None:
        pki = shared_pki()
        self.port = free_port()
        self.files = pki.write(folder, *names)
        key = serialization.load_pem_private_key(self.files["key"].read_bytes(), None)
        store = folder / "server.pem"
        # Java reads PKCS #8 only.
        store.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            + self.files["certificate"].read_bytes()
        )
        flags = [
            "-Dzookeeper.serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
            f"-Dzookeeper.ssl.keyStore.location={store}",
            "-Dzookeeper.ssl.keyStore.type=PEM",
            f"-Dzookeeper.ssl.trustStore.location={self.files['ca']}",
            "-Dzookeeper.ssl.trustStore.type=PEM",
            "-Dzookeeper.ssl.hostnameVerification=false",  # of clients, which have no name that resolves
        ]
        extra = f"secureClientPort={self.port}\nsecureClientPortAddress=127.0.0.1\n"
        self.server = ZooKeeperServer(folder / "zookeeper", extra=extra, flags=flags)

    def url(self, *, host: str = "127.0.0.1", **options: object) -> str:
        query = "&".join(f"{key}={value}" for key, value in {"cache": "off", "own_session": "true", **options}.items())
        return f"zookeeper://{host}:{self.port}/tls?{query}"

    @property
    def trusted(self) -> dict[str, Path]:
        return {"tls_ca": self.files["ca"], "tls_cert": self.files["certificate"], "tls_key": self.files["key"]}


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    secure = Secure(tmp_path_factory.mktemp("tls"), "127.0.0.1")
    with secure.server:
        yield secure


async def until(view: Subscription, wanted: Callable[[Snapshot], object]) -> Snapshot:
    async with asyncio.timeout(LIVENESS_S):
        while not wanted(view.snapshot):
            await view.changed(view.snapshot.version)
    return view.snapshot


async def test_tls_options_register_watch_and_come_back(secure: Secure) -> None:
    async with open_registry(secure.url(**secure.trusted)) as provider:
        entry = await provider.register(NODE)
        async with open_registry(secure.url(**secure.trusted, session_timeout_s=4)) as consumer:
            view = await consumer.subscribe(CTR)
            assert view.snapshot.nodes == (NODE,)
            await entry.update(replace(NODE, weight=7))
            await until(view, lambda found: found.nodes == (replace(NODE, weight=7),))
            await asyncio.to_thread(secure.server.kill)
            await until(view, lambda found: found.is_stale)
            await asyncio.to_thread(secure.server.start)
            await until(view, lambda found: found.nodes == (replace(NODE, weight=7),) and not found.is_stale)


@pytest.mark.parametrize("missing", ["the client's certificate", "the authority", "tls"])
async def test_who_is_not_trusted_or_does_not_trust_is_told_in_time(secure: Secure, missing: str) -> None:
    options: dict[str, object] = dict(secure.trusted)
    if missing == "tls":
        options = {}
    elif missing == "the authority":
        del options["tls_ca"]  # the system's own authorities have not heard of it
    else:
        del options["tls_cert"], options["tls_key"]
    registry = open_registry(secure.url(**options))
    async with asyncio.timeout(LIVENESS_S):
        with pytest.raises(RegistryUnreachable, match="no ZooKeeper answered"):
            await registry.open(wait_s=2)
        await registry.close()


async def test_a_certificate_of_another_authority_is_not_accepted(secure: Secure, tmp_path: Path) -> None:
    stranger = Pki().write(tmp_path, "127.0.0.1")
    with pytest.raises(RegistryUnreachable):
        await open_registry(secure.url(**{**secure.trusted, "tls_ca": stranger["ca"]})).open(wait_s=2)
    stranger_url = secure.url(tls_ca=secure.files["ca"], tls_cert=stranger["certificate"], tls_key=stranger["key"])
    with pytest.raises(RegistryUnreachable):
        await open_registry(stranger_url).open(wait_s=2)


async def test_a_certificate_for_another_name_is_not_accepted_unless_nobody_verifies(secure: Secure) -> None:
    """Any server of the same authority could otherwise stand in for ZooKeeper."""
    elsewhere = secure.url(host="localhost", **secure.trusted)
    with pytest.raises(RegistryUnreachable):
        await open_registry(elsewhere).open(wait_s=2)
    async with open_registry(f"{elsewhere}&tls_verify=false") as registry:
        assert await registry.services() == () or await registry.services() == ("ads.Ctr",)

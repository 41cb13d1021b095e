"""Registry URLs: which backend, which options, and never a password in what is shown."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from steelyard_registry import DEFAULT_URL, MalformedUrl, open_registry
from steelyard_registry.locator import Locator, redacted


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("memory://shop", "memory://shop"),
        ("memory://", "memory://default"),
        ("static://10.0.0.1:20880,[fd00::2]:20880?zone=a", "static://10.0.0.1:20880,[fd00::2]:20880?zone=a"),
        ("embedded:///var/lib/ads/registry.db?lease_s=5", "embedded:///var/lib/ads/registry.db"),
        ("zookeeper://zk1", "zookeeper://zk1:2181/dubbo"),
        ("zookeeper://zk1:2182,[fd00::3]:2183/team/dubbo", "zookeeper://zk1:2182,[fd00::3]:2183/team/dubbo"),
        ("zookeeper://ads:s3cret@zk1:2181/dubbo?session_timeout_s=5", "zookeeper://zk1:2181/dubbo"),
        ("ZooKeeper://zk1:2181", "zookeeper://zk1:2181/dubbo"),
        ("zookeeper://[fd00::3]:2181,zk1", "zookeeper://[fd00::3]:2181,zk1:2181/dubbo"),
        ("zookeeper://u:p%40[@zk1,[fd00::3]", "zookeeper://zk1:2181,[fd00::3]:2181/dubbo"),
        ("static://[fd00::2]:1,[fd00::3%25eth0]:2,h:3", "static://[fd00::2]:1,[fd00::3%25eth0]:2,h:3"),
    ],
)
def test_a_url_names_its_registry(url: str, shown: str) -> None:
    registry = open_registry(url)
    assert registry.url == shown
    assert "s3cret" not in repr(registry)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("", "has no scheme"),
        ("127.0.0.1:2181", "has no scheme"),
        (
            "etcd://h:1",
            "unknown scheme 'etcd'; known: dns://, embedded://, memory://, multi://, static://, zookeeper://",
        ),
        ("zookeeper://", "needs at least one host"),
        ("zookeeper:///dubbo", "needs at least one host"),
        ("zookeeper://h:0", "needs a port in 1..65535"),
        ("zookeeper://h:port", "is not host:port"),
        ("zookeeper://h:1,,k:1", "is not host:port"),
        ("zookeeper://[fd00::1", "address '[fd00::1' is not host:port (IPv6 hosts stand in brackets)"),
        ("zookeeper://zk1:2181,fd00::1]:2181", "address 'fd00::1]:2181' is not host:port"),
        ("static://[fd00::1]]:1", "is not host:port"),
        ("dns://[fd00::1:80", "is not host:port"),
        ("zookeeper://h:1\n", "has a control character"),
        ("static://10.0.0.1:1,\t10.0.0.2:1", "has a control character"),
        ("zookeeper://h h:1", "neither a name nor an IP address"),
        ("zookeeper://user@h:1", "both user and password"),
        ("zookeeper://h:1/a//b", "is not a ZooKeeper path"),
        ("zookeeper://h:1/..", "is not a ZooKeeper path"),
        ("zookeeper://h:1/a%00", "is not a ZooKeeper path"),
        ("zookeeper://h:1?sesion_timeout_s=5", "has no option 'sesion_timeout_s'; it has: session_timeout_s, "),
        ("zookeeper://h:1?session_timeout_s=fast", "session_timeout_s='fast' is not a number in [1, 600]"),
        ("zookeeper://h:1?session_timeout_s=0.1", "session_timeout_s='0.1' is not a number in [1, 600]"),
        ("zookeeper://h:1#x", "has a '#'"),
        ("embedded://var/lib/x.db", "is written with three slashes: embedded:///var/lib/x.db"),
        ("embedded:///var/lib/", "names a folder"),
        ("embedded:///x.db?lease_s=0", "lease_s='0' is not a number in [0.2, 600]"),
        ("embedded://u:p@/x.db", "takes no user and password"),
        ("static://", "needs at least one host:port"),
        ("static://h", "needs a port"),
        ("static://h:1/a", "has no path"),
        ("static://h:1?weight=heavy", "weight='heavy' is not a whole number"),
        ("static://h:1;version=2", "answers every version"),
        ("memory://x?y=1", "memory:// has no option 'y'; it has: none"),
        ("memory://" + "x" * 70_000, "at most 65536 are read"),
    ],
)
def test_a_bad_url_says_what_is_bad(url: str, reason: str) -> None:
    with pytest.raises(MalformedUrl) as caught:
        open_registry(url)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "zk://ads:s3cret@h:1/",
        "ads:s3cret@h:1/",
        "zookeeper://ads:s3cret@",
        "zookeeper://ads:s3/cret@h:1",
        "zookeeper://ads:s3cret@[h",
        "zookeeper://ads:s3cret@h:x",
        "zookeeper://ads:s3cret@h:1?x=1",
        "embedded://ads:s3cret@/x",
        "memory://ads:s3cret@x#y",
    ],
)
def test_no_error_shows_the_password(url: str) -> None:
    with pytest.raises(MalformedUrl) as caught:
        open_registry(url)
    error: BaseException | None = caught.value
    while error is not None:
        assert "s3" not in str(error)
        error = error.__cause__
    assert "s3cret" not in redacted(url)


def test_no_repr_shows_the_password() -> None:
    assert "s3cret" not in repr(Locator.parse("zookeeper://ads:s3cret@h:1"))


def test_the_default_is_a_file_of_this_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert DEFAULT_URL == "embedded://"
    assert open_registry().url == f"embedded://{tmp_path}/steelyard/registry.db"
    assert (tmp_path / "steelyard").stat().st_mode & 0o777 == 0o700


def test_backends_are_loaded_only_when_used() -> None:
    program = (
        "import sys; from steelyard_registry import open_registry; open_registry('static://h:1'); "
        "open_registry('memory://x'); print(sorted({'kazoo', 'sqlite3'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=os.environ, check=True)
    assert done.stdout.strip() == "[]"

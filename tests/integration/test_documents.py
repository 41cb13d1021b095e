"""The Python that the documents show is run, so that whoever copies it gets what is promised."""

from __future__ import annotations

import asyncio
import re
import struct
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import msgpack
import numpy as np
import pytest

from steelyard import method, service, with_options
from steelyard.balance import policy_names
from steelyard.testing import LocalCluster

ROOT = Path(__file__).resolve().parents[2]


def blocks(document: str, heading: str = "") -> list[str]:
    """The Python blocks of a document, or of its chapter of that heading."""
    text = (ROOT / document).read_text(encoding="utf-8")
    if heading:
        text = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


async def test_the_contract_of_the_readme(monkeypatch: pytest.MonkeyPatch) -> None:
    contract, calls = blocks("README.md", "A contract in full")
    names: dict[str, Any] = {"__name__": "readme"}
    exec(compile(contract, "README.md", "exec"), names)

    class Model(names["Ranker"]):  # type: ignore[misc]
        async def rank(self, user_id: int, top: int = 10) -> list[int]:
            raise RuntimeError("sick")

        async def name(self, user_id: int) -> str:
            raise names["NoSuchUser"](user_id)

        async def watch(self, user_id: int) -> AsyncIterator[str]:
            yield f"{user_id}"

    async with LocalCluster() as cluster:
        await cluster.provide(Model(), hardware={"kind": "gpu"}, tags={"pool": "ads"})
        names |= {"consumer": cluster.consumer, "with_options": with_options}
        exec(compile(calls, "README.md", "exec"), names)
        for ranker in (names["ranker"], names["patient"]):
            await cluster.consumer.ready(ranker)
            assert await ranker.rank(7, top=3) == [0, 1, 2]  # the fallback
            with pytest.raises(names["NoSuchUser"]):
                await ranker.name(7)
            assert [line async for line in ranker.watch(7)] == ["7"]
            assert [line async for line in await ranker.watch(7)] == ["7"]


async def test_a_foreign_caller_without_the_contract() -> None:
    calls, reads = blocks("docs/interop.md", "Being called")
    names: dict[str, Any] = {"grpc": grpc, "msgpack": msgpack, "np": np, "struct": struct}
    exec(compile(reads, "docs/interop.md", "exec"), names)

    @service("ads.Ctr")
    class Ctr:
        @method
        async def predict(self, user_id: int, features: np.ndarray) -> np.ndarray:
            return features.reshape(2, 2) * user_id

    async with LocalCluster() as cluster:
        provider = await cluster.provide(Ctr())
        said = calls.replace("127.0.0.1:20880", provider.address)
        await asyncio.to_thread(exec, compile(said, "docs/interop.md", "exec"), names)
    assert np.array_equal(names["clicks"], np.array([[0.1, 0.2], [0.3, 0.4]]) * 7)


def test_the_policies_of_the_readme() -> None:
    text = (
        (ROOT / "README.md").read_text(encoding="utf-8").split("\n## Which node gets the call\n")[1].split("\n## ")[0]
    )
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert len(named) > 8
    assert set(named) <= set(policy_names())


async def test_the_tests_of_the_page_on_testing(tmp_path: Path) -> None:
    (block,) = blocks("docs/testing.md")
    (tmp_path / "test_shown.py").write_text(block, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-o", "asyncio_mode=auto", "test_shown.py"]
    done = await asyncio.to_thread(subprocess.run, command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "2 passed" in done.stdout, done.stdout


DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    text = re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text)]
    lost = [link for link in links if link and "://" not in link and not (document.parent / link).exists()]
    assert lost == []


def test_every_picture_is_shown_and_small() -> None:
    text = (ROOT / "docs" / "law.md").read_text(encoding="utf-8")
    pictures = sorted((ROOT / "docs" / "pictures").iterdir())
    assert len(pictures) > 5
    for picture in pictures:
        assert f"](pictures/{picture.name})" in text
        assert picture.stat().st_size < 100 * 1024
        assert "<svg" in picture.read_text(encoding="utf-8")[:1000]

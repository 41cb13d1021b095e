"""Versions, waiting and choosing between records: the parts of a subscription that all backends share."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from steelyard_registry import Node, RegistryClosed, ServiceKey
from steelyard_registry.feed import Feed, select

CTR = ServiceKey(interface="ads.Ctr")
NODE = Node(interface="ads.Ctr", host="10.0.0.1", port=1)


async def test_the_version_grows_only_with_a_difference() -> None:
    feed = Feed(CTR)
    assert feed.snapshot.version == 0
    assert feed.publish(())
    assert not feed.publish(())
    assert feed.publish((NODE,))
    assert not feed.publish((replace(NODE),))
    assert feed.publish((NODE,), skipped=1)
    assert feed.mark_stale()
    assert not feed.mark_stale()
    assert (feed.snapshot.version, feed.snapshot.is_stale, feed.snapshot.skipped) == (4, True, 1)


async def test_changed_returns_at_once_what_is_newer_and_waits_for_the_rest() -> None:
    feed = Feed(CTR)
    feed.publish((NODE,))
    assert (await feed.changed(0)).nodes == (NODE,)
    waiting = asyncio.create_task(feed.changed(1))
    await asyncio.sleep(0)
    assert not waiting.done()
    feed.publish(())
    assert (await waiting).version == 2


async def test_a_cancelled_wait_takes_nothing_from_the_others() -> None:
    feed = Feed(CTR)
    feed.publish(())
    waiting = [asyncio.create_task(feed.changed(1)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[1].cancel()
    await asyncio.sleep(0)
    feed.publish((NODE,))
    assert (await waiting[0]).version == 2
    assert (await waiting[2]).version == 2
    assert waiting[1].cancelled()


async def test_closing_wakes_everybody_and_keeps_the_last_list() -> None:
    feed = Feed(CTR)
    feed.publish((NODE,))
    waiting = asyncio.create_task(feed.changed(1))
    await asyncio.sleep(0)
    await feed.close()
    await feed.close()
    with pytest.raises(RegistryClosed, match=r"ads\.Ctr"):
        await waiting
    with pytest.raises(RegistryClosed):
        await feed.changed(0)
    assert not feed.publish(())
    assert feed.snapshot.nodes == (NODE,)


def test_one_record_an_identity_and_the_newest_wins() -> None:
    old, new = replace(NODE, started_at_ms=5, weight=1), replace(NODE, started_at_ms=9, weight=2)
    other = replace(NODE, port=2)
    assert select(CTR, [new, other, old]) == (new, other)
    first, later = replace(NODE, weight=3), replace(NODE, weight=4)
    assert select(CTR, [first, later]) == (later,)


def test_only_what_serves_the_key_is_selected() -> None:
    nodes = [replace(NODE, version=version, group=group) for version in ("", "1") for group in ("", "blue")]
    nodes.append(replace(NODE, interface="ads.Other"))
    assert len(select(CTR, nodes)) == 1
    assert len(select(ServiceKey(interface="ads.Ctr", version="*"), nodes)) == 2
    assert len(select(ServiceKey(interface="ads.Ctr", version="*", group="*"), nodes)) == 4

"""Spaces in memory: shared by name, dead with their last registry, open to several loops."""

from __future__ import annotations

import asyncio
import gc

from steelyard_registry import Node, ServiceKey, open_registry

CTR = ServiceKey(interface="ads.Ctr")
NODE = Node(interface="ads.Ctr", host="10.0.0.1", port=1)


async def test_a_space_dies_with_its_last_registry() -> None:
    async with open_registry("memory://short-lived") as first:
        await first.register(NODE)
        async with open_registry("memory://short-lived") as second:
            assert await second.services() == ("ads.Ctr",)
    async with open_registry("memory://short-lived") as later:
        assert await later.services() == ()


async def test_a_forgotten_registry_takes_its_nodes_with_it() -> None:
    async with open_registry("memory://forgetful") as kept:
        forgotten = open_registry("memory://forgetful")
        await forgotten.open()
        await forgotten.register(NODE)
        assert await kept.services() == ("ads.Ctr",)
        del forgotten
        gc.collect()
        assert await kept.services() == ()


async def test_names_do_not_mix() -> None:
    async with open_registry("memory://one") as one, open_registry("memory://two") as two:
        await one.register(NODE)
        assert (await two.subscribe(CTR)).snapshot.nodes == ()


async def test_a_registry_on_another_loop_is_seen() -> None:
    async def provide(go: asyncio.AbstractEventLoop, seen: asyncio.Event, done: asyncio.Event) -> None:
        async with open_registry("memory://threads") as registry:
            await registry.register(NODE)
            go.call_soon_threadsafe(seen.set)
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(done.wait(), go))

    seen, done = asyncio.Event(), asyncio.Event()
    async with open_registry("memory://threads") as registry:
        view = await registry.subscribe(CTR)
        thread = asyncio.create_task(
            asyncio.to_thread(asyncio.run, provide(asyncio.get_running_loop(), seen, done)),
        )
        await seen.wait()
        while not view.snapshot.nodes:
            await view.changed(view.snapshot.version)
        done.set()
        await thread
        while view.snapshot.nodes:
            await view.changed(view.snapshot.version)


async def test_a_loop_that_ended_without_closing_counts_as_dead() -> None:
    leaked = open_registry("memory://leaky")

    async def leak() -> None:
        await leaked.open()
        await leaked.register(NODE)
        await leaked.subscribe(CTR)

    await asyncio.to_thread(asyncio.run, leak())
    async with open_registry("memory://leaky") as registry:
        assert await registry.services() == ()
        await registry.register(NODE)  # and telling the dead one does no harm
        assert await registry.services() == ("ads.Ctr",)

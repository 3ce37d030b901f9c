"""A model's concurrency: even shares that move with the number of runners, waiters in order, none lost."""

from __future__ import annotations

import asyncio

from decurion_worker.slots import ModelSlots, Slots


async def hold(slots: Slots, log: list[str], name: str, release: asyncio.Event) -> None:
    async with slots:
        log.append(name)
        await release.wait()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_share_grows_and_shrinks_with_the_runners() -> None:
    slots = ModelSlots()
    spec = {"endpoint": "http://x", "model": "m", "limits": {"concurrency": 6}}
    slots.share(3)
    mine, log, release = slots.of(spec), [], asyncio.Event()
    tasks = [asyncio.create_task(hold(mine, log, f"{i}", release)) for i in range(10)]
    await settle()
    assert log == ["0", "1"]
    slots.share(1)
    await settle()
    assert log == ["0", "1", "2", "3", "4", "5"]
    slots.share(6)
    release.set()
    await asyncio.gather(*tasks)
    assert log == [str(i) for i in range(10)]
    assert slots.of(spec) is mine


async def test_a_waiter_that_is_cancelled_takes_no_slot_with_it() -> None:
    slots, log, release = Slots(1), [], asyncio.Event()
    first = asyncio.create_task(hold(slots, log, "first", release))
    await settle()
    gone = asyncio.create_task(hold(slots, log, "gone", release))
    last = asyncio.create_task(hold(slots, log, "last", release))
    await settle()
    gone.cancel()
    release.set()
    await asyncio.gather(first, gone, last, return_exceptions=True)
    assert log == ["first", "last"]
    async with slots:
        pass


async def test_a_slot_given_in_the_breath_of_a_cancellation_is_not_lost() -> None:
    slots, log, release = Slots(1), [], asyncio.Event()
    async with slots:
        waiter = asyncio.create_task(hold(slots, log, "waiter", release))
        await settle()
    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)
    async with asyncio.timeout(1):
        async with slots:
            pass

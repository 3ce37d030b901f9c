"""Runners that die, are given up, or may send no more: what it costs the run, and its neighbours."""

from __future__ import annotations

import asyncio
import math
from collections import Counter

from crashes import Fragile, Process, Struck, new_store, read, results, sound, until
from decurion_crds.compiled import CompiledGraph, Tolerate
from decurion_worker.errors import RunnerLost
from decurion_worker.link import WorkItem
from decurion_worker.runner import RunnerSettings
from decurion_worker.session import LONE_STRIKES
from graphs import fan_out, graph, map_reduce, node, path, scope

POISON = 13
SIDE_BY_SIDE = 64
MOST_DEATHS = math.ceil(math.log2(SIDE_BY_SIDE)) + LONE_STRIKES
"""Suspects are offered again in halves: as many deaths as halvings, and as many as a lone item is granted."""


def _wide(tolerate: int = 0) -> CompiledGraph:
    """A map whose branches cost next to nothing, and give nothing."""
    copy = node("copy", "transform", with_={"n": "input.item"}, transform={"n": path("n")})
    one = scope(copy, output={}, inputs=("item",))
    root = scope(
        fan_out("each", "input.items", "one", tolerate=Tolerate(count=tolerate)),
        output={"failures": path("nodes.each.output.failures")},
        inputs=("items",),
        leaf=False,
    )
    return graph(root, one=one)


def _poison(item: WorkItem) -> bool:
    return item.run == "poisoned" and item.env.get("input") == {"item": POISON}


async def test_a_branch_that_kills_its_runners_fails_alone_and_its_neighbours_of_all_runs_succeed() -> None:
    store, items = new_store(), {"items": list(range(40))}
    executor = Fragile(RunnerSettings(branches=SIDE_BY_SIDE, processes=1), kills=_poison)
    async with Process(store, executor=executor) as process:
        poisoned = await process.open(_wide(tolerate=1), items, run="poisoned")
        healthy = [await process.open(map_reduce(), {"n": 20}, run=f"healthy-{i}") for i in range(5)]
        for session in (poisoned, *healthy):
            await until(session.ended.is_set, what=f"the end of {session.run}", seconds=60)
    assert [s.projection()["phase"] for s in (poisoned, *healthy)] == ["Succeeded"] * 6
    failures = poisoned.engine.output["failures"]
    assert [(f["index"], f["error"]) for f in failures] == [(POISON, RunnerLost.code)]
    assert LONE_STRIKES <= executor.deaths <= MOST_DEATHS
    for session in healthy:
        assert session.engine.output == {"sum": 400}
        await sound(store, session.run)
    log = await sound(store, "poisoned")
    lost = Counter(r.path for r in log if r.type == "lease_lost")
    assert max(lost.values()) == lost[f"/each[{POISON:05d}]"] == executor.deaths


async def test_how_often_an_item_was_lost_with_its_runner_is_known_to_the_next_driver() -> None:
    store, items = new_store(), {"items": list(range(40))}
    settings = RunnerSettings(branches=SIDE_BY_SIDE, processes=1)
    before = 5
    struck = Struck(store)
    first = Fragile(settings, kills=_poison)
    async with Process(struck, executor=first) as process:
        session = await process.open(_wide(tolerate=1), items, run="poisoned")
        await until(lambda: first.deaths >= before, what=f"{before} deaths")
        struck.dead.set()
    counted = len([r for r in await read(store, "poisoned") if r.path == f"/each[{POISON:05d}]"])
    assert counted >= before - 1
    second = Fragile(settings, kills=_poison)
    async with Process(store, executor=second) as process:
        session = await process.run(None, run="poisoned", epoch=1)
    assert session.projection()["phase"] == "Succeeded"
    assert counted + second.deaths <= MOST_DEATHS
    await sound(store, "poisoned")


async def test_a_runner_killed_in_a_map_of_ten_thousand_costs_only_what_it_held() -> None:
    store, width, held = new_store(), 10_000, 512
    executor = Fragile(RunnerSettings(branches=held, processes=1))
    struck = Struck(store, at=9_000)
    async with Process(struck, executor=executor, runners=2) as process:
        struck.blow = lambda: executor.kill(next(iter(executor.live)))
        session = await process.run(_wide(), {"items": list(range(width))}, seconds=240)
    assert executor.deaths == 1
    assert session.projection()["phase"] == "Succeeded"
    log = await sound(store)
    assert len(results(log)) == 2 * width + 3
    lost = [r for r in log if r.type == "lease_lost"]
    assert len(lost) <= held
    assert session.facts.slot * 50 < len(log), "a segment holds few records"


async def test_a_runner_that_was_given_up_and_goes_on_working_is_not_believed() -> None:
    store = new_store()
    executor = Fragile(RunnerSettings(branches=8, processes=1, beat=0.05))
    async with Process(store, executor=executor) as process:
        session = await process.open(map_reduce(), {"n": 40})
        await until(lambda: len(session.leases) >= 8, what="work at the runner")
        name, ghost = next(iter(executor.live.items()))
        del executor.live[name]  # it lives on, unseen; its driver has given it up for its silence
        process.driver.lose_runner(name, "no word")
        async with asyncio.timeout(60):
            await session.ended.wait()
        await until(lambda: ghost._ended, what="the end of the runner that nobody knows")
        await ghost.stop()
    log = await sound(store)
    assert session.engine.output == {"sum": 1600}
    lost: set[str] = set()
    for record in log:
        assert record.type != "commit" or record.envelope.get("lease") not in lost
        if record.type == "lease_lost":
            lost.add(record.envelope["lease"])
    assert lost


async def test_a_runner_without_credit_starts_nothing_and_goes_on_when_the_store_is_back() -> None:
    gate, store = asyncio.Event(), new_store()
    struck = Struck(store, at=20)

    async def held(key: str) -> None:
        if struck.at is None:
            await gate.wait()

    struck.before = held
    credit = 16 * 1024
    runner = RunnerSettings(branches=256, processes=1, window=4, credit=credit)
    async with Process(struck, runner=runner) as process:
        struck.blow = lambda: None
        session = await process.open(map_reduce(), {"n": 300})
        only = next(iter(process.executor._runners.values()))
        await until(lambda: not only._room.is_set(), what="the end of the credit")
        assert session.facts.state_hash is None
        one = 1024 + 256 * 4
        assert only._unacked <= credit + one, "more was sent than the credit allows"
        gate.set()
        async with asyncio.timeout(60):
            await session.ended.wait()
        assert only._unacked == 0
    assert session.engine.output == {"sum": 90_000}
    assert not [r for r in await sound(store) if r.type == "lease_lost"]

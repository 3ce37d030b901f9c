"""Items that nobody needs any more while they are on their way, or are given up."""

from __future__ import annotations

import asyncio
from typing import Any

from crashes import Fragile, Process, new_store, sound, until
from decurion_crds.compiled import CompiledGraph, MapBlock, Tolerate
from decurion_ledger import Record, open_store, verify
from decurion_ledger.stores import Counted
from decurion_worker.engine import Failure
from decurion_worker.intake import Suspicion
from decurion_worker.opening import OpenRequest
from decurion_worker.records import build
from decurion_worker.runner import RunnerSettings
from decurion_worker.session import RunSession
from graphs import code, fan_out, graph, node, path, scope
from test_runs import Bench, _begin, _stores, put_all


class Gated(Counted):
    """A store whose blobs are read when the gate is open."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self.gate = asyncio.Event()
        self.asked = asyncio.Event()

    async def get(self, key: str, range: Any = None) -> bytes:
        if key.startswith("blobs/"):
            self.asked.set()
            await self.gate.wait()
        return await super().get(key, range)


def fast() -> CompiledGraph:
    """A failFast map that is borne to fail, beside a node that takes its time."""
    one = scope(
        code("first", "if item == 1:\n    raise ValueError('no')\nreturn {'t': 'x' * 9000}", item="input.item"),
        code("second", "return {'n': len(t)}", t="nodes.first.output.t"),
        output={"n": path("nodes.second.output.n")},
        inputs=("item",),
    )
    block = MapBlock(items=path("input.items"), template="one", tolerate=Tolerate(count=0), fail_fast=True)
    root = scope(
        node("each", "map", map=block, on_failure="skip"),
        code("slow", "t = 0\nfor i in range(6000000):\n    t += i\nreturn {'n': t}"),
        output={"n": path("nodes.slow.output.n")},
        inputs=("items",),
        leaf=False,
    )
    return graph(root, one=one)


async def test_a_branch_whose_past_is_read_while_its_map_fails_does_not_reach_the_log() -> None:
    async with Bench(branches=1) as bench:
        await bench.run(fast(), {"items": [0, 1]})
        log, blobs = await bench.log(), await bench.blobs()
    keep = {"/each!open", "/each[00000]/first"}
    body = [r for r in log if r.path in keep]
    assert len(body) == 2
    inner = open_store(f"memory://gated-{next(_stores)}")
    await put_all(inner, blobs)
    await _begin(inner, log[0], body)
    store = Gated(inner)
    async with Bench(store=store) as bench:
        session = await bench.driver.open_run(OpenRequest(run="run-1", name="g", leader_epoch=1))
        async with asyncio.timeout(30):
            await store.asked.wait()
            while "/each" in session.engine.opened:
                await asyncio.sleep(0.005)
            store.gate.set()
            await session.ended.wait()
        assert session.why == ""
        assert session.projection()["phase"] == "Succeeded"
    assert await verify(inner, "run-1") == []
    async with Bench(store=inner) as bench:
        assert (await bench.run(None, epoch=2)).projection()["phase"] == "Succeeded"


def wide() -> CompiledGraph:
    one = scope(code("make", "return 'x' * 200", item="input.item"), output={"$value": path("nodes.make.output")},
                inputs=("item",))  # fmt: skip
    root = scope(
        fan_out("each", "input.items", "one"),
        output={"n": path("nodes.each.output.total")},
        inputs=("items",),
        leaf=False,
    )
    return graph(root, one=one)


async def test_a_wide_join_that_is_given_up_leaves_a_log_that_verifies() -> None:
    store = new_store()
    executor = Fragile(RunnerSettings(branches=64, processes=1), kills=lambda item: item.kind == "join")
    async with Process(store, executor=executor) as process:
        session = await process.run(wide(), {"items": list(range(500))})
        assert session.projection()["phase"] == "Failed"
    await sound(store)


def poisoned() -> CompiledGraph:
    """A failFast map of an item that kills its runner and of one that fails meanwhile."""
    one = scope(
        code("first", "if item == 1:\n    raise ValueError('no')\nreturn {'n': 1}", item="input.item"),
        output={"n": path("nodes.first.output.n")},
        inputs=("item",),
    )
    block = MapBlock(items=path("input.items"), template="one", tolerate=Tolerate(count=0), fail_fast=True)
    root = scope(
        node("each", "map", map=block, on_failure="skip"),
        code("slow", "t = 0\nfor i in range(3000000):\n    t += i\nreturn {'n': t}"),
        output={"n": path("nodes.slow.output.n")},
        inputs=("items",),
        leaf=False,
    )
    return graph(root, one=one)


async def test_a_branch_that_is_given_up_as_its_map_fails_does_not_break_the_log() -> None:
    """The third loss of one branch and the failure of another are durable in one segment."""
    store = open_store(f"memory://poisoned-{next(_stores)}")
    async with Bench(store=store, runners=0) as bench:
        request = OpenRequest(
            run="run-1", name="g", graph=poisoned(), input={"items": [0, 1]}, scheduled_at="2026-01-01T00:00:00+00:00"
        )
        session = await bench.driver.open_run(request)
        session.engine.take(9)
        value = {"items": [0, 1], "base": {}}
        session._inbox.own.append(await _record(session, "scope_opened", "/each!open", value=value))
        session._wake.set()
        await until(lambda: bool(session.engine.pending), what="branches")
        assert {t.key for t in session.engine.take(9)} == {"/each[00000]", "/each[00001]"}
        lost = Record.event("lease_lost", "/each[00000]", {"run": "run-1", "lease": "1.1", "worker": "w", "held": 1})
        session.suspects["/each[00000]"] = Suspicion(share=1, strikes=2)
        why = Failure("/each[00001]/first", "Terminal", "ExpressionFailure", "no")
        session._inbox.own += [lost, await _record(session, "commit", "/each[00001]!output", failure=why)]
        session._wake.set()
        await until(lambda: session.ended.is_set() or "/each" not in session.engine.opened, what="the map's end")
        for _ in range(50):
            await asyncio.sleep(0)
        assert not session.ended.is_set(), session.why


async def _record(session: RunSession, type: str, at: str, **more: Any) -> Record:
    given = {"value": None, **more}
    built = await build(session._values, "run-1", type=type, path=at, node="d", parents=(), input=None, **given)
    return built.record

"""What a runner may send: a record that the engine cannot take must not become durable."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from crashes import Process, new_store
from decurion_ledger import Record, verify
from decurion_ledger.errors import NotFound
from decurion_worker.executors import LocalExecutor
from decurion_worker.link import FromRunner, Submitted
from decurion_worker.runner import RunnerSettings
from graphs import code, fan_out, graph, map_reduce, path, scope
from test_agent_graphs import ALONE, ONCE, agents

Change = Callable[[Submitted], list[Submitted]]


class Lying:
    """A driver as one runner sees it: what it submits is changed, once, on its way."""

    def __init__(self, driver: Any, change: Change) -> None:
        self._driver = driver
        self._change = change
        self._added = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    async def submit(self, runner: str, incarnation: str, seq: int, messages: Sequence[FromRunner]) -> bool:
        sent: list[FromRunner] = []
        for message in messages:
            if isinstance(message, Submitted):
                sent += self._change(message)
            else:
                sent.append(message)
        return bool(await self._driver.submit(runner, incarnation, seq, sent))


class Liar(LocalExecutor):
    def __init__(self, change: Change) -> None:
        super().__init__(RunnerSettings(branches=8, processes=1))
        self._change = change

    async def start(self, driver: Any) -> None:
        await super().start(driver)
        self._driver = Lying(driver, self._change)  # type: ignore[assignment]


def renamed(record: Record, **core: Any) -> Record:
    assert record.core is not None
    return Record.result({**record.core, **core}, record.envelope)


def once(at: str, make: Callable[[Submitted], list[Submitted]]) -> Change:
    """`make` of the first record at `at`; the rest is as it is."""
    done: list[str] = []

    def change(one: Submitted) -> list[Submitted]:
        if one.record.path != at or done:
            return [one]
        done.append(at)
        return make(one)

    return change


def before(at: str, **core: Any) -> Change:
    """A record more, under the same lease, before the one at `at`."""
    return once(at, lambda one: [replace(one, record=renamed(one.record, **core), last=False), one])


def instead(at: str, **core: Any) -> Change:
    return once(at, lambda one: [replace(one, record=renamed(one.record, **core))])


def eventless(at: str, type: str) -> Change:
    event = Record(type=type, path=at, core=None, envelope={"run": "run-1"}, core_hash="")
    return once(at, lambda one: [replace(one, record=event, last=False), one])


LIES = {
    "an otherwise of a node that did not fail": before("/plan", path="/plan!otherwise"),
    "an opening of a node that opens nothing": before("/plan", path="/plan!open", type="scope_opened"),
    "a join of what is no map": before("/plan", path="/plan!join", type="join"),
    "a node below one that opens nothing": before("/plan", path="/plan/inner"),
    "an opening of a branch": before("/each[00000]!output", path="/each[00000]!open", type="scope_opened"),
    "a branch that ends twice": before("/each[00000]/double", path="/each[00000]!output"),
    "a fence": eventless("/plan", "fence"),
    "a close": eventless("/plan", "close"),
    "a cancel": eventless("/plan", "cancel"),
    "a lost lease": eventless("/plan", "lease_lost"),
    "a map that opens with no items": instead("/each!open", delta=None),
}


@pytest.mark.parametrize("lie", LIES)
async def test_a_runner_that_lies_once_neither_stops_nor_spoils_its_run(lie: str) -> None:
    store = new_store()
    async with Process(store, executor=Liar(LIES[lie])) as process:
        session = await process.open(map_reduce(), {"n": 3})
        async with asyncio.timeout(8):
            await session.ended.wait()
        assert session.why == ""
        assert session.projection()["phase"] == "Succeeded", session.facts.message
        assert session.engine.output == {"sum": 9}
    assert await verify(store, "run-1") == []


async def test_a_join_that_names_other_arms_is_refused() -> None:
    one = scope(code("make", "return 'x' * 200", item="input.item"), output={"$value": path("nodes.make.output")},
                inputs=("item",))  # fmt: skip
    root = scope(fan_out("each", "input.items", "one"), output={"n": path("nodes.each.output.total")},
                 inputs=("items",), leaf=False)  # fmt: skip
    lie = instead("/each!join", arms={"count": 500, "ok": 500, "failed": 0, "root": "0" * 64})
    store = new_store()
    async with Process(store, executor=Liar(lie)) as process:
        session = await process.open(graph(root, one=one), {"items": list(range(500))})
        async with asyncio.timeout(20):
            await session.ended.wait()
        assert session.projection()["phase"] == "Succeeded", session.facts.message
    assert await verify(store, "run-1") == []


async def test_a_record_whose_blob_is_not_there_is_refused() -> None:
    values = {"blob": "0" * 64, "bytes": 9000}

    def make(one: Submitted) -> list[Submitted]:
        assert one.record.core is not None
        core = {**one.record.core, "delta": "1" * 64}
        envelope = {**one.record.envelope, "values": {**one.record.envelope["values"], "1" * 64: values}}
        return [replace(one, record=Record.result(core, envelope))]

    store = new_store()
    async with Process(store, executor=Liar(once("/plan", make))) as process:
        session = await process.open(map_reduce(), {"n": 3})
        async with asyncio.timeout(20):
            await session.ended.wait()
        assert session.projection()["phase"] == "Succeeded", session.why
    with pytest.raises(NotFound):
        await store.get("blobs/00/" + "0" * 64)


CALLS = {
    "a call of a tool that the agent does not have": instead("/ask#turn-0001.01!open", tool="other"),
    "a call that opens with no object": instead("/ask#turn-0001.01!open", delta=None),
    "a node of a graph that others work on": before("/ask", path="/ask#turn-0001.01/each"),
}


@pytest.mark.parametrize("lie", CALLS)
async def test_a_runner_that_lies_about_the_call_of_an_agent_is_not_believed(lie: str) -> None:
    store = new_store()
    async with Process(store, executor=Liar(CALLS[lie])) as process:
        session = await process.open(agents(ALONE, ONCE), {})
        async with asyncio.timeout(8):
            await session.ended.wait()
        assert session.engine.output == {"text": "three"}
    assert await verify(store, "run-1") == []

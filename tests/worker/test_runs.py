"""Whole runs in one process on the real driver, runners, interpreter and ledger (memory store)."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from crashes import AT_ONCE
from decurion_crds.compiled import CompiledGraph, Expr, Tolerate
from decurion_crds.expressions import Evaluator
from decurion_ledger import LogWriter, Record, open_store, read_log, verify
from decurion_ledger.errors import StaleLeader
from decurion_worker.acceptance import Acceptance
from decurion_worker.driver import Driver, DriverSettings
from decurion_worker.engine import Task
from decurion_worker.errors import RunExists
from decurion_worker.executors import LocalExecutor
from decurion_worker.opening import OpenRequest
from decurion_worker.runner import RunnerSettings
from decurion_worker.session import RunSession
from decurion_worker.sources import Sources
from graphs import code, expr, fan_out, graph, llm, map_reduce, nested, node, path, scope, tolerant
from manifests import compiled

_stores = itertools.count()


class Bench:
    """A driver with local runners on a memory store of its own, or on `store`."""

    def __init__(
        self,
        *,
        store: Any = None,
        runners: int = 1,
        branches: int = 64,
        evaluator: Callable[[int], Evaluator] = Evaluator,
        settings: DriverSettings = AT_ONCE,
    ) -> None:
        self.uri = f"memory://runs-{next(_stores)}"
        self.store = store if store is not None else open_store(self.uri)
        sources = Sources(open_store, files=True)
        self.driver = Driver("driver-0", store=self.store, ledger_uri=self.uri, sources=sources, settings=settings)
        self.executor = LocalExecutor(RunnerSettings(branches=branches, processes=1), evaluator=evaluator)
        self._runners = runners

    async def __aenter__(self) -> Bench:
        await self.driver.start()
        await self.executor.start(self.driver)
        await self.executor.scale(self._runners)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.executor.stop()
        await self.driver.stop()

    async def run(
        self, compiled: CompiledGraph | None, input: Any = None, *, run: str = "run-1", epoch: int = 0
    ) -> RunSession:
        request = OpenRequest(
            run=run, name="g", graph=compiled, input=input, leader_epoch=epoch, scheduled_at="2026-01-01T00:00:00+00:00"
        )
        session = await self.driver.open_run(request)
        async with asyncio.timeout(60):
            await session.ended.wait()
        return session

    async def log(self, run: str = "run-1") -> list[Record]:
        return [record async for _, record in read_log(self.store, run)]

    async def blobs(self) -> dict[str, bytes]:
        return {info.key: await self.store.get(info.key) async for info in self.store.list("blobs/")}


async def put_all(store: Any, objects: dict[str, bytes]) -> None:
    for key, data in objects.items():
        await store.put_new(key, data)


async def done(compiled: CompiledGraph, input: Any, **more: Any) -> tuple[RunSession, list[Record]]:
    async with Bench(**more) as bench:
        session = await bench.run(compiled, input)
        return session, await bench.log()


async def test_a_map_and_its_join_give_the_sum_and_close_the_log() -> None:
    session, log = await done(map_reduce(), {"n": 20})
    assert session.engine.output == {"sum": 400}
    projection = session.projection()
    assert projection["phase"] == "Succeeded"
    assert projection["progress"] == "22/22"
    assert log[0].type == "genesis"
    assert log[-1].type == "close"
    assert log[-1].envelope["state"] == projection["stateHash"]


async def test_each_path_is_committed_once_and_every_record_names_its_worker() -> None:
    _, log = await done(map_reduce(), {"n": 30}, runners=3)
    paths = Counter(r.path for r in log if r.core is not None and r.type != "genesis")
    assert set(paths.values()) == {1}
    assert len({r.envelope["worker"] for r in log if r.type == "commit"}) >= 2


@pytest.mark.parametrize("runners", [1, 3])
async def test_the_state_does_not_depend_on_the_number_of_runners(runners: int) -> None:
    one, _ = await done(nested(), {"rows": [[1, 2], [3], []]})
    other, _ = await done(nested(), {"rows": [[1, 2], [3], []]}, runners=runners, branches=2)
    assert other.facts.state_hash == one.facts.state_hash
    assert other.engine.output == {"rows": [{"n": 5}, {"n": 9}, {"n": 0}]}


SWEPT = {
    "map_reduce": (map_reduce(), {"n": 3}),
    "nested": (nested(), {"rows": [[1, 2], [3]]}),
}


@pytest.mark.parametrize("name", SWEPT)
async def test_a_run_that_stopped_after_any_record_is_finished_to_the_same_state(name: str) -> None:
    compiled, input = SWEPT[name]
    whole, log = await done(compiled, input)
    body = [r for r in log if r.type not in ("genesis", "fence", "close")]
    for cut in range(len(body) + 1):
        store = open_store(f"memory://cut-{name}-{next(_stores)}")
        await _begin(store, log[0], body[:cut])
        async with Bench(store=store) as bench:
            session = await bench.run(None, epoch=1)
            again = await bench.log()
        assert session.facts.state_hash == whole.facts.state_hash, f"cut after {cut} records"
        paths = Counter(r.path for r in again if r.core is not None and r.type != "genesis")
        assert max(paths.values()) == 1, f"cut after {cut} records"
        assert session.facts.attempt == 2


async def _begin(store: Any, genesis: Record, records: list[Record]) -> None:
    opened = await LogWriter.open(store, "run-1", leader_epoch=0, driver="first", genesis=lambda: genesis)
    for record in records:
        await opened.writer.append([record])
    await opened.writer.aclose()


async def test_a_closed_run_answers_without_running_again() -> None:
    async with Bench() as bench:
        first = await bench.run(map_reduce(), {"n": 2})
        length = len(await bench.log())
        again = await bench.run(None, epoch=5)
        assert again.projection()["phase"] == "Succeeded"
        assert again.engine.output == first.engine.output
        assert len(await bench.log()) == length


async def test_a_second_driver_takes_over_and_the_first_lets_go() -> None:
    slow = scope(
        code("wait", "t = 0\nfor i in range(300000):\n    t += i\nreturn {'n': n}", n="input.item"),
        output={"n": path("nodes.wait.output.n")},
        inputs=("item",),
    )
    root = scope(
        fan_out("each", "input.items", "one"),
        output={"n": expr('len(nodes["each"]["output"]["items"])', "nodes.each.output.items")},
        inputs=("items",),
        leaf=False,
    )
    compiled = graph(root, one=slow)
    async with Bench() as first:
        request = OpenRequest(run="run-1", name="g", graph=compiled, input={"items": list(range(6))}, leader_epoch=1)
        held = await first.driver.open_run(request)
        async with Bench(store=first.store) as second:
            session = await second.run(None, epoch=2)
            assert session.projection()["phase"] == "Succeeded"
            async with asyncio.timeout(30):
                await held.ended.wait()
        assert held.why.startswith("Fenced")
        assert held.facts.state_hash is None
        paths = Counter(r.path for r in await first.log() if r.core is not None and r.type != "genesis")
        assert max(paths.values()) == 1


async def test_a_cancelled_run_ends_cancelled() -> None:
    endless = scope(
        code("wait", "while True:\n    pass", n="input.item"),
        output={"n": path("nodes.wait.output.n")},
        inputs=("item",),
    )
    root = scope(fan_out("each", "input.items", "one"), output={}, inputs=("items",), leaf=False)
    async with Bench() as bench:
        request = OpenRequest(run="run-1", name="g", graph=graph(root, one=endless), input={"items": [1, 2, 3]})
        session = await bench.driver.open_run(request)
        async with asyncio.timeout(20):
            while session.engine.pending or not session.leases:
                await asyncio.sleep(0.01)
            bench.driver.cancel("run-1", "Cancel")
            await session.ended.wait()
        assert session.projection()["phase"] == "Cancelled"
        assert session.projection()["reason"] == "Cancelled"


async def test_code_that_breaks_its_output_fails_the_run_with_its_path() -> None:
    root = scope(
        code("bad", "return {'n': 'text'}", output={"type": "object", "properties": {"n": {"type": "integer"}}}),
        output={},
    )
    session, log = await done(graph(root), {})
    projection = session.projection()
    assert projection["phase"] == "Failed"
    assert projection["reason"] == "OutputBroken"
    assert projection["failures"][0]["path"] == "/bad"
    assert next(r for r in log if r.path == "/bad").core["outcome"] == {
        "failed": {"class": "Violation", "code": "OutputBroken"}
    }


async def test_a_node_whose_condition_is_false_is_skipped_with_its_otherwise() -> None:
    never = expr('input["n"] > 10', "input.n")
    root = scope(
        node(
            "maybe",
            "transform",
            with_={"n": "input.n"},
            when=never,
            transform={"n": Expr(src="n", py="n", reads=("n",), path=("n",))},
            otherwise={"n": Expr(src="0", py="0")},
        ),
        output={"n": path("nodes.maybe.output.n")},
        inputs=("n",),
    )
    session, log = await done(graph(root), {"n": 3})
    assert session.engine.output == {"n": 0}
    assert [r.type for r in log if r.path == "/maybe"] == ["skip"]


async def test_a_tolerated_failure_is_data() -> None:
    one = scope(
        code("one", "return {'n': 10 // item}", item="input.item"),
        output={"n": path("nodes.one.output.n")},
        inputs=("item",),
    )
    root = scope(
        fan_out("each", "input.items", "one", tolerate=Tolerate(percent=50)),
        output={"out": path("nodes.each.output")},
        inputs=("items",),
        leaf=False,
    )
    session, _ = await done(graph(root, one=one), {"items": [1, 0, 5]})
    assert session.engine.output["out"]["items"] == [{"n": 10}, {"n": 2}]
    assert session.engine.output["out"]["failures"] == [
        {"index": 1, "node": "one", "class": "Terminal", "error": "ExpressionFailure"}
    ]


async def test_items_of_a_file_are_copied_into_the_log(tmp_path: Any) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"n": 1}\n\n{"n": 2}\n')
    one = scope(
        code("one", "return {'n': item['n']}", item="input.item"),
        output={"n": path("nodes.one.output.n")},
        inputs=("item",),
    )
    root = scope(
        node("each", "map", map=_jsonl("input.rows", "one")),
        output={"out": path("nodes.each.output.items")},
        inputs=("rows",),
        leaf=False,
    )
    session, log = await done(graph(root, one=one), {"rows": file.as_uri()})
    assert session.engine.output == {"out": [{"n": 1}, {"n": 2}]}
    assert [r.type for r in log if r.path == "/each!open"] == ["scope_opened"]


def _jsonl(source: str, template: str) -> Any:
    from decurion_crds.compiled import MapBlock

    return MapBlock(jsonl=path(source), template=template, item_schema={"type": "object"})


async def test_a_model_answers_a_node_and_what_it_cost_is_recorded() -> None:
    spec = {"protocol": "scripted", "model": "echo", "scripted": {"replies": [{"match": "a", "reply": "A"}]}}
    out = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    root = scope(llm("ask", "m", q="input.q", output=out), output={"t": path("nodes.ask.output.text")}, inputs=("q",))
    session, log = await done(graph(root, llms={"m": spec}), {"q": "a"})
    assert session.engine.output == {"t": "A"}
    assert next(r for r in log if r.path == "/ask").envelope["usage"]["calls"] == 1
    assert session.projection()["usage"]["calls"] == 1


async def test_the_verifier_finds_a_run_in_order() -> None:
    async with Bench() as bench:
        await bench.run(nested(), {"rows": [[1, 2], [3]]})
        assert await verify(bench.store, "run-1") == []


async def test_two_thousand_branches_need_few_segments() -> None:
    async with Bench(branches=1024, settings=DriverSettings()) as bench:
        session = await bench.run(map_reduce(), {"n": 2000})
        assert session.engine.output == {"sum": 2000 * 2000}
        assert session.facts.slot * 10 < session.facts.committed


async def test_a_run_with_a_tolerated_failure_is_finished_to_the_same_state_after_any_record() -> None:
    whole, log = await done(tolerant(), {"items": [1, 0, 5]})
    body = [r for r in log if r.type not in ("genesis", "fence", "close")]
    for cut in range(len(body) + 1):
        store = open_store(f"memory://failing-{next(_stores)}")
        await _begin(store, log[0], body[:cut])
        async with Bench(store=store) as bench:
            session = await bench.run(None, epoch=1)
            again = await bench.log()
            assert await verify(store, "run-1") == []
        assert session.facts.state_hash == whole.facts.state_hash, f"cut after {cut} records"
        paths = Counter(r.path for r in again if r.core is not None and r.type != "genesis")
        assert max(paths.values()) == 1, f"cut after {cut} records"


def _endless() -> CompiledGraph:
    one = scope(code("wait", "while True:\n    pass", n="input.item"), output={}, inputs=("item",))
    return graph(scope(fan_out("each", "input.items", "one"), output={}, inputs=("items",), leaf=False), one=one)


async def _working(session: RunSession, leases: int) -> None:
    async with asyncio.timeout(20):
        while len(session.leases) < leases:
            await asyncio.sleep(0.01)


async def test_cancelling_one_run_leaves_its_neighbour_alone() -> None:
    async with Bench() as bench:
        stopped = await bench.driver.open_run(OpenRequest(run="a", name="a", graph=_endless(), input={"items": [1]}))
        await _working(stopped, 1)
        kept = await bench.driver.open_run(OpenRequest(run="b", name="b", graph=map_reduce(), input={"n": 500}))
        bench.driver.cancel("a", "Cancel")
        async with asyncio.timeout(60):
            await kept.ended.wait()
            await stopped.ended.wait()
        assert kept.projection()["phase"] == "Succeeded"
        assert stopped.projection()["phase"] == "Cancelled"


async def test_a_run_that_is_let_go_leaves_nothing_behind_on_its_runner() -> None:
    async with Bench() as bench:
        request = OpenRequest(run="a", name="a", graph=_endless(), input={"items": [1, 2]}, leader_epoch=1)
        session = await bench.driver.open_run(request)
        await _working(session, 2)
        await session.stop("let go")
        runner = next(iter(bench.executor._runners.values()))
        async with asyncio.timeout(20):
            while runner._tasks or runner._runs:
                await asyncio.sleep(0.01)
        assert runner._unacked == 0


async def test_only_the_cluster_of_a_run_can_orphan_it_and_only_its_leader() -> None:
    async with Bench() as bench:
        request = OpenRequest(run="a", name="a", graph=_endless(), input={"items": [1]}, leader_epoch=5, cluster="mine")
        session = await bench.driver.open_run(request)
        for _ in range(3):
            bench.driver.live("another", [], leader_epoch=9)
        await _working(session, 1)
        assert session.engine.cancelled is None
        with pytest.raises(StaleLeader):
            await bench.driver.open_run(replace(request, leader_epoch=4))
        bench.driver.live("mine", [], leader_epoch=5)
        bench.driver.live("mine", [], leader_epoch=5)
        async with asyncio.timeout(20):
            await session.ended.wait()
        assert session.projection()["phase"] == "Cancelled"


async def test_items_that_are_no_list_fail_the_map_and_do_not_poison_its_log() -> None:
    root = scope(fan_out("each", "input.items", "one"), output={}, inputs=("items",), leaf=False)
    session, log = await done(graph(root, one=map_reduce().templates["one"]), {"items": 5})
    assert session.projection()["phase"] == "Failed"
    assert session.projection()["reason"] == "OutputBroken"
    assert not [r for r in log if r.type == "scope_opened"]


async def test_code_sees_one_order_of_keys_before_and_after_a_resume() -> None:
    keys = scope(
        code("keys", "return {'k': list(item)}", item="input.item"),
        output={"k": path("nodes.keys.output.k")},
        inputs=("item",),
    )
    root = scope(
        code("plan", "return {'rows': [{'b': 1, 'a': 2}]}"),
        fan_out("each", "nodes.plan.output.rows", "one"),
        output={"out": path("nodes.each.output.items")},
        leaf=False,
    )
    session, _ = await done(graph(root, one=keys), {})
    assert session.engine.output == {"out": [{"k": ["a", "b"]}]}


async def test_a_new_run_does_not_take_the_id_of_another() -> None:
    async with Bench() as bench:
        await bench.run(map_reduce(), {"n": 1})
        length = len(await bench.log())
        with pytest.raises(RunExists):
            await bench.driver.open_run(
                OpenRequest(run="run-1", name="g", graph=nested(), input={"rows": []}, must_be_new=True)
            )
        assert len(await bench.log()) == length


async def test_a_node_may_return_null_and_its_branch_goes_on_from_it() -> None:
    one = scope(
        code("none", "return None", item="input.item"),
        code("seen", "return {'n': v is None}", v="nodes.none.output"),
        output={"n": path("nodes.seen.output.n"), "v": path("nodes.none.output")},
        inputs=("item",),
    )
    root = scope(
        code("null", "return None"),
        fan_out("each", "input.items", "one"),
        output={"rows": path("nodes.each.output.items"), "v": path("nodes.null.output")},
        inputs=("items",),
        leaf=False,
    )
    whole, log = await done(graph(root, one=one), {"items": [1]})
    assert whole.engine.output == {"rows": [{"n": True}]}
    body = [r for r in log if r.type not in ("genesis", "fence", "close")]
    for cut in range(len(body)):
        store = open_store(f"memory://null-{next(_stores)}")
        await _begin(store, log[0], body[:cut])
        async with Bench(store=store) as bench:
            session = await bench.run(None, epoch=1)
        assert session.facts.state_hash == whole.facts.state_hash


async def test_code_reads_none_in_a_field_that_must_be_there_and_is_null() -> None:
    spec = """
  schemas:
    Fact: {type: object, required: [field, value], properties: {field: {type: string}, value: {type: [number, "null"]}}}
  nodes:
    - name: give
      code: '{"facts": [{"field": "a", "value": None}, {"field": "b", "value": 1.0}]}'
      output: {facts: {type: array, items: Fact}}
    - name: one
      with: {facts: nodes.give.output.facts}
      code: '{"empty": [fact["field"] for fact in facts if fact["value"] is None]}'
      output: {empty: {type: array, items: {type: string}}}
    - {name: other, with: {facts: nodes.give.output.facts}, transform: {empty: "[f.field for f in facts if f.value is None]"}}
  output: {one: nodes.one.output.empty, other: nodes.other.output.empty}
"""  # noqa: E501
    session, _ = await done(compiled(spec), {})
    assert session.engine.output == {"one": ["a"], "other": ["a"]}


async def test_a_record_that_cannot_be_right_is_refused() -> None:
    _, log = await done(map_reduce(), {"n": 1})
    at = {r.path: r for r in log}
    plan = at["/plan"]
    check = Acceptance(map_reduce())
    node = Task("/plan", "node", "", "plan", {}, "", (), False, {})
    branch = Task("/each[00000]", "branch", "/each[00000]", "", {}, "one", (), False, {})

    def why(record: Record, task: Task = node, committed: Any = (), *, last: bool = True) -> str | None:
        return check.fault(record, task=task, last=last, committed=committed, beside=())

    assert plan.core is not None
    assert why(plan) is None
    assert "is not that of" in (why(plan, replace(node, key="/total")) or "")
    assert "committed already" in (why(plan, committed=["/plan"]) or "")
    assert "hash" in (why(replace(plan, core={**plan.core, "node": "other"})) or "")
    assert "is not said to" in (why(plan, last=False) or "")
    assert why(at["/each[00000]/double"], branch, last=False) is None
    assert "does not" in (why(at["/each[00000]/double"], branch) or "")
    assert "is not that of" in (
        why(replace(at["/each[00000]/double"], path="/each[00000]/no"), branch, last=False) or ""
    )
    assert "is not that of" in (why(replace(plan, path="/plan/inner"), last=False) or "")
    assert "writes no record" in (why(replace(plan, type="genesis")) or "")
    assert "cannot end" in (why(Record.event("close", "/plan", {})) or "")
    values = {name: {"inline": {"items": [7]}} for name in plan.envelope["values"]}
    assert "hash" in (why(replace(plan, envelope={**plan.envelope, "values": values})) or "")

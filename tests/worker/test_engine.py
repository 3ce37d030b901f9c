"""The engine alone: records in, work and decisions out. A make-believe runner answers every task by arithmetic."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decurion_crds.canonical import canonical
from decurion_crds.compiled import CompiledGraph, Tolerate
from decurion_ledger import Record, core_hash, make_core, vhash
from decurion_worker import engine as engine_package
from decurion_worker.engine import Applied, Close, EndScope, Engine, Failure, Join, Task
from graphs import code, expr, fan_out, graph, map_reduce, nested, path, scope

Answer = Callable[[Task, str], Any]


class Rejected(Exception):
    """What a make-believe node raises to fail."""


def record(type: str, at: str, value: Any = None, *, failure: Failure | None = None, input: Any = None) -> Applied:
    core = make_core(
        type=type,
        path=at,
        node="d",
        parents=[],
        input=vhash(input) if input is not None else None,
        outcome={"failed": {"class": failure.klass, "code": failure.code}} if failure else "ok",
        delta=None if failure else vhash(value),
        schema=None,
        writes=[],
    )
    envelope = {"message": failure.message, "failed_at": failure.path} if failure else {}
    found = Record(type=type, path=at, core=core, envelope=envelope, core_hash=core_hash(core))
    return Applied(found, value, {}, size=len(canonical(value)))


class Play:
    """Runs a graph on an engine in memory: `choose` decides which task is answered next."""

    def __init__(self, compiled: CompiledGraph, input: Any, *, fails: frozenset[str] = frozenset()) -> None:
        self.graph = compiled
        self.engine = Engine(compiled, input=input, facts={"id": "r", "scheduledAt": "2026-01-01T00:00:00+00:00"})
        self.log: list[Applied] = []
        self.fails = fails
        self.closed: Close | None = None
        self.most_out = 0

    def run(self, choose: Callable[[list[Task]], int], *, limit: int = 1000, stop_after: int | None = None) -> None:
        out: list[Task] = []
        while self.closed is None:
            self._decide()
            out += self.engine.take(limit - len(out))
            self.most_out = max(self.most_out, len(out))
            if not out:
                if self.closed is None:
                    self._decide()
                    assert self.closed is not None, "the engine stands still"
                break
            task = out.pop(choose(out))
            for applied in self._answer(task):
                self._apply(applied)
                if stop_after is not None and len(self.log) >= stop_after:
                    return

    def _apply(self, applied: Applied) -> None:
        self.log.append(applied)
        self.engine.apply(applied)

    def _decide(self) -> None:
        while decisions := self.engine.decide():
            for decision in decisions:
                match decision:
                    case Join(map=joined):
                        over = joined.over_tolerance or joined.ended < joined.total
                        failure = Failure(joined.path, "Terminal", "TooMany", "") if over else None
                        self._apply(record("join", f"{joined.path}!join", joined.result(), failure=failure))
                    case EndScope(scope=ended, failure=why):
                        self._apply(record("commit", f"{ended.path}!output", failure=why))
                    case Close():
                        self.closed = decision
                        self._apply(Applied(Record("close", "", None, {"outcome": decision.outcome}, "")))

    def _answer(self, task: Task) -> Iterator[Applied]:
        if task.kind == "output":
            found = self.graph.root if not task.template else self.graph.templates[task.template]
            yield record("commit", task.key, {n: _eval(e.py, task.env) for n, e in found.output.items()})
        elif task.kind == "branch":
            yield from self._branch(task)
        else:
            found = self.graph.root if not task.template else self.graph.templates[task.template]
            node = found.by_name[task.node]
            snapshot = {n: _eval(e.py, task.env) for n, e in node.with_.items()}
            if node.map is not None:
                assert node.map.items is not None
                value = {"items": _eval(node.map.items.py, task.env), "base": snapshot}
                yield record("scope_opened", f"{task.key}!open", value)
            else:
                yield self._commit(task.key, node.code.py if node.code else "", snapshot)

    def _branch(self, task: Task) -> Iterator[Applied]:
        found = self.graph.templates[task.template]
        for done in task.done.values():
            if (failure := engine_package.failure_of(done)) is not None:
                yield record("commit", f"{task.key}!output", failure=failure)
                return
        outputs = {name: {"output": _value(r)} for name, r in task.done.items()}
        for name in found.order:
            if name in outputs:
                continue
            node = found.by_name[name]
            env = {"input": task.env["input"], "nodes": outputs}
            applied = self._commit(
                f"{task.key}/{name}",
                node.code.py if node.code else "",
                {n: _eval(e.py, env) for n, e in node.with_.items()},
            )
            yield applied
            if engine_package.failure_of(applied.record) is not None:
                yield record("commit", f"{task.key}!output", failure=engine_package.failure_of(applied.record))
                return
            outputs[name] = {"output": applied.value}
        env = {"input": task.env["input"], "nodes": outputs}
        yield record("commit", f"{task.key}!output", {n: _eval(e.py, env) for n, e in found.output.items()})

    def _commit(self, at: str, source: str, snapshot: dict[str, Any]) -> Applied:
        if at in self.fails:
            return record("commit", at, failure=Failure(at, "Terminal", "Rejected", "no"))
        names: dict[str, Any] = {}
        exec(source, names)
        value = names["main"](**snapshot)
        applied = record("commit", at, value, input=snapshot)
        applied.record.envelope["value"] = value
        return applied

    @property
    def outcome(self) -> str:
        assert self.closed is not None
        return self.closed.outcome


def _value(found: Record) -> Any:
    return found.envelope["value"]


def _eval(py: str, env: dict[str, Any]) -> Any:
    return eval(py, {}, env)


def first(out: list[Task]) -> int:
    return 0


def played(compiled: CompiledGraph, input: Any, choose: Callable[[list[Task]], int] = first, **more: Any) -> Play:
    play = Play(compiled, input, **more)
    play.run(choose)
    return play


def test_a_map_and_its_join_give_the_sum() -> None:
    play = played(map_reduce(), {"n": 5})
    assert play.outcome == "succeeded"
    assert play.engine.output == {"sum": 25}


def test_a_map_over_nothing_joins_at_once() -> None:
    assert played(map_reduce(), {"n": 0}).engine.output == {"sum": 0}


def test_nested_maps_join_from_the_inside_out() -> None:
    play = played(nested(), {"rows": [[1, 2], [], [3]]})
    assert play.engine.output == {"rows": [{"n": 5}, {"n": 0}, {"n": 9}]}


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), rows=st.lists(st.lists(st.integers(-5, 5), max_size=3), max_size=4))
def test_the_order_in_which_tasks_end_changes_nothing(seed: int, rows: list[list[int]]) -> None:
    rng = random.Random(seed)
    straight = played(nested(), {"rows": rows})
    mixed = played(nested(), {"rows": rows}, lambda out: rng.randrange(len(out)))
    assert sorted(mixed.engine.leaves()) == sorted(straight.engine.leaves())
    assert mixed.engine.output == straight.engine.output


@pytest.mark.parametrize(("compiled", "input"), [(map_reduce(), {"n": 4}), (nested(), {"rows": [[1, 2], [3]]})])
def test_a_log_cut_at_any_record_is_finished_to_the_same_state(compiled: CompiledGraph, input: Any) -> None:
    whole = played(compiled, input)
    for cut in range(len(whole.log)):
        again = Play(compiled, input)
        for applied in whole.log[:cut]:
            again.log.append(applied)
            again.engine.apply(applied)
        again.run(first)
        assert sorted(again.engine.leaves()) == sorted(whole.engine.leaves()), f"cut after {cut} records"
        assert [a.record.path for a in again.log].count("/!output") <= 1


def test_a_committed_node_of_a_branch_is_not_handed_out_again() -> None:
    whole = played(map_reduce(), {"n": 3})
    cut = next(i for i, a in enumerate(whole.log) if a.record.path == "/each[00000]/double") + 1
    again = Play(map_reduce(), {"n": 3})
    for applied in whole.log[:cut]:
        again.engine.apply(applied)
    task = next(t for t in again.engine.take(10) if t.key == "/each[00000]")
    assert set(task.done) == {"double"}


def test_a_failed_item_fails_the_run_when_nothing_is_tolerated() -> None:
    play = played(map_reduce(), {"n": 4}, fails=frozenset({"/each[00002]/plus"}))
    assert play.outcome == "failed"
    assert play.engine.root.failure is not None
    assert play.engine.root.failure.path == "/each"


def test_tolerated_failures_stand_in_the_output_in_item_order() -> None:
    one = map_reduce().templates["one"]
    root = scope(
        fan_out("each", "input.items", "one", tolerate=Tolerate(count=1)),
        output={"out": path("nodes.each.output")},
        inputs=("items",),
        leaf=False,
    )
    play = played(graph(root, one=one), {"items": [1, 2, 3]}, fails=frozenset({"/each[00001]/double"}))
    assert play.outcome == "succeeded"
    assert play.engine.output == {
        "out": {
            "items": [{"n": 3}, {"n": 7}],
            "failures": [{"index": 1, "node": "double", "class": "Terminal", "error": "Rejected"}],
            "total": 3,
        }
    }


def test_a_run_that_failed_hands_out_nothing_more() -> None:
    play = played(map_reduce(), {"n": 50}, fails=frozenset({"/each[00000]/double"}))
    started = {a.record.path for a in play.log if a.record.path.startswith("/each[")}
    assert play.outcome == "failed"
    assert "/total" not in {a.record.path for a in play.log}
    assert len(started) < 150 + 1


def test_concurrency_of_a_map_bounds_what_is_out() -> None:
    one = map_reduce().templates["one"]
    root = scope(
        fan_out("each", "input.items", "one", concurrency=3),
        output={"n": expr('len(nodes["each"]["output"]["items"])', "nodes.each.output.items")},
        inputs=("items",),
        leaf=False,
    )
    play = played(graph(root, one=one), {"items": list(range(20))})
    assert play.engine.output == {"n": 20}
    assert play.most_out == 3


def test_what_is_given_back_is_handed_out_again() -> None:
    engine = Engine(map_reduce(), input={"n": 2}, facts={})
    task = engine.take(5)[0]
    assert engine.take(5) == []
    engine.give_back(task.key)
    assert [t.key for t in engine.take(5)] == [task.key]


def test_cancel_ends_the_run_once_nothing_is_out() -> None:
    engine = Engine(map_reduce(), input={"n": 2}, facts={})
    task = engine.take(1)[0]
    engine.apply(Applied(Record("cancel", "", None, {"reason": "Cancel"}, "")))
    assert engine.decide() == []
    engine.give_back(task.key)
    assert [d.outcome for d in engine.decide() if isinstance(d, Close)] == ["cancelled"]
    assert engine.take(5) == []


def test_an_environment_holds_only_what_is_read() -> None:
    root = scope(
        code("a", "return {'x': 1, 'y': [1] * 1000}", v="input.v"),
        code("b", "return {'x': v}", v="nodes.a.output.x"),
        output={"x": path("nodes.b.output.x")},
        inputs=("v",),
    )
    play = Play(graph(root), {"v": 1, "w": "unread"})
    task = play.engine.take(1)[0]
    assert task.env == {"input": {"v": 1}}
    for applied in play._answer(task):
        play.engine.apply(applied)
    assert play.engine.take(1)[0].env == {"nodes": {"a": {"output": {"x": 1}}}}


def test_the_engine_reads_no_clock_no_randomness_and_does_no_input_or_output() -> None:
    forbidden = {"time", "datetime", "random", "secrets", "os", "asyncio", "socket", "pathlib", "uuid", "io"}
    folder = Path(engine_package.__file__).parent
    for file in folder.glob("*.py"):
        for found in ast.walk(ast.parse(file.read_text())):
            names = []
            if isinstance(found, ast.Import):
                names = [a.name for a in found.names]
            elif isinstance(found, ast.ImportFrom):
                names = [found.module or ""]
            assert not forbidden & {n.split(".")[0] for n in names}, f"{file.name} imports {names}"


def _beside_a_map() -> CompiledGraph:
    """The nested graph with a node at the root that has nothing to do with the map."""
    base = nested()
    bad = code("bad", "return {'x': 1}")
    root = base.root.model_copy(update={"nodes": (*base.root.nodes, bad), "order": (*base.root.order, "bad")})
    return base.model_copy(update={"root": root})


FAILING = {
    "an inner item": frozenset({"/rows[00001]/cells[00000]/square"}),
    "a node of a branch": frozenset({"/rows[00000]/sum"}),
    "a node beside the map": frozenset({"/bad"}),
    "two of them": frozenset({"/bad", "/rows[00001]/cells[00001]/square"}),
}


@pytest.mark.parametrize("name", FAILING)
def test_a_failing_run_ends_wherever_its_log_was_cut(name: str) -> None:
    rows = {"rows": [[1, 2], [3, 4], [5]]}
    for limit in (1, 3, 1000):
        whole = Play(_beside_a_map(), rows, fails=FAILING[name])
        whole.run(first, limit=limit)
        assert whole.outcome == "failed"
        for cut in range(len(whole.log)):
            again = Play(_beside_a_map(), rows, fails=FAILING[name])
            for applied in whole.log[:cut]:
                if applied.record.type != "close":
                    again.log.append(applied)
                    again.engine.apply(applied)
            again.run(first, limit=limit)
            assert again.outcome == "failed", f"limit {limit}, cut after {cut}"


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    rows=st.lists(st.lists(st.integers(-5, 5), min_size=1, max_size=3), min_size=1, max_size=4),
    limit=st.integers(1, 6),
)
def test_whatever_fails_and_in_whatever_order_the_run_ends(seed: int, rows: list[list[int]], limit: int) -> None:
    rng = random.Random(seed)
    row, cell = rng.randrange(len(rows)), 0
    places = [f"/rows[{row:05d}]/cells[{cell:05d}]/square", f"/rows[{row:05d}]/sum", "/bad"]
    play = Play(_beside_a_map(), {"rows": rows}, fails=frozenset(rng.sample(places, rng.randint(0, 3))))
    play.run(lambda out: rng.randrange(len(out)), limit=limit)
    assert play.outcome == ("failed" if play.fails else "succeeded")


def test_a_failed_node_of_a_branch_is_handed_on_with_the_branch() -> None:
    at = "/each[00000]/double"
    whole = played(map_reduce(), {"n": 1}, fails=frozenset({at}))
    cut = next(i for i, a in enumerate(whole.log) if a.record.path == at) + 1
    again = Play(map_reduce(), {"n": 1})
    for applied in whole.log[:cut]:
        again.engine.apply(applied)
    task = next(t for t in again.engine.take(10) if t.key == "/each[00000]")
    assert engine_package.failure_of(task.done["double"]) is not None


def test_results_do_not_tell_how_far_a_failed_branch_came() -> None:
    at = "/rows[00001]/cells[00000]/square"
    tolerant = nested()
    rows = tolerant.root.nodes[0]
    assert rows.map is not None
    block = rows.map.model_copy(update={"tolerate": Tolerate(count=1)})
    root = tolerant.root.model_copy(update={"nodes": (rows.model_copy(update={"map": block}),)})
    compiled = tolerant.model_copy(update={"root": root})
    straight = played(compiled, {"rows": [[1], [2, 3], [4]]}, fails=frozenset({at}))
    back = played(compiled, {"rows": [[1], [2, 3], [4]]}, lambda out: len(out) - 1, fails=frozenset({at}))
    assert straight.outcome == back.outcome == "succeeded"
    assert sorted(straight.engine.leaves()) == sorted(back.engine.leaves())
    assert not [p for p, _ in straight.engine.leaves() if p.startswith("/rows[00001]/")]

"""Wide values through whole runs: maps over references, joins by root, the 32 MiB rule, what a driver keeps."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest

from decurion_crds.compiled import CompiledGraph, Expr
from decurion_crds.wide import ListRef
from decurion_ledger import Record, Values, open_store, verify
from decurion_ledger.errors import NotFound
from decurion_ledger.layout import BLOBS, blob_key
from decurion_ledger.stores import Counted, Range, Store
from decurion_worker.engine import Engine
from graphs import code, expr, fan_out, graph, node, path, scope
from test_runs import Bench, _begin, _stores, done, put_all

COUNT = 1_200


def light(py: str, read: str, *indexes: int) -> Expr:
    return Expr(src=py, py=py, reads=(read,), light={read: indexes})


def wide(*, text: int = 60, **block: Any) -> CompiledGraph:
    """plan → map over its items → all of them handed on, counted, one picked, summed."""
    one = scope(
        code("make", f"return {{'n': item['n'], 'text': 'x' * {text}}}", item="input.item"),
        output={"n": path("nodes.make.output.n"), "text": path("nodes.make.output.text")},
        inputs=("item",),
    )
    root = scope(
        code("plan", "return {'items': [{'n': i, 'pad': 'y' * 60} for i in range(n)]}", n="input.n"),
        fan_out("each", "nodes.plan.output.items", "one", **block),
        code("total", "return {'sum': sum(r['n'] for r in rows)}", rows="nodes.each.output.items"),
        output={
            "sum": path("nodes.total.output.sum"),
            "count": light("_len(nodes['each']['output']['items'])", "nodes.each.output.items"),
            "third": light("_item(nodes['each']['output']['items'], 2)['n']", "nodes.each.output.items", 2),
            "rows": path("nodes.each.output.items"),
        },
        inputs=("n",),
        leaf=False,
    )
    return graph(root, one=one)


@pytest.mark.parametrize("runners", [1, 3])
async def test_a_map_over_a_reference_is_joined_by_reference_and_read_where_it_is_wanted(runners: int) -> None:
    async with Bench(runners=runners) as bench:
        session = await bench.run(wide(), {"n": COUNT})
        assert session.projection()["phase"] == "Succeeded", session.facts.message
        output = session.engine.output
        rows = output.pop("rows")
        assert output == {"sum": COUNT * (COUNT - 1) // 2, "count": COUNT, "third": 2}
        assert isinstance(rows, ListRef)
        loaded = await Values(bench.store, "run-1").load(rows)
        assert [row["n"] for row in loaded] == list(range(COUNT))
        assert await verify(bench.store, "run-1") == []


async def test_keyed_branches_of_a_wide_map_are_named_by_their_keys() -> None:
    _, log = await done(wide(key=expr("item['n']", "item.n")), {"n": COUNT})
    keyed = {r.path for r in log if r.path.startswith("/each[k:") and r.path.endswith("!output")}
    assert len(keyed) == COUNT


async def test_the_state_of_a_wide_run_does_not_depend_on_runners_or_on_where_it_was_cut() -> None:
    async with Bench() as bench:
        whole, log = await bench.run(wide(), {"n": COUNT}), await bench.log()
        blobs = await bench.blobs()
    other, _ = await done(wide(), {"n": COUNT}, runners=2, branches=7)
    assert other.facts.state_hash == whole.facts.state_hash
    join = next(i for i, r in enumerate(log) if r.type == "join")
    for cut in (join - 600, join, join + 1, len(log) - 2):
        again = await _resumed(log, cut, blobs)
        assert again.facts.state_hash == whole.facts.state_hash, f"cut after {cut} records"


async def _resumed(log: list[Any], cut: int, blobs: dict[str, bytes]) -> Any:
    store = open_store(f"memory://wide-cut-{next(_stores)}")
    await put_all(store, blobs)
    body = [r for r in log[:cut] if r.type not in ("genesis", "fence", "close")]
    await _begin(store, log[0], body)
    async with Bench(store=store) as bench:
        return await bench.run(None, epoch=1)


async def test_a_join_is_small_however_wide_the_map_and_names_its_arms_by_their_root() -> None:
    _, log = await done(wide(), {"n": COUNT})
    (join,) = [r for r in log if r.type == "join"]
    assert join.core is not None
    arms = join.core["arms"]
    assert (arms["count"], arms["ok"], arms["failed"], len(arms["root"])) == (COUNT, COUNT, 0, 64)
    assert len(str(join)) < 2_500


async def test_more_than_32_mib_is_not_loaded_and_the_failure_says_what_to_do() -> None:
    root = scope(
        fan_out("each", "input.items", "one"),
        code("total", "return len(rows)", rows="nodes.each.output.items"),
        output={"n": path("nodes.total.output")},
        inputs=("items",),
        leaf=False,
    )
    one = scope(code("big", "return 'x' * 900_000", i="input.item"), output={"$value": path("nodes.big.output")},
                inputs=("item",))  # fmt: skip
    session, _ = await done(graph(root, one=one), {"items": list(range(40))})
    assert session.projection()["phase"] == "Failed"
    assert session.facts.reason == "ValueTooLarge"
    assert session.facts.message == (
        "/total with.rows: its lists have 34.3 MiB, more than the 32 MiB that are loaded at once; map over the list, "
        "or read less of it."
    )


async def test_a_list_that_is_only_handed_on_may_be_of_any_size() -> None:
    one = scope(code("big", "return 'x' * 900_000", i="input.item"), output={"$value": path("nodes.big.output")},
                inputs=("item",))  # fmt: skip
    root = scope(
        fan_out("each", "input.items", "one"),
        node("pass", "transform", with_={"rows": "nodes.each.output.items"}, transform={"rows": path("rows")},
             output={"type": "object", "properties": {"rows": {"type": "array", "items": {"type": "string"}}}}),
        fan_out("again", "nodes.pass.output.rows", "length"),
        output={"n": path("nodes.again.output.items")},
        inputs=("items",),
        leaf=False,
    )  # fmt: skip
    length = scope(code("len", "return len(t)", t="input.item"), output={"$value": path("nodes.len.output")},
                   inputs=("item",))  # fmt: skip
    session, _ = await done(graph(root, one=one, length=length), {"items": list(range(40))})
    assert session.engine.output == {"n": [900_000] * 40}


async def test_a_wide_list_breaks_a_schema_in_the_words_of_the_schema() -> None:
    schema = {"type": "object", "properties": {"rows": {"type": "array", "items": {"type": "string"}, "maxItems": 9}}}
    root = scope(
        code("plan", "return [{'n': i, 'pad': 'y' * 90} for i in range(900)]"),
        node("pass", "transform", with_={"rows": "nodes.plan.output"}, transform={"rows": path("rows")}, output=schema),
        output={"n": path("nodes.pass.output.rows")},
    )
    session, _ = await done(graph(root), {})
    assert session.facts.message.startswith(
        "/pass: the result breaks the declared output: .rows: has 900 items, and maxItems is 9"
    )


async def test_a_driver_keeps_few_bytes_of_a_branch_that_ended() -> None:
    """The engine alone over 20,000 branches of two nodes."""
    from test_engine import record

    one = scope(
        code("a", "return item", item="input.item"),
        code("b", "return a", a="nodes.a.output"),
        output={"$value": path("nodes.b.output")},
        inputs=("item",),
    )
    each = fan_out("each", "input.items", "one")
    compiled = graph(scope(each, output={"n": path("nodes.each.output.total")}, leaf=False), one=one)
    engine = Engine(compiled, input={"items": []}, facts={})
    engine.take(1)
    opened = record("scope_opened", "/each!open", {"items": [], "base": {}})
    count = 20_000
    items = ListRef(count, 10_000_000, "0" * 64, "0" * 64)
    engine.apply(replace(opened, value={"items": items, "base": {}}))
    tracemalloc.start()
    try:
        begin = tracemalloc.get_traced_memory()[0]
        for task in iter(lambda: next(iter(engine.take(1)), None), None):
            assert task.kind != "join" or task.key == "/each!join"
            if task.kind == "join":
                break
            for name in ("a", "b"):
                engine.apply(record("commit", f"{task.key}/{name}", {"text": "x" * 100}))
            engine.apply(record("commit", f"{task.key}!output", {"text": "x" * 100}))
            del task
        engine.out.clear()
        kept = tracemalloc.get_traced_memory()[0] - begin
    finally:
        tracemalloc.stop()
    assert engine.root.opened["each"].ok == count
    assert kept / count < 150


class CountedBlobs(Counted):
    """Counts the blobs that are read; how many segments a log has, and is read in, is a matter of time."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.blobs = 0

    async def get(self, key: str, range: Range | None = None) -> bytes:
        self.blobs += key.startswith(BLOBS)
        return await super().get(key, range)


async def test_blobs_of_wide_branches_are_not_fetched_by_the_driver() -> None:
    counted = CountedBlobs(open_store("memory://wide-counted"))
    async with Bench(store=counted) as bench:
        await bench.run(wide(text=5_000), {"n": 300})
    # `total` reads each of the 300 rows once; the driver reads none of them.
    assert 300 <= counted.blobs < 330


async def test_every_object_of_a_wide_run_is_missed_and_every_change_of_one_is_found() -> None:
    async with Bench() as bench:
        await bench.run(wide(text=5_000), {"n": 600})
        blobs = await bench.blobs()
        # Those of items, of which there are hundreds, are all alike: a few stand for them.
        large = [key for key, data in blobs.items() if data.startswith(b'{"n":')]
        for key in sorted(set(blobs) - set(large[5:])):
            data = blobs[key]
            await bench.store.delete(key)
            assert {p.code for p in await verify(bench.store, "run-1")} == {"BLOB-MISSING"}, data[:80]
            await bench.store.put(key, data[:-2] + bytes([data[-2] ^ 1]) + data[-1:])
            assert "BLOB" in {p.code for p in await verify(bench.store, "run-1")}, data[:80]
            await bench.store.put(key, data)
        assert await verify(bench.store, "run-1") == []


async def test_a_join_that_names_other_arms_than_the_log_holds_is_found() -> None:
    async with Bench() as bench:
        await bench.run(wide(), {"n": 20})
        log = await bench.log()
    store = open_store(f"memory://arms-{next(_stores)}")
    (join,) = [r for r in log if r.type == "join"]
    core = {**(join.core or {}), "arms": {"count": 20, "ok": 20, "failed": 0, "root": "0" * 64}}
    forged = [Record.result(core, join.envelope) if r is join else r for r in log if r.type not in ("genesis", "fence")]
    end = next(i for i, r in enumerate(forged) if r.type == "join")
    await _begin(store, log[0], forged[: end + 1])
    assert {p.code for p in await verify(store, "run-1")} == {"ARMS"}


@pytest.mark.parametrize("count", [2, 80])
async def test_an_item_of_a_map_is_not_larger_than_a_mebibyte(count: int) -> None:
    root = scope(
        code("plan", f"return ['x' * (1_200_000 if i == 1 else 2_000) for i in range({count})]"),
        fan_out("each", "nodes.plan.output", "one"),
        output={"n": path("nodes.each.output.total")},
        leaf=False,
    )
    one = scope(code("len", "return len(t)", t="input.item"), output={"$value": path("nodes.len.output")},
                inputs=("item",))  # fmt: skip
    session, _ = await done(graph(root, one=one), {})
    assert session.facts.message == "/each map.items: item 1 is larger than 1 MiB; split it"


class Losing(Counted):
    """A store in which the second chunk of the items is gone."""

    gone = ""

    async def get(self, key: str, range: Any = None) -> bytes:
        if key == self.gone:
            raise NotFound(f"GET {key}", "no such object")
        return await super().get(key, range)


async def test_what_is_missing_in_the_store_fails_the_node_that_needs_it_and_no_runner() -> None:
    items = [{"n": i, "pad": "y" * 60} for i in range(COUNT)]
    store = Losing(open_store(f"memory://losing-{next(_stores)}"))
    (ref,) = (await Values(store, "other").keep([items])).values
    index = json.loads(await store.get(blob_key(ref.index)))
    store.gone = blob_key(index["chunks"][1][0])
    one = scope(code("same", "return item['n']", item="input.item"), output={"$value": path("nodes.same.output")},
                inputs=("item",))  # fmt: skip
    root = scope(
        fan_out("each", "input.items", "one"),
        output={"n": path("nodes.each.output.total")},
        inputs=("items",),
        leaf=False,
    )
    async with Bench(store=store) as bench:
        session = await bench.run(graph(root, one=one), {"items": items})
        log = await bench.log()
        names = bench.driver.runner_names()
    assert (session.projection()["phase"], session.facts.reason) == ("Failed", "BlobCorrupt")
    assert "the blob is missing; verify the ledger" in session.facts.message
    assert not [r for r in log if r.type == "lease_lost"]
    assert len(names) == 1

"""Runs that take results of an earlier one: a retry runs again what failed, a fork what lies at a path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from crashes import RUN, Process, body, cut, new_store, read, results, sound
from decurion_crds.compiled import CompiledGraph
from decurion_ledger import Record, Store
from decurion_ledger.layout import run_prefix
from decurion_worker.earlier import Earlier, Seen, select
from decurion_worker.errors import EarlierDiffers, EarlierMissing, EarlierOpen, NothingFailed, PathNotRun
from decurion_worker.opening import OpenRequest
from decurion_worker.session import RunSession
from graphs import map_reduce, nested, tolerant
from manifests import compiled

AGAIN = "run-2"
REVIEWED = """
  schemas: {Row: {type: object, properties: {k: {type: integer}}, required: [k]}}
  input: {uris: {type: array, items: {type: string}}}
  state: [{name: notes, schema: {type: array, items: {type: string}}, merge: append}]
  nodes:
    - name: plan
      with: {uris: input.uris}
      transform: {uris: uris}
      writes: {notes: "['planned']"}
    - name: each
      map: {items: nodes.plan.output.uris, as: uri, template: file}
    - name: total
      with: {rows: nodes.each.output.items}
      transform: {k: "sum([row.k for row in rows])"}
    - name: beside
      with: {uris: input.uris}
      graph: {template: count}
    - name: last
      after: [total]
      transform: {text: "'done'"}
      writes: {notes: "[output.text]"}
  output: {k: nodes.total.output.k, files: nodes.beside.output.k, notes: state.notes, last: nodes.last.output.text}
  templates:
    - name: file
      input: {uri: {type: string}}
      nodes:
        - name: name
          with: {uri: input.uri}
          transform: {uri: uri}
        - name: lines
          map: {itemsFrom: {jsonl: nodes.name.output.uri, schema: Row}, as: row, template: line}
        - name: sum
          with: {rows: nodes.lines.output.items}
          transform: {k: "sum([row.k for row in rows])"}
      output: {k: nodes.sum.output.k}
    - name: line
      input: {row: Row}
      nodes:
        - name: one
          with: {row: input.row}
          transform: {k: row.k}
        - name: twice
          with: {k: nodes.one.output.k}
          transform: {k: k * 2}
      output: {k: nodes.twice.output.k}
    - name: count
      input: {uris: {type: array, items: {type: string}}}
      nodes:
        - name: list
          with: {uris: input.uris}
          transform: {uris: uris}
        - name: len
          with: {uris: nodes.list.output.uris}
          transform: {k: len(uris)}
      output: {k: nodes.len.output.k}
"""


def files(folder: Path, *numbers: int) -> list[str]:
    """Addresses of files with a line for each of so many numbers; a file of -1 lines is missing."""
    uris = []
    for i, count in enumerate(numbers):
        file = folder / f"{i}.jsonl"
        uris.append(file.as_uri())
        if count >= 0:
            file.write_text("".join(f'{{"k": {n}}}\n' for n in range(count)))
    return uris


async def again(
    store: Store, earlier: Earlier, graph: CompiledGraph | None = None, input: Any = None, *, run: str = AGAIN
) -> RunSession:
    async with Process(store) as process:
        session = await process.driver.open_run(
            OpenRequest(run=run, name="", graph=graph, input=input, earlier=earlier)
        )
        await session.ended.wait()
    return session


def ran(log: list[Record]) -> set[str]:
    """Paths of the results that a run came to itself."""
    return {r.path for r in log if r.core is not None and r.type != "genesis" and "from" not in r.envelope}


def taken(log: list[Record]) -> dict[str, str]:
    return {r.path: r.core_hash for r in log if "from" in r.envelope}


async def first(store: Store, graph: CompiledGraph, input: Any) -> RunSession:
    async with Process(store) as process:
        return await process.run(graph, input)


async def test_a_retry_runs_only_what_failed_and_what_comes_after_it(tmp_path: Path) -> None:
    store, graph = new_store(), compiled(REVIEWED)
    uris = files(tmp_path, 2, -1, 3)
    failed = await first(store, graph, {"uris": uris})
    assert failed.projection()["phase"] == "Failed"
    files(tmp_path, 2, 1, 3)
    session = await again(store, Earlier(RUN, "retry"))
    assert session.projection()["phase"] == "Succeeded", session.projection()
    assert session.engine.output == {"k": 8, "files": 3, "notes": ["planned", "done"], "last": "done"}
    log, before = await sound(store, AGAIN), await read(store)
    assert ran(log) >= {"/each[00001]/lines!open", "/each[00001]!output", "/each!join", "/total", "/last", "/!output"}
    assert "/each[00001]/name" in taken(log)
    old = {r.path: r.core_hash for r in before if r.core is not None and r.core["outcome"] == "ok"}
    assert not ran(log) & old.keys()
    assert all(old[path] == core for path, core in taken(log).items())


async def test_a_retry_ends_in_the_state_of_a_run_in_which_nothing_failed(tmp_path: Path) -> None:
    store, graph = new_store(), compiled(REVIEWED)
    uris = files(tmp_path, 2, -1)
    await first(store, graph, {"uris": uris})
    files(tmp_path, 2, 1)
    session = await again(store, Earlier(RUN, "retry"))
    async with Process(new_store()) as process:
        whole = await process.run(graph, {"uris": uris})
    assert session.facts.state_hash == whole.facts.state_hash


GRAPHS: dict[str, tuple[CompiledGraph, Any]] = {
    "map_reduce": (map_reduce(), {"n": 3}),
    "nested": (nested(), {"rows": [[1, 2], [3]]}),
    "tolerant": (tolerant(), {"items": [1, 0, 5]}),
}


@pytest.mark.parametrize("name", GRAPHS)
async def test_what_was_cancelled_after_any_record_is_retried_to_the_state_of_a_whole_run(name: str) -> None:
    """Nothing that ended well runs again; only a branch of `tolerant` that failed in a map that was not joined does."""
    graph, input = GRAPHS[name]
    store = new_store()
    whole = await first(store, graph, input)
    log = await read(store)
    for records in range(len(body(log)) + 1):
        there = await cut(log, records)
        async with Process(there) as process:
            opening = await process.open(None, epoch=1)
            process.driver.cancel(RUN, "Cancel")
            await opening.ended.wait()
        if opening.projection()["phase"] == "Succeeded":
            continue
        session = await again(there, Earlier(RUN, "retry"))
        at = f"cancelled after {records} records"
        assert session.facts.state_hash == whole.facts.state_hash, at
        new, old = await sound(there, AGAIN), await read(there)
        assert results(new) == results(log), at
        ended = {r.path for r in old if r.core is not None and r.type != "genesis" and r.core["outcome"] != "ok"}
        again_though_ended = set(results(old)) & ran(new)
        assert again_though_ended <= ended, at


async def test_a_driver_that_dies_while_results_are_taken_is_followed_by_one_that_takes_the_rest(
    tmp_path: Path,
) -> None:
    store, graph = new_store(), compiled(REVIEWED)
    uris = files(tmp_path, 2, -1)
    await first(store, graph, {"uris": uris})
    files(tmp_path, 2, 1)
    whole = await again(store, Earlier(RUN, "retry"))
    log = await read(store, AGAIN)
    for records in range(len(body(log)) + 1):
        there = await _with_earlier(store, log, records)
        async with Process(there) as process:
            session = await process.run(None, run=AGAIN, epoch=1)
        at = f"cut after {records} records"
        assert session.facts.state_hash == whole.facts.state_hash, at
        assert results(await sound(there, AGAIN)) == results(log), at
        assert taken(await read(there, AGAIN)) == taken(log), at


async def _with_earlier(store: Store, log: list[Record], records: int) -> Store:
    """A store with the earlier run, its blobs, and the log of the later one cut off."""
    there = await cut(log, records, run=AGAIN, blobs=store)
    async for info in store.list(run_prefix(RUN)):
        await there.put_new(info.key, await store.get(info.key))
    return there


async def test_the_new_log_stands_without_the_earlier_one(tmp_path: Path) -> None:
    store, graph = new_store(), compiled(REVIEWED)
    uris = files(tmp_path, 2, -1)
    await first(store, graph, {"uris": uris})
    files(tmp_path, 2, 1)
    session = await again(store, Earlier(RUN, "retry"))
    async for info in store.list(run_prefix(RUN)):
        await store.delete(info.key)
    async with Process(store) as process:
        reopened = await process.open(None, run=AGAIN, epoch=1)
    assert reopened.projection()["output"] == session.projection()["output"]
    log = await sound(store, AGAIN)
    assert log[0].envelope["earlier"]["run"] == RUN
    assert {r.envelope["from"]["run"] for r in log if "from" in r.envelope} == {RUN}


async def test_what_was_paid_before_is_not_counted_again() -> None:
    spec = """
  input: {q: {type: string}}
  nodes:
    - name: ask
      with: {q: input.q}
      llm: {ref: m, prompt: "{{ q }}"}
    - name: tell
      with: {t: nodes.ask.output.text}
      transform: {text: t.upper()}
  output: {text: nodes.tell.output.text}
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: m}
spec: {protocol: scripted, model: echo, scripted: {replies: [{match: a, reply: b}]}}
"""
    store = new_store()
    assert (await first(store, compiled(spec), {"q": "a"})).projection()["usage"]["calls"] == 1
    session = await again(store, Earlier(RUN, "fork", "/tell"))
    assert session.projection()["usage"] == {}
    assert session.engine.output == {"text": "B"}
    assert ran(await sound(store, AGAIN)) == {"/tell", "/!output"}


FORKS = {
    "/plan": {"/plan", "/each!open", "/total", "/!output"},
    "/each[00001]": {"/each[00001]/double", "/each[00001]/plus", "/each[00001]!output", "/each!join", "/total"},
    "/each[00001]/plus": {"/each[00001]/plus", "/each[00001]!output", "/each!join", "/total", "/!output"},
    "/total": {"/total", "/!output"},
}


@pytest.mark.parametrize("path", FORKS)
async def test_a_fork_runs_a_path_and_what_comes_after_it_again(path: str) -> None:
    store = new_store()
    whole = await first(store, map_reduce(), {"n": 3})
    session = await again(store, Earlier(RUN, "fork", path))
    assert session.facts.state_hash == whole.facts.state_hash
    log = await sound(store, AGAIN)
    assert FORKS[path] <= ran(log)
    if path != "/plan":
        assert "/plan" not in ran(log)
        assert not {p for p in ran(log) if p.startswith("/each[00002]")}
    if path == "/each[00001]/plus":
        assert ran(log) == FORKS[path]


async def test_in_a_fork_of_an_edited_graph_what_was_changed_runs_again_with_what_depends_on_it(tmp_path: Path) -> None:
    store = new_store()
    uris = files(tmp_path, 2, 1)
    await first(store, compiled(REVIEWED), {"uris": uris})
    edited = compiled(
        REVIEWED.replace('sum([row.k for row in rows])"}\n    - name: beside', 'len(rows)"}\n    - name: beside')
    )
    session = await again(store, Earlier(RUN, "fork", "/last"), edited)
    assert session.engine.output["k"] == 2
    assert ran(await sound(store, AGAIN)) == {"/total", "/last", "/!output"}


async def test_in_a_fork_on_another_input_what_reads_it_runs_again(tmp_path: Path) -> None:
    spec = """
  input: {a: {type: integer}, b: {type: integer}}
  nodes:
    - {name: one, with: {a: input.a}, transform: {v: a + 1}}
    - {name: two, with: {b: input.b}, transform: {v: b + 1}}
    - {name: both, with: {a: nodes.one.output.v, b: nodes.two.output.v}, transform: {v: a + b}}
    - {name: end, with: {v: nodes.both.output.v}, transform: {v: v}}
  output: {v: nodes.end.output.v}
"""
    store = new_store()
    await first(store, compiled(spec), {"a": 1, "b": 2})
    session = await again(store, Earlier(RUN, "fork", "/end"), compiled(spec), {"a": 1, "b": 5})
    assert session.engine.output == {"v": 8}
    assert ran(await sound(store, AGAIN)) == {"/two", "/both", "/end", "/!output"}


async def test_what_cannot_be_taken_up_is_refused(tmp_path: Path) -> None:
    store, graph = new_store(), compiled(REVIEWED)
    good, bad = files(tmp_path, 1), ["file:///none"]
    await first(store, graph, {"uris": good})
    cases: list[tuple[type[Exception], Earlier, Any, Any]] = [
        (EarlierMissing, Earlier("nobody", "retry"), None, None),
        (NothingFailed, Earlier(RUN, "retry"), None, None),
        (EarlierDiffers, Earlier(RUN, "retry"), map_reduce(), {"n": 3}),
        (EarlierDiffers, Earlier(RUN, "retry"), None, {"uris": bad}),
        (PathNotRun, Earlier(RUN, "fork", "/nothing"), None, None),
        (PathNotRun, Earlier(RUN, "fork", "/plan!output"), None, None),
        (PathNotRun, Earlier(RUN, "fork", "plan"), None, None),
    ]
    for kind, earlier, other, input in cases:
        with pytest.raises(kind):
            await again(store, earlier, other, input)
    assert not [info async for info in store.list(run_prefix(AGAIN))]
    there = await cut(await read(store), 3, blobs=store)
    with pytest.raises(EarlierOpen):
        await again(there, Earlier(RUN, "retry"))


def test_a_node_that_failed_and_was_taken_care_of_holds() -> None:
    spec = """
  input: {k: {type: integer}}
  nodes:
    - name: bad
      with: {k: input.k}
      code: "1 // k"
      output: {type: integer}
      onFailure: otherwise
      otherwise: {$value: "7"}
    - {name: end, with: {k: nodes.bad.output}, transform: {k: k}}
  output: {k: nodes.end.output.k}
"""
    graph = compiled(spec)
    index = {"/bad": Seen(failed=True, has_value=True), "/end": Seen(failed=False, has_value=True)}
    assert select(index, graph, graph, same=lambda node: True).paths == {"/bad", "/end"}
    index = {"/bad": Seen(failed=True, has_value=False), "/bad!otherwise": Seen(failed=True, has_value=False)}
    assert select(index, graph, graph, same=lambda node: True).paths == set()

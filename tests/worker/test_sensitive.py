"""Sensitive values through whole runs: nothing of them is stored, shown or logged in clear; what runs is the same."""

import asyncio
import base64
import logging
from pathlib import Path
from typing import Any

import pytest
import zstandard

from crashes import Process, body, cut, new_store, read, sound
from decurion_crds.canonical import canonical
from decurion_crds.compiled import CompiledGraph
from decurion_ledger import Record, Seal, SealKey, Values, erase, key_of, verify
from decurion_ledger.copying import copy_run
from decurion_ledger.errors import KeyErased, KeyMissing, WrongSealKey
from decurion_ledger.keys import key_key
from decurion_ledger.retention import collect
from decurion_ledger.segment import parse
from decurion_ledger.stores import MemoryStore, Store
from decurion_worker.acceptance import Acceptance
from decurion_worker.context import schema_hash
from decurion_worker.earlier import Earlier
from decurion_worker.engine import Task
from decurion_worker.errors import BadInput
from decurion_worker.opening import OpenRequest
from decurion_worker.records import build
from decurion_worker.session import RunSession
from manifests import compiled

SECRET = "Quillfeather"
BY = SealKey.generate()
GRAPH = """  sensitive: [patient]
  schemas:
    Row: {type: object, required: [who, at], properties: {who: {type: string}, at: {type: integer}}}
    Rows: {type: array, items: Row}
  input: {patient: {type: string}, many: {type: integer}}
  state:
    - {name: notes, schema: {type: array, items: {type: string}}, merge: append}
  nodes:
    - name: greet
      with: {who: input.patient}
      transform: {text: "'Dear ' + who"}
      writes: {notes: "[output.text]"}
    - name: ask
      with: {who: input.patient}
      llm: {ref: mind, prompt: "Who is {{ who }}?"}
      output: {text: {type: string}}
    - name: broken
      with: {text: nodes.greet.output.text}
      onFailure: skip
      code: |
        if len(text) > 1:
            raise ValueError("no such person: " + text)
        {"x": text}
      output: {x: {type: string}}
    - name: rows
      with: {who: input.patient, many: input.many}
      code: |
        [{"who": who, "at": i} for i in range(many)]
      output: Rows
    - name: each
      map: {items: nodes.rows.output, as: row, template: one, tolerate: {count: 1}}
    - name: round
      loop:
        template: longer
        next: {text: output.text}
        maxIterations: 2
        onExhausted: succeed
      with: {text: input.patient}
    - name: way
      switch:
        value: nodes.greet.output.text
        cases: [{equals: Dear nobody, nodes: [never]}]
        default: [always]
    - name: never
      transform: {x: "1"}
    - name: always
      transform: {x: "2"}
    - name: agent
      with: {who: input.patient}
      agent: {model: mind, tools: [{template: tool}], prompt: "Find {{ who }}"}
      output: {text: {type: string}}
    - name: count
      sensitive: false
      with: {rows: nodes.each.output.items, failed: nodes.each.output.failures, who: input.patient}
      transform: {rows: len(rows), failed: len(failed), letters: len(who)}
    - name: plain
      with: {many: input.many}
      transform: {twice: many * 2}
  output: {count: nodes.count.output, plain: nodes.plain.output.twice}
  templates:
    - name: one
      input: {row: Row}
      nodes:
        - name: odd
          with: {row: input.row}
          code: |
            if row["at"] == 1:
                raise ValueError("bad row of " + row["who"])
            {"text": row["who"] + str(row["at"])}
          output: {text: {type: string}}
      output: {text: nodes.odd.output.text}
    - name: longer
      input: {text: {type: string}}
      nodes:
        - name: more
          with: {text: input.text}
          transform: {text: text + '!'}
      output: {text: nodes.more.output.text}
    - name: tool
      input: {who: {type: string}}
      nodes:
        - name: found
          with: {who: input.who}
          transform: {at: "'here is ' + who"}
      output: {at: nodes.found.output.at}
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: mind}
spec:
  protocol: scripted
  scripted:
    replies:
      - {match: Who is, reply: '{"text": "Quillfeather is ill"}'}
      - match: here is
        calls: [{tool: finish, arguments: {text: Quillfeather is here}}]
      - match: Find
        calls: [{tool: tool, arguments: {who: Quillfeather}}]
"""
INPUT = {"patient": SECRET, "many": 3}


def process(store: Any, **more: Any) -> Process:
    return Process(store, seal_key=lambda make: BY, **more)


async def in_clear(store: Store) -> list[str]:
    """The objects that hold the secret, decompressed, as they are or in base64."""
    held = [SECRET.encode(), base64.b64encode(SECRET.encode() * 3)[4:12]]
    found = []
    async for info in store.list(""):
        data = await store.get(info.key)
        texts = [data]
        if "/log/" in info.key:
            texts += [canonical([r.core, r.envelope]) for r in parse(data, info.key).records]
        texts += [zstandard.decompress(data)] if data.startswith(b"\x28\xb5\x2f\xfd") else []
        # The graph holds the scripted answers: it is no secret what is written in it.
        found += [info.key for text in texts for one in held if one in text and b'"scripted"' not in text]
    return found


async def whole(compiled_graph: CompiledGraph, input: Any = INPUT) -> tuple[Store, RunSession, list[Record]]:
    store = new_store()
    async with process(store) as one:
        session = await one.run(compiled_graph, input)
    return store, session, await sound(store)


@pytest.fixture(scope="module")
def graph() -> CompiledGraph:
    return compiled(GRAPH)


async def test_nothing_sensitive_is_stored_shown_or_logged(
    graph: CompiledGraph, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    store, session, log = await whole(graph)
    assert session.engine.closed == "succeeded", session.facts.failures
    assert session.engine.output == {"count": {"rows": 2, "failed": 1, "letters": 12}, "plain": 6}
    assert await in_clear(store) == []
    assert SECRET not in repr(session.projection())
    assert SECRET not in caplog.text
    by_path = {r.path: r for r in log if r.core is not None}
    assert all("sealed" in held for held in by_path["/greet"].envelope["values"].values())
    assert all("inline" in held for held in by_path["/plain"].envelope["values"].values())


@pytest.mark.parametrize(
    "given", [{"patient": [SECRET], "many": 1}, {"patient": "x", "many": SECRET}, {"patient": "x", SECRET: 1}]
)
async def test_an_input_that_is_refused_is_not_quoted(
    graph: CompiledGraph, given: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    file = tmp_path / "input.json"
    file.write_bytes(canonical(given))
    async with process(new_store()) as one:
        with pytest.raises(BadInput) as refused:
            await one.driver.open_run(OpenRequest(run="run-1", name="g", graph=graph, input_uri=file.as_uri()))
    assert str(refused.value).startswith("input")
    assert SECRET not in str(refused.value) + caplog.text


async def test_with_the_key_it_is_all_there(graph: CompiledGraph) -> None:
    store, _, log = await whole(graph)
    values = Values(store, "run-1", seal=await key_of(store, "run-1", BY))
    by_path = {r.path: r for r in log if r.core is not None}

    async def of(path: str, name: str = "delta") -> Any:
        record = by_path[path]
        return await values.load(await values.unpack(record.envelope, record.core[name]))  # type: ignore[index]

    assert await of("/greet") == {"text": f"Dear {SECRET}"}
    assert await of("/agent") == {"text": f"{SECRET} is here"}
    assert await of("/round!join") == {"text": f"{SECRET}!!", "iterations": 2}
    assert await of("/count", "input") | {"rows": 0, "failed": 0} == {"rows": 0, "failed": 0, "who": SECRET}
    broken = by_path["/broken"].envelope
    assert SECRET in await values.unpack(broken, broken["said"])


async def test_after_any_record_it_goes_on_to_the_same_state(graph: CompiledGraph) -> None:
    store, session, log = await whole(graph)
    for records in range(0, len(body(log)) + 1, 3):
        other = await cut(log, records, blobs=store)
        await copy_keys(store, other)
        async with process(other) as one:
            again = await one.run(None, epoch=1)
        assert again.facts.state_hash == session.facts.state_hash, records
        assert await in_clear(other) == []
        await sound(other)


async def copy_keys(store: Store, other: Store) -> None:
    async for info in store.list("keys/"):
        await other.put_new(info.key, await store.get(info.key))


WIDE = """  sensitive: [patient]
  schemas:
    Row: {type: object, required: [who, at], properties: {who: {type: string}, at: {type: integer}}}
    Rows: {type: array, items: Row}
  input: {patient: {type: string}}
  nodes:
    - name: rows
      with: {who: input.patient}
      code: |
        [{"who": who * 40, "at": i} for i in range(600)] + [{"who": who * 1000, "at": 600}]
      output: Rows
    - name: each
      map: {items: nodes.rows.output, as: row, template: one}
    - name: last
      with: {items: nodes.each.output.items}
      transform: {kept: items}
  output: {kept: nodes.last.output.kept}
  templates:
    - name: one
      input: {row: Row}
      nodes:
        - name: same
          with: {row: input.row}
          transform: {text: row}
      output: {text: nodes.same.output.text}
"""


async def test_wide_lists_are_encrypted_piece_by_piece_and_found_without_the_key() -> None:
    store, session, _ = await whole(compiled(WIDE), {"patient": SECRET})
    assert session.engine.closed == "succeeded", session.facts.failures
    assert await in_clear(store) == []
    assert "output" not in session.projection()
    values = Values(store, "run-1", seal=session.seal)
    rows = (await values.load(session.engine.output))["kept"]
    assert [len(row["text"]["who"]) for row in rows[-2:]] == [len(SECRET) * 40, len(SECRET) * 1000]
    target = new_store()
    copied = await copy_run(store, "run-1", target)
    assert copied.problems == []
    blobs = {info.key async for info in target.list("blobs/")}
    assert blobs == {info.key async for info in store.list("blobs/")}
    with pytest.raises(KeyMissing):
        async with process(target) as one:
            await one.run(None, epoch=1)
    assert (await copy_run(store, "run-1", target, keys=True)).problems == []
    async with process(target) as one:
        assert (await one.run(None, epoch=1)).facts.state_hash == session.facts.state_hash


async def test_what_was_erased_is_verified_and_goes_on_nowhere(graph: CompiledGraph) -> None:
    store, session, log = await whole(graph)
    async with process(store) as one:
        again = await one.driver.open_run(fork("fork", "/greet"))
        async with asyncio.timeout(60):
            await again.ended.wait()
    assert again.facts.state_hash == session.facts.state_hash
    assert again.seal == session.seal
    assert await in_clear(store) == []
    await sound(store, "fork")

    assert set((await erase(store, "run-1", at="now")).runs) == {"run-1", "fork"}
    assert await sound(store) == log
    assert (await copy_run(store, "run-1", new_store())).problems == []
    for refused in (fork("other", "/greet"), OpenRequest(run="run-1", name="g", leader_epoch=5)):
        async with process(store) as one:
            with pytest.raises(KeyErased):
                await one.driver.open_run(refused)


def fork(run: str, path: str) -> OpenRequest:
    return OpenRequest(run=run, name="g", earlier=Earlier("run-1", "fork", path), leader_epoch=1)


async def test_without_a_seal_key_nothing_begins(graph: CompiledGraph) -> None:
    store = new_store()
    async with Process(store) as one:
        with pytest.raises(WrongSealKey, match="no seal key is given"):
            await one.run(graph, INPUT)
    assert [info.key async for info in store.list("runs/")] == []


async def test_the_same_input_has_other_names_and_numbers_in_another_run(graph: CompiledGraph) -> None:
    seeds = []
    for _ in range(2):
        store = new_store()
        async with process(store) as one:
            session = await one.driver.open_run(OpenRequest(run="r", name="g", graph=graph, input=INPUT))
            seeds.append(session.seed)
        seeds.append((await read(store, "r"))[0].core["input"])  # type: ignore[index]
    assert len(set(seeds)) == 4


async def test_a_changed_or_missing_object_is_found_without_the_key() -> None:
    store, _, _ = await whole(compiled(WIDE), {"patient": SECRET})
    for info in [info async for info in store.list("blobs/")][::2]:
        data = await store.get(info.key)
        await store.put(info.key, data[:-1] + bytes([data[-1] ^ 1]))
        assert await verify(store, "run-1"), info.key
        await store.delete(info.key)
        assert [p.code for p in await verify(store, "run-1")] == ["BLOB-MISSING"], info.key
        await store.put(info.key, data)
    assert await verify(store, "run-1") == []


async def test_a_runner_cannot_bring_something_sensitive_into_the_log_in_clear(graph: CompiledGraph) -> None:
    node = graph.root.by_name["greet"]
    values = Values(new_store(), "run-1", seal=Seal.generate())
    task = Task(key="/greet", kind="node", scope="", node="greet", env={}, template="", parents=(), skip=False, done={})
    for sealing, wanted in ((True, None), (False, "something sensitive is in it in clear")):
        built = await build(
            values.sealing(sealing),
            "run-1",
            type="commit",
            path="/greet",
            node=node.digest,
            parents=[],
            input={"who": SECRET},
            value={"text": SECRET},
            schema=schema_hash(node.output),
        )
        why = Acceptance(graph).fault(built.record, task=task, last=True, committed=(), beside=())
        assert why == wanted


async def test_a_run_that_is_collected_takes_its_key_with_it(graph: CompiledGraph) -> None:
    clock = [1000.0]
    store = MemoryStore(now=lambda: clock[0])
    async with process(store) as one:
        await one.run(graph, INPUT)
    for days in (40, 42):
        assert [info.key async for info in store.list("keys/")] == [key_key("run-1")]
        clock[0] = days * 86400.0
        await collect(store, older_than=0, now=lambda: clock[0])
    assert [info.key async for info in store.list("keys/")] == []

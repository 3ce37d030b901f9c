"""Files of a run: who sees which, what items made of them is merged, and a resume stands where the run stood."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from crashes import RUN, Process, cut, new_store, read, sound
from decurion_crds.compiled import CompiledGraph
from decurion_ledger import Record, verify
from decurion_ledger.layout import run_prefix
from decurion_ledger.stores import Store
from decurion_ledger.workspace import Objects, Version, files_of
from decurion_worker.earlier import Earlier
from decurion_worker.opening import OpenRequest
from manifests import compiled

PUT = "tool: {server: workspace, name: write, arguments: {path: PATH, text: TEXT}}"
LARGE = "'.'.join([str(i * i * 7919) for i in range(12000)])"


def put(path: str, text: str) -> str:
    return PUT.replace("PATH", path).replace("TEXT", text)


WHOLE = f"""
  input: {{names: {{type: array, items: {{type: string}}}}, source: {{type: string}}}}
  workspace: {{from: input.source}}
  nodes:
    - name: first
      workspace: {{write: [a]}}
      {put("a", "begun")}
    - name: beside                          # in no order with what is left and right of it
      with: {{text: "{LARGE}"}}
      workspace: {{write: [large]}}
      {put("large", '"{{ text }}"')}
    - name: each
      after: [first]
      map: {{items: input.names, as: name, template: one, workspace: {{merge: threeWay, onConflict: collect}}}}
    - name: solve
      after: [each]
      with: {{seen: "[len(one.sides) for one in nodes.each.output.conflicts]"}}
      workspace: {{write: [same, ".conflicts/**"]}}
      {put("same", '"solved {{ seen }}"')}
    - name: grow
      after: [solve, beside]
      loop: {{template: round, maxIterations: 3, onExhausted: succeed, score: "-abs(output.size - 8)", keep: best}}
    - name: look
      after: [grow]
      workspace: {{read: ["[a-z]*", "out/*", "log"]}}
      tool: {{server: workspace, name: glob, arguments: {{pattern: "**"}}}}
  output: {{paths: nodes.look.output.paths, conflicts: "[one.path for one in nodes.each.output.conflicts]"}}
  finally:
    - name: last
      workspace: {{write: [end]}}
      tool: {{server: workspace, name: read, arguments: {{path: log}}}}
  templates:
    - name: one
      input: {{name: {{type: string}}}}
      nodes:
        - name: own
          with: {{name: input.name}}
          workspace: {{write: ["out/*", same]}}
          tool:
            server: workspace
            name: write_files
            arguments:
              files: [{{path: "out/{{{{ name }}}}", text: "{{{{ name }}}}"}}, {{path: same, text: "{{{{ name }}}}"}}]
        - name: deeper
          after: [own]
          with: {{name: input.name}}
          graph: {{template: deep}}
      output: {{name: input.name}}
    - name: deep
      input: {{name: {{type: string}}}}
      nodes:
        - name: change
          with: {{name: input.name}}
          workspace: {{write: ["out/*"]}}
          tool:
            server: workspace
            name: edit
            arguments: {{path: "out/{{{{ name }}}}", old: "{{{{ name }}}}", new: "<{{{{ name }}}}>"}}
      output: {{count: nodes.change.output.replaced}}
    - name: round
      nodes:
        - name: see
          tool: {{server: workspace, name: glob, arguments: {{pattern: "log"}}}}
        - name: text
          with: {{there: "len(nodes.see.output.paths)"}}
          code: |
            "more"
          output: {{type: string}}
        - name: add
          with: {{text: nodes.text.output}}
          workspace: {{write: [log]}}
          {put("log", '"{{ text }}"')}
      output: {{size: nodes.add.output.bytes}}
"""
GIVEN = {"names": ["x", "y", "z"]}


@pytest.fixture
def source(tmp_path: Path) -> str:
    (tmp_path / "src" / "d").mkdir(parents=True)
    (tmp_path / "src" / "d" / "given").write_text("given")
    (tmp_path / "src" / ".hidden").write_text("no")
    return str(tmp_path / "src")


async def texts(store: Store, record: Record, run: str = RUN) -> dict[str, str]:
    """The files that a record names."""
    version = Version.from_json(record.envelope["workspace"])
    assert record.core is not None
    assert record.core["workspace"] == version.root
    kept = Objects(store, run)
    await kept.learn(version)
    return {path: (await kept.read(entry)).decode() for path, entry in (await files_of(kept, version.root)).items()}


def at(log: list[Record], path: str) -> Record:
    return next(r for r in log if r.path == path and r.core is not None)


async def done(spec: str | CompiledGraph, given: Any, store: Store, **more: Any) -> Any:
    graph = compiled(spec) if isinstance(spec, str) else spec
    async with Process(store, **more) as process:
        return await process.run(graph, given)


async def test_each_node_sees_what_those_before_it_left_and_items_are_merged(source: str) -> None:
    store = new_store()
    session = await done(WHOLE, {**GIVEN, "source": source}, store, runners=2)
    assert session.engine.output == {
        "paths": ["a", "large", "log", "out/x", "out/y", "out/z", "same"],
        "conflicts": ["same"],
    }
    log = await sound(store)
    assert await texts(store, log[0]) == {"d/given": "given"}
    assert (await texts(store, at(log, "/first"))) == {"a": "begun", "d/given": "given"}
    assert set(await texts(store, at(log, "/beside"))) == {"d/given", "large"}
    branch = await texts(store, at(log, "/each[00001]!output"))
    assert branch == {"a": "begun", "d/given": "given", "out/y": "<y>", "same": "y"}
    joined = await texts(store, at(log, "/each!join"))
    assert joined == {
        "a": "begun",
        "d/given": "given",
        **{f"out/{name}": f"<{name}>" for name in "xyz"},
        **{f".conflicts/each/0000{i}/same": name for i, name in enumerate("xyz")},
    }
    end = await texts(store, at(log, "/!output"))
    assert (end["same"], end["log"], end["a"]) == ("solved [3]", "more", "begun")
    (conflict,) = [r for r in log if r.type == "conflict"]
    assert (conflict.path, conflict.envelope["count"]) == ("/each!join", 1)
    assert session.projection()["phase"] == "Succeeded"


async def test_a_run_that_stopped_after_any_record_ends_with_the_same_files(source: str) -> None:
    graph, store = compiled(WHOLE), new_store()
    whole = await done(graph, {**GIVEN, "source": source}, store)
    log = await read(store)
    count = len([r for r in log if r.type not in ("genesis", "fence", "close")])
    assert count <= 60
    for records in range(0, count + 1, 3):
        cut_off = await cut(log, records, blobs=store)
        await _copy_packs(store, cut_off)
        session = await done_again(cut_off)
        assert session.facts.state_hash == whole.facts.state_hash, f"cut after {records} records"
        await sound(cut_off)


WRITTEN = f"""
  nodes:
    - name: graph
      graph: {{template: outer}}
    - name: look
      after: [graph]
      tool: {{server: workspace, name: glob, arguments: {{pattern: "**"}}}}
  output: {{paths: nodes.look.output.paths}}
  templates:
    - name: outer
      state: [{{name: sizes, schema: {{type: array, items: {{type: integer}}}}, merge: append}}]
      nodes:
        - name: once
          graph: {{template: inner}}
          writes: {{sizes: "[output.size]"}}
        - name: often
          after: [once]
          loop: {{template: other, maxIterations: 2, onExhausted: succeed}}
          writes: {{sizes: "[output.size]"}}
      output: {{sizes: state.sizes}}
    - name: inner
      nodes:
        - name: put
          workspace: {{write: [a]}}
          {put("a", "one")}
      output: {{size: nodes.put.output.bytes}}
    - name: other
      nodes:
        - name: put
          workspace: {{write: [b]}}
          {put("b", "two")}
      output: {{size: nodes.put.output.bytes}}
"""


async def test_what_graphs_and_loops_left_that_write_channels_is_there_after_any_cut() -> None:
    graph, store = compiled(WRITTEN), new_store()
    whole = await done(graph, {}, store)
    assert whole.engine.output == {"paths": ["a", "b"]}
    count = len([r for r in await read(store) if r.type not in ("genesis", "fence", "close")])
    for records in range(count + 1):
        cut_off = await cut(await read(store), records, blobs=store)
        await _copy_packs(store, cut_off)
        session = await done_again(cut_off)
        assert session.facts.state_hash == whole.facts.state_hash, f"cut after {records} records"


async def test_files_that_are_not_whole_are_found_by_the_verifier(source: str) -> None:
    store = new_store()
    await done(WHOLE, {**GIVEN, "source": source}, store)
    assert await verify(store, RUN) == []
    packs = [info.key async for info in store.list(f"{run_prefix(RUN)}packs/")]
    assert packs
    for pack in packs:
        raw = await store.get(pack)
        await store.delete(pack)
        found = await verify(store, RUN)
        assert {problem.code for problem in found} == {"FILES"}
        assert f"{pack} is missing" in found[0].message
        await store.put(pack, raw[:100] + bytes([raw[100] ^ 1]) + raw[101:])
        assert {problem.code for problem in await verify(store, RUN)} == {"FILES", "PACK"}
        await store.put(pack, raw)


async def done_again(store: Store) -> Any:
    async with Process(store) as process:
        return await process.run(None, epoch=1)


async def _copy_packs(source: Store, target: Store) -> None:
    async for info in source.list(f"{run_prefix(RUN)}packs/"):
        await target.put_new(info.key, await source.get(info.key))


MAPPED = f"""
  input: {{names: {{type: array, items: {{type: string}}}}}}
  nodes:
    - name: each
      map: {{items: input.names, as: name, template: one, WORKSPACE}}
  output: {{total: nodes.each.output.total}}
  templates:
    - name: one
      input: {{name: {{type: string}}}}
      nodes:
        - name: own
          with: {{name: input.name}}
          workspace: {{write: [same]}}
          {put("same", '"{{ name }}"')}
      output: {{name: input.name}}
"""


@pytest.mark.parametrize(
    ("workspace", "names", "due"),
    [
        ("workspace: {merge: disjoint}", "xx", "WorkspaceConflict"),
        ("concurrency: 9", "xx", "WorkspaceConflict"),
        ("workspace: {merge: threeWay}", "xx", {"same": "x"}),
        ("workspace: {merge: threeWay}", "xy", "WorkspaceConflict"),
        ("workspace: {merge: prefer}", "xy", {"same": "x"}),
        ("workspace: {merge: namespace}", "xy", {"each/00000/same": "x", "each/00001/same": "y"}),
    ],
)
async def test_a_map_merges_what_its_items_wrote_as_it_says(workspace: str, names: str, due: Any) -> None:
    store = new_store()
    session = await done(MAPPED.replace("WORKSPACE", workspace), {"names": list(names)}, store)
    log = await sound(store)
    if isinstance(due, str):
        failure = session.facts.failures[0]
        assert (failure.path, failure.code) == ("/each", due)
        assert "the items 0, 1 do not agree on same" in failure.message
        assert [r.path for r in log if r.type == "conflict"] == ["/each!join"]
        assert (await done_again(store)).facts.state_hash == session.facts.state_hash
    else:
        assert await texts(store, at(log, "/!output")) == due


AGENTS = """
  nodes:
    - name: one
      workspace: {write: ["one/**"]}
      agent: {model: writer, tools: [{server: workspace}], prompt: Write one}
    - name: two
      workspace: {write: ["two/**"]}
      agent: {model: writer, tools: [{server: workspace}], prompt: Write two}
    - name: all
      after: [one, two]
      tool: {server: workspace, name: glob, arguments: {pattern: "**"}}
  output: {paths: nodes.all.output.paths, said: nodes.one.output.text}
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: writer}
spec:
  protocol: scripted
  scripted:
    replies:
      - match: Write one
        calls:
          - {tool: write, arguments: {path: one/a, text: first}}
          - {tool: edit, arguments: {path: one/a, old: first, new: second}}
      - match: Write two
        calls: [{tool: write, arguments: {path: one/b, text: nay}}, {tool: write, arguments: {path: two/b, text: yea}}]
      - match: '"replaced":1'
        calls: [{tool: read, arguments: {path: one/a}}, {tool: read, arguments: {path: gone}}]
      - match: there is no file gone
        calls: [{tool: finish, arguments: {text: done}}]
      - match: '"bytes":3'
        calls: [{tool: finish, arguments: {text: done}}]
"""


async def test_agents_edit_files_side_by_side_and_one_that_is_cut_off_goes_on() -> None:
    graph, store = compiled(AGENTS), new_store()
    whole = await done(graph, {}, store)
    assert whole.engine.output == {"paths": ["one/a", "two/b"], "said": "done"}
    log = await sound(store)
    assert await texts(store, at(log, "/!output")) == {"one/a": "second", "two/b": "yea"}
    assert await texts(store, at(log, "/one")) == {"one/a": "second"}
    for records in range(len([r for r in log if r.type not in ("genesis", "fence", "close")]) + 1):
        session = await done_again(await cut(log, records, blobs=store))
        assert session.facts.state_hash == whole.facts.state_hash, f"cut after {records} records"


async def test_a_fork_begins_with_the_files_of_the_run_that_it_forks(source: str) -> None:
    store = new_store()
    given = {**GIVEN, "source": source}
    await done(WHOLE, given, store)
    (Path(source) / "d" / "given").write_text("changed since")
    async with Process(store) as process:
        request = OpenRequest(run="fork", name="g", earlier=Earlier(RUN, "fork", "/solve"))
        session = await process.driver.open_run(request)
        await session.ended.wait()
    assert await verify(store, "fork") == []
    async for info in store.list(run_prefix(RUN)):
        await store.delete(info.key)
    log = await read(store, "fork")
    assert at(log, "/beside").envelope["from"]["run"] == RUN
    files = await texts(store, at(log, "/!output"), run="fork")
    assert (files["d/given"], files["same"]) == ("given", "solved [3]")
    assert len(files["large"]) > 50_000


@pytest.fixture
def too_much(tmp_path: Path) -> str:
    (tmp_path / "many").mkdir()
    for i in range(3):
        (tmp_path / "many" / f"{i}").write_text("12345")
    return str(tmp_path / "many")


@pytest.mark.parametrize("limit", ["maxBytes: 14", "maxFiles: 2"])
async def test_a_folder_that_exceeds_the_quota_begins_no_run(limit: str, too_much: str) -> None:
    spec = f"""
  input: {{source: {{type: string}}}}
  workspace: {{from: input.source, {limit}}}
  nodes: [{{name: see, tool: {{server: workspace, name: list}}}}]
  output: {{names: nodes.see.output.names}}
"""
    with pytest.raises(Exception, match="more than its limit of"):
        await done(spec, {"source": too_much}, new_store())
    session = await done(spec.replace("14", "15").replace(" 2", " 3"), {"source": too_much}, new_store())
    assert session.engine.output == {"names": ["0", "1", "2"]}


async def test_a_node_that_writes_beyond_the_quota_fails() -> None:
    spec = f"""
  workspace: {{maxBytes: 4}}
  nodes: [{{name: write, workspace: {{write: [a]}}, {put("a", "'12345'")}}}]
  output: {{size: nodes.write.output.bytes}}
"""
    session = await done(spec, {}, new_store())
    assert session.facts.failures[0].code == "ToolFailed"
    assert "5 bytes, more than its limit of 4" in session.facts.failures[0].message


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ("name: read, arguments: {path: gone}", "there is no file gone"),
        ("name: read, arguments: {path: ../x}", "a part of a path is neither empty nor one or two dots"),
        ("name: write, arguments: {path: b, text: x}", "may write a; add it to its workspace.write"),
        ("name: edit, arguments: {path: a, old: x, new: z}", "there is no file a"),
        ("name: delete, arguments: {path: /etc/passwd}", "a path in a workspace is relative"),
    ],
)
async def test_a_tool_that_cannot_do_it_says_what_to_do(call: str, why: str) -> None:
    spec = f"""
  nodes: [{{name: use, workspace: {{write: [a]}}, tool: {{server: workspace, {call}}}}}]
  output: {{used: nodes.use.output}}
"""
    session = await done(spec, {}, new_store())
    failure = session.facts.failures[0]
    assert (failure.code, why in failure.message) == ("ToolFailed", True), failure.message

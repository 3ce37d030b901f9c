"""How many calls of a tool are in flight at a time: over branches, runs and runners, and never with leave in hand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from crashes import Process, new_store, sound
from decurion_crds.compiled import CompiledGraph
from decurion_ledger.stores import Store
from decurion_worker.session import RunSession
from decurion_worker.slots import SharedSlots
from manifests import compiled
from tool_server import ToolServer, resource

EACH = """  nodes: [{name: each, map: {items: "list(range(12))", as: k, template: one}}]
  output: {done: nodes.each.output.total}
  templates:
    - name: one
      input: {k: {type: integer}}
      nodes:
        - name: act
          with: {k: input.k}
          tool: {server: tools, CALL}
      output: {x: "str(nodes.act.output)"}
"""
LOOKUP = 'name: lookup, arguments: {query: "about {{ k }}", limit: 1}'
NOTE = 'name: note, arguments: {text: "about {{ k }}"}'


@pytest.fixture
def server() -> Iterator[ToolServer]:
    with ToolServer() as server:
        server.lookup_seconds = server.note_seconds = 0.05
        yield server


def bounded(url: str, calls: int) -> str:
    """The manifest of the server, with so many calls of `lookup` and of `note` at a time."""
    text = resource(url).replace("policy: {readOnly: true}", f"policy: {{readOnly: true, concurrency: {calls}}}")
    note = "input: {text: {type: string}}\n"
    return text.replace(note, f"{note}      policy: {{concurrency: {calls}}}\n")


def graph(call: str, manifest: str) -> CompiledGraph:
    return compiled(EACH.replace("CALL", call) + manifest)


async def ended(found: CompiledGraph, *, store: Store | None = None, runners: int = 1) -> RunSession:
    async with Process(store or new_store(), runners=runners) as process:
        return await process.run(found, {}, seconds=30)


@pytest.mark.parametrize(("calls", "runners", "most"), [(3, 1, 3), (1, 1, 1), (4, 2, 4), (1, 3, 3)])
async def test_no_more_calls_are_in_flight_than_the_tool_bears(
    server: ToolServer, calls: int, runners: int, most: int
) -> None:
    """Each runner has one call at least, so three of them have three."""
    session = await ended(graph(LOOKUP, bounded(server.url, calls)), runners=runners)
    assert session.engine.output == {"done": 12}
    assert server.calls["lookup"] == 12
    assert 1 <= server.most["lookup"] <= most


async def test_without_a_bound_all_calls_are_in_flight(server: ToolServer) -> None:
    await ended(graph(LOOKUP, resource(server.url)))
    assert server.most["lookup"] > 3


async def test_an_effect_is_begun_only_when_it_can_go_out(server: ToolServer) -> None:
    store = new_store()
    session = await ended(graph(NOTE, bounded(server.url, 2)), store=store)
    assert session.engine.output == {"done": 12}
    assert server.most["note"] <= 2
    begun, most = set[str](), 0
    for record in await sound(store):
        if record.type == "effect_intended":
            begun.add(record.path)
        if record.type == "effect_settled":
            begun.discard(record.path)
        most = max(most, len(begun))
    assert most == 2


async def test_an_agent_keeps_to_it_too(server: ToolServer) -> None:
    calls = ", ".join(f"{{tool: lookup, arguments: {{query: q{i}}}}}" for i in range(6))
    agent = f"""  nodes:
    - name: find
      agent: {{model: m, tools: [{{server: tools, allow: [lookup]}}], prompt: Begin}}
  output: {{text: nodes.find.output.text}}
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {{name: m}}
spec:
  protocol: scripted
  scripted:
    replies: [{{match: Begin, calls: [{calls}]}}, {{calls: [{{tool: finish, arguments: {{text: done}}}}]}}]
"""
    session = await ended(compiled(agent + bounded(server.url, 2)))
    assert session.engine.output == {"text": "done"}
    assert server.calls["lookup"] == 6
    assert server.most["lookup"] <= 2


def test_a_bound_is_no_part_of_what_a_node_gives() -> None:
    """So a run that is retried takes over what it has, also when the bound was changed meanwhile."""
    digests = {
        graph(LOOKUP, manifest).templates["one"].digest
        for manifest in (resource("http://x/mcp"), bounded("http://x/mcp", 2), bounded("http://x/mcp", 3))
    }
    assert len(digests) == 1


def test_places_have_slots_of_their_own() -> None:
    slots = SharedSlots()
    one = slots.at(["http://x", None, "find"], 2)
    assert slots.at(["http://x", None, "find"], 2) is one
    assert slots.at(["http://x", None, "other"], 2) is not one
    assert slots.at(["http://x", None, "find"], 3) is not one

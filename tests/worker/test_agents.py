"""Nodes of kind `agent`: the loop with scripted models and a real MCP server, how it ends, and how it is resumed."""

from collections.abc import Iterator
from typing import Any

import pytest

from crashes import Process, body, cut, new_store, read, sound
from decurion_crds.compiled import CompiledGraph
from decurion_ledger.stores import Store
from decurion_worker.session import RunSession
from manifests import compiled
from tool_server import ToolServer, resource

WHAT = {"what": "ships"}
OUTPUT = "{titles: {type: array, items: {type: string}}}"
MODEL = """
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: scripted}
spec:
  protocol: scripted
  scripted:
"""
FINDS = """    replies:
      - match: Find ships
        calls: [{tool: lookup, arguments: {query: ships, limit: 1}}, {tool: note, arguments: {text: begun}}]
      - match: ships 0
        calls: [{tool: note, arguments: {text: found}}]
      - match: noted found
        calls: [{tool: finish, arguments: {titles: [ships 0]}}]
"""


@pytest.fixture(scope="module")
def server() -> Iterator[ToolServer]:
    with ToolServer() as server:
        yield server


@pytest.fixture(autouse=True)
def _fresh(server: ToolServer) -> None:
    server.calls.clear()
    server.seen.clear()
    server.keys.clear()


def graph(script: str, server: ToolServer, *, agent: str = "", output: str = OUTPUT) -> CompiledGraph:
    """A graph of one agent with the tools of `server`, and a scripted model."""
    text = f"""  input: {{what: {{type: string}}}}
  nodes:
    - name: find
      with: {{what: input.what}}
      retry: {{transient: 0}}
      agent:
        model: scripted
        instructions: You find titles.
        tools: [{{server: tools}}]
        prompt: "Find {{{{ what }}}}"
{agent}      output: {output}
  output: {{found: nodes.find.output}}
"""
    return compiled(text + MODEL + script + resource(server.url))


async def ended(found: CompiledGraph | None, *, store: Store | None = None, given: Any = WHAT) -> RunSession:
    async with Process(store or new_store()) as process:
        return await process.run(found, given, seconds=60)


async def failed(found: CompiledGraph) -> tuple[str, str, str]:
    failure = (await ended(found)).facts.failures[0]
    return failure.klass, failure.code, failure.message


async def test_an_agent_calls_tools_side_by_side_and_finishes(server: ToolServer) -> None:
    store = new_store()
    session = await ended(graph(FINDS, server), store=store)
    assert session.engine.output == {"found": {"titles": ["ships 0"]}}
    assert session.facts.usage["calls"] == 3
    assert server.calls == {"lookup": 1, "note": 2}
    turns = [r.path for r in await sound(store) if r.type == "turn"]
    assert turns == [f"/find#turn-000{i}" for i in (1, 2, 3)]


async def test_the_same_script_gives_the_same_state(server: ToolServer) -> None:
    states = {(await ended(graph(FINDS, server))).facts.state_hash for _ in range(2)}
    assert len(states) == 1
    assert None not in states


async def test_a_run_cut_after_any_record_asks_and_calls_nothing_twice(server: ToolServer) -> None:
    store = new_store()
    whole = await ended(graph(FINDS, server), store=store)
    log = await read(store)
    kinds = [(r.type, r.path) for r in body(log)]
    for records in range(len(kinds) + 1):
        server.calls.clear()
        again = await cut(log, records)
        async for blob in store.list("blobs/"):
            await again.put_new(blob.key, await store.get(blob.key))
        session = await ended(None, store=again)
        after = await sound(again)
        before = kinds[:records]
        open_effects = {p for t, p in before if t == "effect_intended"} - {
            p for t, p in before if t == "effect_settled"
        }
        turns = [r.path for r in after if r.type == "turn"]
        assert len(turns) == len(set(turns))
        if open_effects:
            assert session.facts.failures[0].code == "EffectInDoubt"
        else:
            assert session.facts.state_hash == whole.facts.state_hash
            settled = [p for t, p in before if t == "effect_settled"]
            assert sum(server.calls.values()) == 3 - len(settled)


async def test_a_text_without_a_call_is_nudged_and_then_given_up(server: ToolServer) -> None:
    klass, code, message = await failed(graph("    default: I am thinking.\n", server))
    assert (klass, code) == ("Replannable", "AgentGaveUp")
    assert "I am thinking." in message
    nudged = "    replies:\n      - {match: without calling, calls: [{tool: finish, arguments: {titles: []}}]}\n"
    session = await ended(graph(nudged + "    default: Well.\n", server))
    assert session.engine.output == {"found": {"titles": []}}


async def test_the_same_call_again_and_again_is_stopped(server: ToolServer) -> None:
    script = "    replies:\n      - calls: [{tool: lookup, arguments: {query: ships, limit: 1}}]\n"
    klass, code, message = await failed(graph(script, server))
    assert (klass, code) == ("Replannable", "RepeatedCalls")
    assert "called lookup 5 times" in message
    assert server.calls["lookup"] == 2 * 5, "once more with another plan"


async def test_three_turns_of_failures_in_a_row_end_it(server: ToolServer) -> None:
    script = "    replies:\n      - calls: [{tool: fail}]\n"
    klass, code, message = await failed(graph(script, server))
    assert (klass, code) == ("Replannable", "FailuresInRow")
    assert "the index is being rebuilt" in message


async def test_the_step_limit_gives_one_last_turn_without_tools(server: ToolServer) -> None:
    limits = "        limits: {steps: 2}\n"
    calls = "    replies:\n      - calls: [{tool: lookup, arguments: {query: ships, limit: 1}}]\n"
    klass, code, message = await failed(graph(calls, server, agent=limits))
    assert (klass, code) == ("BudgetExceeded", "StepLimit")
    assert "limits.steps" in message
    assert server.calls["lookup"] == 2
    lands = "    replies:\n      - match: last turn\n        calls: [{tool: finish, arguments: {titles: [late]}}]\n"
    session = await ended(graph(lands + calls.removeprefix("    replies:\n"), server, agent=limits))
    assert session.engine.output == {"found": {"titles": ["late"]}}


async def test_a_result_that_breaks_the_output_is_sent_back(server: ToolServer) -> None:
    wrong = "    replies:\n      - match: not accepted\n        calls: [{tool: finish, arguments: {titles: [ok]}}]\n"
    first = "      - calls: [{tool: finish, arguments: {titles: 3}}]\n"
    session = await ended(graph(wrong + first, server))
    assert session.engine.output == {"found": {"titles": ["ok"]}}
    klass, code, _ = await failed(graph("    replies:\n" + first, server))
    assert (klass, code) == ("Repairable", "OutputInvalid")


async def test_wrong_arguments_and_unknown_tools_are_told_to_the_model(server: ToolServer) -> None:
    script = """    replies:
      - match: there is no tool
        calls: [{tool: lookup, arguments: {limit: 1}}]
      - match: arguments were not accepted
        calls: [{tool: finish, arguments: {titles: []}}]
      - calls: [{tool: look}]
"""
    session = await ended(graph(script, server))
    assert session.engine.output == {"found": {"titles": []}}
    assert not server.calls


async def test_an_agent_by_name_has_its_own_tools_and_output(server: ToolServer) -> None:
    text = """  nodes:
    - name: find
      agent: {ref: finder, prompt: Find ships}
  output: {found: nodes.find.output.titles}
---
apiVersion: decurion.dev/v1alpha1
kind: Agent
metadata: {name: finder}
spec:
  model: scripted
  instructions: You find titles.
  tools: [{server: tools, as: desk, allow: [lookup]}]
  output: {titles: {type: array, items: {type: string}}}
  limits: {steps: 4}
"""
    script = """    replies:
      - match: Find ships
        calls: [{tool: desk_lookup, arguments: {query: ships, limit: 1}}]
      - match: ships 0
        calls: [{tool: finish, arguments: {titles: [ships 0]}}]
"""
    found = compiled(text + MODEL.lstrip("\n") + script + resource(server.url))
    agent: Any = found.root.by_name["find"].agent
    assert [tool.name for tool in agent.tools] == ["desk_lookup"]
    assert agent.steps == 4
    session = await ended(found, given={})
    assert session.engine.output == {"found": ["ships 0"]}


async def test_agents_inside_a_map_and_a_loop_go_on_where_they_were_cut(server: ToolServer) -> None:
    text = """  nodes:
    - name: each
      map: {items: "['ships', 'boats']", as: what, template: one}
    - name: again
      loop: {template: round, maxIterations: 2, onExhausted: succeed}
  output: {found: nodes.each.output.items, rounds: nodes.again.output.iterations}
  templates:
    - name: one
      input: {what: {type: string}}
      nodes:
        - name: find
          with: {what: input.what}
          agent: {model: scripted, tools: [{server: tools}], prompt: "Find {{ what }}"}
          output: {titles: {type: array, items: {type: string}}}
      output: {titles: nodes.find.output.titles}
    - name: round
      nodes:
        - name: find
          agent: {model: scripted, tools: [{server: tools}], prompt: Find ships}
          output: {titles: {type: array, items: {type: string}}}
      output: {titles: nodes.find.output.titles}
"""
    script = FINDS.replace("Find ships", "Find").replace("noted found", "noted")
    found = compiled(text + MODEL.lstrip("\n") + script + resource(server.url))
    store = new_store()
    whole = await ended(found, store=store, given={})
    assert whole.engine.output == {"found": [{"titles": ["ships 0"]}] * 2, "rounds": 2}
    log = await read(store)
    kinds = [(r.type, r.path) for r in body(log)]
    for records in range(0, len(kinds) + 1, 2):
        before = kinds[:records]
        settled = [p for t, p in before if t == "effect_settled"]
        if {p for t, p in before if t == "effect_intended"} - set(settled):
            continue
        server.calls.clear()
        again = await cut(log, records)
        async for blob in store.list("blobs/"):
            await again.put_new(blob.key, await store.get(blob.key))
        session = await ended(None, store=again)
        assert session.facts.state_hash == whole.facts.state_hash
        assert sum(server.calls.values()) == 12 - len(settled)

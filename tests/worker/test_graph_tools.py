"""Graphs as tools of agents: a scope below each call, on the agent's runner, and resumed inside."""

from typing import Any

from crashes import Process, body, cut, new_store, read, results, sound
from decurion_crds.compiled import CompiledGraph
from decurion_ledger.stores import Store
from decurion_worker.session import RunSession
from manifests import compiled

LOOKUP = """---
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: look-up}
spec:
  description: Finds what is known of a word.
  needs: {fast: LLM}
  input: {word: {type: string}, "times?": {type: integer}}
  nodes:
    - name: read
      with: {word: input.word}
      llm: {ref: fast, prompt: "Tell of {{ word }}"}
    - name: refine
      loop: {template: round, maxIterations: 2, onExhausted: succeed}
    - name: check
      with: {text: nodes.read.output.text, rounds: nodes.refine.output.iterations}
      code: |
        int("x") if "broken" in text else 0
        {"text": text, "rounds": rounds}
      output: {text: {type: string}, rounds: {type: integer}}
  output: {text: nodes.check.output.text, rounds: nodes.check.output.rounds}
  templates:
    - name: round
      nodes: [{name: one, transform: {v: "1"}}]
      output: {v: nodes.one.output.v}
"""
MODELS = """---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: fast}
spec: {protocol: scripted, scripted: {default: fast words}}
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: slow}
spec: {protocol: scripted, scripted: {default: slow words}}
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: broken}
spec: {protocol: scripted, scripted: {default: broken}}
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: mind}
spec:
  protocol: scripted
  scripted:
"""
TWICE = """    replies:
      - match: Ask
        calls: [{tool: look_up, arguments: {word: ships}}, {tool: other, arguments: {word: boats}}]
      - match: slow words
        calls: [{tool: finish, arguments: {text: done}}]
"""
TOOLS = "[{graph: look-up}, {graph: look-up, as: other, bind: {fast: slow}}]"


def asking(tools: str, script: str = TWICE, *, more: str = LOOKUP, limits: str = "", around: str = "") -> CompiledGraph:
    """A graph of one agent with these tools, under a scripted model."""
    text = f"""  nodes:
    - name: ask
      agent: {{model: mind, tools: {tools}, prompt: Ask{limits}}}
{around}  output: {{text: nodes.ask.output.text}}
"""
    return compiled(text + more + MODELS + script)


async def ended(found: CompiledGraph | None, *, store: Store | None = None) -> RunSession:
    async with Process(store or new_store()) as process:
        return await process.run(found, {}, seconds=60)


async def every_cut(found: CompiledGraph, *, step: int = 1) -> RunSession:
    """The whole run; each run of the same log, cut after so many records, comes to the same state and does nothing
    durable again.
    """
    store = new_store()
    whole = await ended(found, store=store)
    log = await read(store)
    inside = [r.path for r in body(log)]
    for records in range(0, len(inside) + 1, step):
        again = await cut(log, records, blobs=store)
        session = await ended(None, store=again)
        assert session.facts.state_hash == whole.facts.state_hash, inside[:records]
        after = await sound(again)
        assert [r.path for r in body(after)][:records] == inside[:records]
        turns = [r.path for r in after if r.type == "turn"]
        assert len(turns) == len(set(turns))
        assert set(results(after)) == set(results(log))
    return whole


def test_a_graph_is_described_by_its_input_and_its_name() -> None:
    found = asking(TOOLS)
    agent: Any = found.root.by_name["ask"].agent
    assert [(t.name, t.description, t.graph) for t in agent.tools] == [
        ("look_up", "Finds what is known of a word.", "graph:look-up"),
        ("other", "Finds what is known of a word.", "graph:look-up(fast=slow)"),
    ]
    assert found.root.leaf
    assert {"fast", "slow", "mind"} <= set(found.llms)


async def test_a_call_runs_the_graph_below_the_call() -> None:
    store = new_store()
    session = await ended(asking(TOOLS), store=store)
    assert session.engine.output == {"text": "done"}
    log = await sound(store)
    for call in ("/ask#turn-0001.01", "/ask#turn-0001.02"):
        inside = {p.removeprefix(call) for p in results(log) if p.startswith(call)}
        assert inside == {
            "!open",
            "!output",
            "/read",
            "/refine!open",
            "/refine@001/one",
            "/refine@001!output",
            "/refine@002!open",
            "/refine@002/one",
            "/refine@002!output",
            "/refine!join",
            "/check",
        }
    end = next(r for r in log if r.path == "/ask")
    assert end.core is not None
    parents = [path for path, _ in end.core["parents"]]
    assert [p for p in parents if "#" in p] == ["/ask#turn-0001.01!output", "/ask#turn-0001.02!output"]
    assert session.facts.usage["calls"] == 4


async def test_a_run_cut_inside_a_call_goes_on_there() -> None:
    whole = await every_cut(asking(TOOLS))
    assert whole.engine.output == {"text": "done"}


async def test_agents_with_graphs_in_maps_and_loops_are_resumed_inside() -> None:
    text = """  nodes:
    - name: each
      map: {items: "[1, 2]", as: nth, template: one}
    - name: again
      loop: {template: one, next: {nth: iteration}, maxIterations: 2, onExhausted: succeed}
      with: {nth: "1"}
    - name: once
      with: {nth: "1"}
      graph: {template: one}
  output: {count: len(nodes.each.output.items), text: nodes.again.output.text}
  templates:
    - name: one
      input: {nth: {type: integer}}
      nodes:
        - name: ask
          agent: {model: mind, tools: [{graph: look-up, bind: {fast: slow}}], prompt: Ask}
      output: {text: nodes.ask.output.text}
"""
    script = TWICE.replace(", {tool: other, arguments: {word: boats}}", "")
    whole = await every_cut(compiled(text + LOOKUP + MODELS + script), step=7)
    assert whole.engine.output == {"count": 2, "text": "done"}


async def test_a_graph_that_fails_is_a_tool_that_fails() -> None:
    script = """    replies:
      - match: Ask
        calls: [{tool: look_up, arguments: {word: ships}}]
      - match: Expression
        calls: [{tool: finish, arguments: {text: it broke}}]
"""
    found = asking("[{graph: look-up, bind: {fast: broken}}]", script)
    whole = await every_cut(found)
    assert whole.engine.output == {"text": "it broke"}
    assert whole.facts.failures == []


async def test_an_agent_that_fails_stands_for_all_that_its_calls_did() -> None:
    script = "    replies:\n      - calls: [{tool: look_up, arguments: {word: ships}}]\n"
    store = new_store()
    found = asking("[{graph: look-up}]", script, limits=", limits: {steps: 1}")
    session = await ended(found, store=store)
    assert session.facts.failures[0].code == "StepLimit"
    assert [p for p, _ in session.engine.leaves() if "#" in p] == []
    await sound(store)


async def test_arguments_that_break_the_input_are_told() -> None:
    script = """    replies:
      - match: Ask
        calls: [{tool: look_up, arguments: {wort: ships}}]
      - match: arguments were not accepted
        calls: [{tool: finish, arguments: {text: told}}]
"""
    whole = await every_cut(asking("[{graph: look-up}]", script))
    assert whole.engine.output == {"text": "told"}


async def test_a_template_of_the_same_graph_is_a_tool_and_agents_may_be_inside() -> None:
    text = """  nodes:
    - name: ask
      agent: {model: mind, tools: [{template: helper}], prompt: Ask}
  output: {text: nodes.ask.output.text}
  templates:
    - name: helper
      description: Helps.
      input: {word: {type: string}}
      nodes:
        - name: inner
          with: {word: input.word}
          agent: {model: mind, tools: [{graph: look-up, bind: {fast: slow}}], prompt: "Deep {{ word }}"}
      output: {text: nodes.inner.output.text}
"""
    script = """    replies:
      - match: Ask
        calls: [{tool: helper, arguments: {word: ships}}]
      - match: Deep
        calls: [{tool: look_up, arguments: {word: ships}}]
      - match: slow words
        calls: [{tool: finish, arguments: {text: deeper}}]
      - match: deeper
        calls: [{tool: finish, arguments: {text: done}}]
"""
    whole = await every_cut(compiled(text + LOOKUP + MODELS + script))
    assert whole.engine.output == {"text": "done"}

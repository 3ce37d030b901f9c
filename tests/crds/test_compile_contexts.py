"""Context drawers as they are compiled: whose they are, what they order, and where they stand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from decurion_crds.compile import Checker, compile_graph
from decurion_crds.compiled import CompiledGraph, Context
from decurion_crds.effective import effective
from decurion_crds.loader import load_text
from decurion_crds.v1alpha1 import LLM, Agent, TaskGraph

SPEC = """apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: g}
spec:
  state: [{name: notes, schema: {type: string}, initial: none}]
  GRAPH
  nodes:
    - name: ask
      llm: {ref: m, prompt: hi}
      ASK
    - name: put
      PUT
      transform: {x: "'x'"}
      writes: {notes: output.x}
    - name: work
      agent: {ref: clerk, prompt: hi}
      WORK
    - name: loop
      loop: {template: round, maxIterations: 2, onExhausted: succeed}
  output: {ask: nodes.ask.output, work: nodes.work.output, loop: nodes.loop.output}
  templates:
    - name: round
      nodes: [{name: again, llm: {ref: m, prompt: hi}}]
      output: {text: nodes.again.output.text}
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: m}
spec: {protocol: scripted, scripted: {default: hi}}
---
apiVersion: decurion.dev/v1alpha1
kind: Agent
metadata: {name: clerk}
spec: {model: m, instructions: x, CLERK}
"""


@pytest.fixture(scope="module")
def checker() -> Iterator[Checker]:
    with Checker() as opened:
        yield opened


def compiled(checker: Checker, **parts: str) -> tuple[TaskGraph, CompiledGraph | None, list[str]]:
    text = SPEC
    for name in ("GRAPH", "ASK", "PUT", "WORK", "CLERK"):
        text = text.replace(name, parts.get(name, "limits: {steps: 9}" if name == "CLERK" else ""))
    models, found = load_text(text, "g.yaml").parse()
    assert found == [], [finding.text() for finding in found]
    (graph,) = [model for _, model in models if isinstance(model, TaskGraph)]
    compilation = compile_graph(
        graph,
        llms={model.name: model for _, model in models if isinstance(model, LLM)},
        agents={model.name: model for _, model in models if isinstance(model, Agent)},
        checker=checker,
    )
    errors = [f"{one.code} {one.path}" for one in compilation.findings if one.severity == "error"]
    return graph, compilation.compiled, errors


def test_all_drawers_are_shut(checker: Checker) -> None:
    _, found, errors = compiled(checker)
    assert errors == []
    assert found is not None
    scopes = (found.root, *found.templates.values())
    assert [node.context for scope in scopes for node in scope.nodes] == [None] * 5
    assert found.templates["round"].leaf


def test_a_channel_in_the_ledger_orders_as_a_read_does(checker: Checker) -> None:
    _, found, errors = compiled(checker, ASK="after: [put]\n      context: {ledger: [notes]}")
    assert errors == []
    assert found is not None
    ask = found.root.by_name["ask"]
    assert (ask.context, ask.reads, ask.parents) == (Context(ledger=("notes",)), ("state.notes",), ("put",))


def test_one_other_writer_comes_first(checker: Checker) -> None:
    _, found, _ = compiled(checker, ASK="context: {ledger: [notes]}")
    assert found is not None
    assert found.root.by_name["ask"].after == ("put",)


def test_what_a_node_leaves_out_is_its_agents_then_its_graphs(checker: Checker) -> None:
    graph, found, errors = compiled(
        checker,
        GRAPH='context: {ledger: [notes], history: {last: 3}, artefacts: ["a/*"]}',
        CLERK='context: {artefacts: ["b/*"]}',
        ASK="context: {ledger: []}",
    )
    assert errors == []
    assert found is not None
    nodes = {node.name: node.context for scope in (found.root, *found.templates.values()) for node in scope.nodes}
    assert nodes["ask"] == Context(artefacts=("a/*",))
    assert nodes["work"] == Context(ledger=("notes",), artefacts=("b/*",))
    # A template without the channel has the rest, and history where a loop runs it.
    assert nodes["again"] == Context(history=3, artefacts=("a/*",))
    assert not found.templates["round"].leaf
    assert nodes["put"] is None
    shown = {node["name"]: node.get("context") for node in effective(graph, found)["spec"]["nodes"]}
    assert shown["work"] == {"ledger": ["notes"], "history": {"last": 0}, "artefacts": ["b/*"]}


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"ASK": "context: {ledger: [note]}"}, "EXPR-FIELD nodes.ask.context.ledger[0]"),
        ({"CLERK": "context: {ledger: [note]}"}, "EXPR-FIELD nodes.work.agent.ref"),
        ({"GRAPH": "context: {ledger: [note]}"}, "EXPR-FIELD context.ledger[0]"),
        ({"WORK": "context: {history: {last: 1}}"}, "FIELD-VALUE nodes.work.context.history"),
        ({"PUT": "context: {ledger: [notes]}"}, "FIELD-UNKNOWN nodes.put.context"),
    ],
    ids=["node", "agent", "graph", "history", "kind"],
)
def test_what_is_refused(checker: Checker, parts: dict[str, str], said: str) -> None:
    _, found, errors = compiled(checker, **parts)
    assert (found, errors) == (None, [said])

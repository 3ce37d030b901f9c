"""Limits as they are compiled: their amounts, those around them, the prices that costs need, and where they stand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from decurion_crds.compile import Checker, Module, compile_graph
from decurion_crds.compiled import CompiledGraph, Limits
from decurion_crds.loader import load_text
from decurion_crds.v1alpha1 import LLM, Agent, TaskGraph, parse_resource

HEAD = "apiVersion: decurion.dev/v1alpha1\nkind: TaskGraph\nmetadata: {name: g}\nspec:\n"
MODELS = """---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: dear}
spec:
  protocol: scripted
  price: {inputPerMillion: "0.15", outputPerMillion: 2}
  scripted: {default: {text: hi}}
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: free}
spec: {protocol: scripted, scripted: {default: {text: hi}}}
---
apiVersion: decurion.dev/v1alpha1
kind: Agent
metadata: {name: clerk}
spec: {model: dear, limits: {steps: 20, tokens: 5k}}
---
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: other}
spec:
  needs: {dear: LLM}
  limits: {tokens: 2k, seconds: 60}
  nodes: [{name: ask, llm: {ref: dear, prompt: hi}}]
  output: {text: nodes.ask.output.text}
"""
NESTED = """  limits: {WHOLE}
  nodes:
    - name: each
      limits: {NODE}
      map: {items: "[1]", template: one}
    - name: sub
      graph: {ref: otherBIND}
    - name: find
      agent: {ref: clerk, prompt: hiAGENT}
  output: {each: nodes.each.output.total, sub: nodes.sub.output, find: nodes.find.output}
  templates:
    - name: one
      limits: {TEMPLATE}
      input: {item: {type: integer}}
      nodes: [{name: ask, llm: {ref: dear, prompt: hi}}]
      output: {text: nodes.ask.output.text}
"""


@pytest.fixture(scope="module")
def checker() -> Iterator[Checker]:
    with Checker() as opened:
        yield opened


def compiled(checker: Checker, **parts: str) -> tuple[CompiledGraph | None, list[str]]:
    text = NESTED
    for name in ("WHOLE", "NODE", "BIND", "AGENT", "TEMPLATE"):
        text = text.replace(name, parts.get(name, ""))
    models, found = load_text(HEAD + text + MODELS, "g.yaml").parse()
    assert found == [], [finding.text() for finding in found]
    graph, other = [model for _, model in models if isinstance(model, TaskGraph)]
    compilation = compile_graph(
        graph,
        llms={model.name: model for _, model in models if isinstance(model, LLM)},
        agents={model.name: model for _, model in models if isinstance(model, Agent)},
        graphs={"other": Module(other)},
        checker=checker,
    )
    errors = [f for f in compilation.findings if f.severity == "error"]
    assert {finding.code for finding in errors} <= {"BUDGET"}
    return compilation.compiled, [f"{one.path}: {one.message}" for one in errors]


def test_amounts_are_counted_and_those_below_are_below(checker: Checker) -> None:
    found, errors = compiled(
        checker, WHOLE='tokens: 10k, costUSD: "1.5"', NODE="tokens: 9000, seconds: 5", TEMPLATE="toolCalls: 3"
    )
    assert errors == []
    assert found is not None
    assert found.limits == Limits(tokens=10_000, nanoUSD=1_500_000_000, toolCalls=None)
    each, sub, find = found.root.nodes
    assert (each.limits, each.timeout_seconds) == (Limits(tokens=9_000, nanoUSD=None, toolCalls=None), 5.0)
    assert (sub.limits, sub.timeout_seconds) == (None, 60.0)
    assert find.agent is not None
    assert (find.limits, find.agent.steps, find.agent.limits) == (
        None,
        20,
        Limits(tokens=5_000, nanoUSD=None, toolCalls=None),
    )
    one, other = found.templates["one"], found.templates["graph:other"]
    assert (one.limits, one.leaf) == (Limits(toolCalls=3, nanoUSD=None), False)
    assert (other.limits, other.leaf) == (Limits(tokens=2_000, seconds=60, nanoUSD=None, toolCalls=None), False)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (
            {"WHOLE": "steps: 30", "NODE": "steps: 31"},
            "nodes.each.limits.steps: limits.steps is 31, above the 30 of graph g around it, which end it "
            "before; lower it, or raise the other",
        ),
        (
            {"NODE": "tokens: 7", "TEMPLATE": "tokens: 8"},
            "templates.one.limits.tokens: limits.tokens is 8, above the 7 of nodes.each around it, which end it "
            "before; lower it, or raise the other",
        ),
        (
            {"NODE": 'costUSD: "0.1"', "TEMPLATE": "costUSD: 1"},
            "templates.one.limits.costUSD: limits.costUSD is 1, above the 0.1 of nodes.each around it, which end it "
            "before; lower it, or raise the other",
        ),
        (
            {"WHOLE": "seconds: 59.5"},
            "nodes.sub.graph.ref: limits.seconds is 60, above the 59.5 of graph g around it, which end it "
            "before; lower it, or raise the other",
        ),
        (
            {"WHOLE": "tokens: 3k"},
            "nodes.find.agent.ref: limits.tokens is 5,000, above the 3,000 of graph g around it, which end it "
            "before; lower it, or raise the other",
        ),
        (
            {"WHOLE": "steps: 5", "AGENT": ", limits: {steps: 6}"},
            "nodes.find.agent.limits.steps: limits.steps is 6, above the 5 of graph g around it, which end it "
            "before; lower it, or raise the other",
        ),
    ],
    ids=["node", "template", "cost", "graph", "agent", "agent in place"],
)
def test_a_limit_above_one_around_it_is_refused_at_its_place(
    checker: Checker, parts: dict[str, str], said: str
) -> None:
    found, errors = compiled(checker, **parts)
    assert found is None
    assert errors == [said]


def test_where_costs_are_limited_every_model_needs_a_price_under_each_binding(checker: Checker) -> None:
    _, errors = compiled(checker, WHOLE="costUSD: 1", BIND=", bind: {dear: free}")
    assert errors == [
        "nodes.ask.llm.ref: costs are limited by limits.costUSD of graph g, and the LLM free has no price; add price "
        "to it, or limit tokens instead"
    ]
    found, errors = compiled(checker, BIND=", bind: {dear: free}")
    assert errors == []
    assert found is not None


def test_a_price_changes_what_a_run_costs_and_not_what_its_nodes_are(checker: Checker) -> None:
    found, _ = compiled(checker)
    assert found is not None
    assert found.llms["dear"]["price"] == {"inputPerMillion": "0.15", "outputPerMillion": "2"}
    others = [node for scope in found.templates.values() for node in scope.nodes if node.model == "dear"]
    bound, _ = compiled(checker, BIND=", bind: {dear: free}")
    assert bound is not None
    assert {node.digest for node in bound.templates["graph:other(dear=free)"].nodes} <= {node.digest for node in others}


_NO_AMOUNT = (
    'an amount of dollars has at most nine digits before the point and nine after it, and no sign; write "0.25"'
)


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"costUSD": 0.5}, 'an amount of dollars is an integer or a text: write "0.5", with the quotes'),
        ({"costUSD": "0"}, "nothing can be done for no money; write an amount above 0"),
        ({"costUSD": True}, 'an amount of dollars is an integer or a text: write "0.25", with the quotes'),
        *(({"costUSD": given}, _NO_AMOUNT) for given in ("1e3", "-1", "1,5", "free", "", -1, 10**9)),
        ({"tokens": 0}, 'an integer from 1 to 1,000,000,000,000 is due, or a text such as "100k" or "2M"'),
        ({"tokens": "1.5k"}, 'an integer from 1 to 1,000,000,000,000 is due, or a text such as "100k" or "2M"'),
        ({"tokens": "9999G"}, 'an integer from 1 to 1,000,000,000,000 is due, or a text such as "100k" or "2M"'),
        ({"steps": True}, 'an integer from 1 to 1,000,000,000,000 is due, or a text such as "100k" or "2M"'),
    ],
)
def test_amounts_that_are_none(limits: dict[str, Any], said: str) -> None:
    graph = {
        "apiVersion": "decurion.dev/v1alpha1",
        "kind": "TaskGraph",
        "metadata": {"name": "g"},
        "spec": {"limits": limits, "nodes": [{"name": "a", "transform": {"x": "1"}}], "output": {}},
    }
    _, found = parse_resource(graph)
    assert [(f.code, f.message) for f in found] == [("FIELD-VALUE", said)]

"""Agents and the graphs that are their tools: whose names are meant, and which graphs can be one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from decurion_crds.compile import Checker, Compilation, Module, compile_graph
from decurion_crds.compile.templates import MAX_NESTING
from decurion_crds.loader import load_text
from decurion_crds.v1alpha1 import LLM, Agent, TaskGraph

HEAD = "apiVersion: decurion.dev/v1alpha1"
MODELS = "".join(
    f"{HEAD}\nkind: LLM\nmetadata: {{name: {name}}}\nspec: {{protocol: scripted, scripted: {{default: x}}}}\n---\n"
    for name in ("gpt", "claude")
)
HELPER = f"{HEAD}\nkind: Agent\nmetadata: {{name: helper}}\nspec: {{model: writer}}\n---\n"
INNER = f"""{HEAD}
kind: TaskGraph
metadata: {{name: inner}}
spec:
  needs: {{writer: LLM}}
  nodes:
    - name: first
      llm: {{ref: writer, prompt: Go}}
    - name: second
      agent: {{ref: helper, prompt: Go}}
  output: {{first: nodes.first.output.text, second: nodes.second.output.text}}
---
"""
OUTER = f"""{HEAD}
kind: TaskGraph
metadata: {{name: outer}}
spec:
  nodes:
    - name: step
      graph: {{ref: inner, bind: {{writer: gpt}}}}
  output: {{all: nodes.step.output.second}}
"""


@pytest.fixture(scope="module")
def checker() -> Iterator[Checker]:
    with Checker() as opened:
        yield opened


def compilation(checker: Checker, text: str, name: str) -> Compilation:
    models = [document.parse()[0] for document in load_text(text, "").documents]
    graphs = {model.name: Module(model) for model in models if isinstance(model, TaskGraph)}
    return compile_graph(
        graphs[name].graph,
        llms={model.name: model for model in models if isinstance(model, LLM)},
        agents={model.name: model for model in models if isinstance(model, Agent)},
        graphs=graphs,
        checker=checker,
    )


def told(checker: Checker, text: str, name: str) -> list[str]:
    return [f"{f.graph or name} {f.path} {f.code} {f.message}" for f in compilation(checker, text, name).findings]


def test_the_model_of_an_agent_is_no_need_of_the_graph_that_uses_it(checker: Checker) -> None:
    missing = 'there is no LLM "writer"; apply an LLM of that name (there are claude and gpt)'
    assert told(checker, MODELS + HELPER + INNER + OUTER, "outer") == [
        f"inner nodes.second.agent.ref REF-MISSING {missing}"
    ]
    own = MODELS + HELPER.replace("model: writer", "model: claude") + INNER + OUTER
    graph = compilation(checker, own, "outer").result()
    agent = graph.templates["graph:inner(writer=gpt)"].by_name["second"].agent
    assert agent is not None
    assert agent.model == "claude"


def test_that_an_agent_is_not_there_is_told_once(checker: Checker) -> None:
    nodes = "nodes: [{name: ask, agent: {ref: nobody, prompt: Go}}]\n  output: {answer: nodes.ask.output.answer}\n"
    graph = f"{HEAD}\nkind: TaskGraph\nmetadata: {{name: alone}}\nspec:\n  {nodes}"
    [finding] = told(checker, MODELS + HELPER + graph, "alone")
    assert finding.startswith('alone nodes.ask.agent.ref REF-MISSING there is no Agent "nobody"')


def test_a_need_that_an_agent_alone_names_is_not_used(checker: Checker) -> None:
    writer = (
        f"{HEAD}\nkind: LLM\nmetadata: {{name: writer}}\nspec: {{protocol: scripted, scripted: {{default: x}}}}\n---\n"
    )
    alone = INNER.replace("llm: {ref: writer", "llm: {ref: gpt")
    assert told(checker, MODELS + writer + HELPER + alone, "inner") == [
        "inner needs.writer UNUSED no node uses writer, so binding it changes nothing; use it, or remove it from needs"
    ]


def test_graphs_that_lie_too_many_inside_one_another_are_refused(checker: Checker) -> None:
    def level(number: int, last: int) -> str:
        block = f"graph: {{ref: g{number + 1}}}" if number < last else "transform: {v: '1'}"
        nodes = f"  nodes: [{{name: a, {block}}}]\n  output: {{v: nodes.a.output.v}}\n---\n"
        return f"{HEAD}\nkind: TaskGraph\nmetadata: {{name: g{number}}}\nspec:\n{nodes}"

    def chain(last: int) -> str:
        return "".join(level(number, last) for number in range(last + 1))

    assert told(checker, chain(MAX_NESTING), "g0") == []
    [one] = told(checker, chain(MAX_NESTING + 1), "g0")
    assert f"more than {MAX_NESTING} graphs and templates inside one another" in one
    assert "SPEC-TOO-LARGE" in one
    # However they are met: from the inner ones on, the outer ones come last.
    wide = "".join(f"{{name: n{i}, graph: {{ref: g{i}}}}}, " for i in range(120, 0, -1))
    root = f"{HEAD}\nkind: TaskGraph\nmetadata: {{name: root}}\nspec:\n  nodes: [{wide}]\n---\n"
    codes = [finding.code for finding in compilation(checker, chain(1_100) + root, "root").findings]
    assert [code for code in codes if code != "UNUSED"] == ["SPEC-TOO-LARGE"]

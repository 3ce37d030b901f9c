"""LLMs that are asked when another cannot answer: in the closure, in digests, under overrides and bindings."""

from __future__ import annotations

from collections.abc import Mapping

from decurion_crds.compile import Checker, Compilation, Module, compile_graph
from decurion_crds.loader import load_text
from decurion_crds.show import show_text
from decurion_crds.v1alpha1 import LLM, TaskGraph

HEAD = "apiVersion: decurion.dev/v1alpha1\n"
ASK = """kind: TaskGraph
metadata: {name: g}
spec:
  nodes: [{name: ask, llm: {ref: fast, prompt: hi}}, {name: plain, transform: {x: "1"}}]
  output: {text: nodes.ask.output.text, x: nodes.plain.output.x}
"""
BOUND = """kind: TaskGraph
metadata: {name: g}
spec:
  nodes: [{name: sub, graph: {ref: inner, bind: {slow: fast}}}]
  output: {text: nodes.sub.output.text}
---
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: inner}
spec:
  needs: {slow: LLM}
  nodes: [{name: ask, llm: {ref: slow, prompt: hi}}]
  output: {text: nodes.ask.output.text}
"""


def llm(name: str, fallback: str = "", *, says: str = "") -> str:
    more = f", fallback: {fallback}" if fallback else ""
    spec = f"protocol: scripted, scripted: {{default: {says or name}}}{more}"
    return f"---\n{HEAD}kind: LLM\nmetadata: {{name: {name}}}\nspec: {{{spec}}}\n"


def build(source: str, swaps: Mapping[str, str] | None = None) -> Compilation:
    models, found = load_text(HEAD + source, "g.yaml").parse()
    assert found == []
    llms = {model.name: model for _, model in models if isinstance(model, LLM)}
    llms |= {name: llms[other] for name, other in (swaps or {}).items()}
    graph, *others = [model for _, model in models if isinstance(model, TaskGraph)]
    with Checker() as checker:
        return compile_graph(graph, llms=llms, graphs={o.name: Module(o) for o in others}, checker=checker)


def test_the_closure_has_all_that_may_answer_and_no_other() -> None:
    found = build(ASK + llm("fast", "slow") + llm("slow", "last") + llm("last") + llm("other")).result()
    assert list(found.llms) == ["fast", "last", "slow"]
    assert found.models("fast") == ("fast", "slow", "last")
    assert "model fast, else slow, else last" in show_text(found)


def test_the_digest_of_a_node_covers_all_that_may_answer() -> None:
    def digests(*llms: str) -> dict[str, str]:
        return {node.name: node.digest for node in build(ASK + "".join(llms)).result().root.nodes}

    alone = digests(llm("fast"))
    one = digests(llm("fast", "slow"), llm("slow"))
    other = digests(llm("fast", "slow"), llm("slow", says="something else"))
    renamed = digests(llm("fast", "late"), llm("late", says="slow"))
    assert len({alone["ask"], one["ask"], other["ask"]}) == 3
    assert one["ask"] == renamed["ask"], "names decide nothing"
    assert len({alone["plain"], one["plain"], other["plain"]}) == 1


def test_overrides_hold_for_fallbacks() -> None:
    llms = llm("fast", "slow") + llm("slow", "last") + llm("last") + llm("big", says="big")
    found = build(ASK + llms, {"slow": "big"}).result()
    assert found.models("fast") == ("fast", "slow")
    assert found.llms["slow"]["scripted"] == {"default": "big"}
    circle = build(ASK + llms, {"last": "fast"})
    (finding,) = [f for f in circle.findings if f.severity == "error"]
    assert finding.code == "CYCLE"
    assert "(slow → last → slow)" in finding.message


def test_what_an_llm_names_is_a_resource_whatever_names_of_the_graph_stand_for() -> None:
    """`slow` stands for `fast` inside, and `fast` falls back on the LLM `slow`."""
    found = build(BOUND + llm("fast", "slow") + llm("slow")).result()
    (ask,) = found.templates["graph:inner(slow=fast)"].nodes
    assert found.models(ask.model or "") == ("fast", "slow")

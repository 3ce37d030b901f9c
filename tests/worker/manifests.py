"""Graphs for tests of the worker from manifests, compiled as a user's are."""

from __future__ import annotations

import functools

from decurion_crds.compile import Checker, Module, compile_graph
from decurion_crds.compiled import CompiledGraph
from decurion_crds.loader import load_text
from decurion_crds.v1alpha1 import LLM, Agent, MCPServer, TaskGraph

HEAD = "apiVersion: decurion.dev/v1alpha1\nkind: TaskGraph\nmetadata: {name: g}\nspec:\n"


@functools.cache
def compiled(spec: str) -> CompiledGraph:
    """The graph of a `spec` in YAML, indented by two blanks; further documents may follow, also other graphs."""
    models, found = load_text(HEAD + spec, "g.yaml").parse()
    assert found == [], [finding.text() for finding in found]
    graph, *others = [model for _, model in models if isinstance(model, TaskGraph)]
    around = {other.name: Module(other) for other in others}
    llms = {model.name: model for _, model in models if isinstance(model, LLM)}
    servers = {model.name: model for _, model in models if isinstance(model, MCPServer)}
    agents = {model.name: model for _, model in models if isinstance(model, Agent)}
    with Checker() as checker:
        compilation = compile_graph(graph, llms=llms, servers=servers, agents=agents, graphs=around, checker=checker)
    assert compilation.compiled is not None, [finding.text() for finding in compilation.findings]
    return compilation.compiled

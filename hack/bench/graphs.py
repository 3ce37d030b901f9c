"""The graph of the fan-out bench, compiled as `decurion run` would."""

from __future__ import annotations

from typing import Any

from decurion_crds.compile import Checker, compile_graph
from decurion_crds.compiled import CompiledGraph
from decurion_crds.v1alpha1 import LLM, TaskGraph
from decurion_crds.v1alpha1.parse import parse_resource

WIDE: dict[str, Any] = {
    "apiVersion": "decurion.dev/v1alpha1",
    "kind": "TaskGraph",
    "metadata": {"name": "wide"},
    "spec": {
        "input": {"count": {"type": "integer"}},
        "nodes": [
            {
                "name": "plan",
                "with": {"count": "input.count"},
                "code": '{"words": [f"w{i}" for i in range(count)]}',
                "output": {"words": {"type": "array", "items": {"type": "string"}}},
            },
            {"name": "each", "map": {"items": "nodes.plan.output.words", "as": "word", "template": "one"}},
        ],
        "output": {"words": "len(nodes.each.output.items)"},
        "templates": [
            {
                "name": "one",
                "input": {"word": {"type": "string"}},
                "nodes": [
                    {
                        "name": "ask",
                        "with": {"word": "input.word"},
                        "llm": {"ref": "slow", "prompt": "Echo {{ word }}"},
                    }
                ],
                "output": {"text": "nodes.ask.output.text"},
            }
        ],
    },
}


def model(endpoint: str) -> dict[str, Any]:
    return {
        "apiVersion": "decurion.dev/v1alpha1",
        "kind": "LLM",
        "metadata": {"name": "slow"},
        "spec": {"protocol": "openai", "model": "slow", "endpoint": endpoint},
    }


def compiled(endpoint: str) -> CompiledGraph:
    """The wide graph with the model at `endpoint`. Raises `ValueError` when it does not compile."""
    return compile_manifest(WIDE, model(endpoint))


def compile_manifest(manifest: dict[str, Any], *models: dict[str, Any]) -> CompiledGraph:
    """The compiled graph of a TaskGraph manifest and the LLMs it names. Raises `ValueError`."""
    graph, faults = parse_resource(manifest)
    llms: dict[str, LLM] = {}
    for one in models:
        llm, more = parse_resource(one)
        faults = [*faults, *more]
        if isinstance(llm, LLM):
            llms[llm.name] = llm
    if not isinstance(graph, TaskGraph) or faults:
        raise ValueError([f.text() for f in faults])
    with Checker() as checker:
        result = compile_graph(graph, llms=llms, checker=checker)
    if result.compiled is None:
        raise ValueError([f.text() for f in result.findings])
    return result.compiled

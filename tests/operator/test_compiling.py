"""The compiler as the operator calls it."""

from __future__ import annotations

from typing import Any

from decurion_crds.v1alpha1 import TaskGraph
from decurion_operator.compiling import CheckedCompiler

SPEC: dict[str, Any] = {
    "schemas": {"Row": {"type": "object", "properties": {"id": {"type": "string"}}}},
    "nodes": [{"name": "a", "transform": {"v": "1"}}],
    "output": {"v": "nodes.a.output.v"},
}


def test_a_shared_schema_may_be_used_by_graphs_that_are_not_looked_at() -> None:
    meta = {"apiVersion": "decurion.dev/v1alpha1", "kind": "TaskGraph", "metadata": {"name": "types"}}
    graph = TaskGraph.model_validate(meta | {"spec": SPEC})
    compiler = CheckedCompiler()
    try:
        found, findings = compiler(graph, llms={}, servers={}, agents={}, graphs={}, known={})
    finally:
        compiler.close()
    assert (found is not None, [finding.text() for finding in findings]) == (True, [])

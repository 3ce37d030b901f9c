"""The slider: one node as transform, code, tool, llm and agent. Its block is all that differs."""

from typing import Any

import pytest

from decurion_crds.compile import Checker, compile_graph
from decurion_crds.loader import load_text
from decurion_crds.show import SCALE, place
from decurion_crds.v1alpha1 import LLM, Agent, MCPServer, TaskGraph

GRAPH = """apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: g}
spec:
  input: {text: {type: string}}
  state: [{name: topics, schema: {type: array, items: {type: string}}, merge: append}]
  nodes:
    - name: read
      description: What the text is about.
      when: len(input.text) > 0
      with: {text: input.text}
      BLOCK
      output: {topic: {enum: [bill, other]}}
      writes: {topics: "[output.topic]"}
      otherwise: {topic: "'other'"}
      onFailure: otherwise
    - name: after
      with: {topic: nodes.read.output.topic}
      transform: {shout: topic.upper()}
  output: {topic: nodes.after.output.shout, topics: state.topics}
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: fast}
spec: {protocol: scripted, scripted: {default: {topic: bill}}}
---
apiVersion: decurion.dev/v1alpha1
kind: MCPServer
metadata: {name: desk}
spec:
  url: http://127.0.0.1:9/mcp
  tools:
    - {name: topic_of, input: {text: {type: string}}, output: {topic: {enum: [bill, other]}}, policy: {readOnly: true}}
---
apiVersion: decurion.dev/v1alpha1
kind: Agent
metadata: {name: clerk}
spec: {model: fast, tools: [{server: desk}]}
"""
BLOCKS = {
    "transform": """transform: {topic: "'bill' if 'bill' in text else 'other'"}""",
    "code": """code: '{"topic": "bill" if "bill" in text else "other"}'""",
    "tool": """tool: {server: desk, name: topic_of, arguments: {text: "{{ text }}"}}""",
    "llm": """llm: {ref: fast, prompt: "{{ text }}"}""",
    "agent": """agent: {ref: clerk, prompt: "{{ text }}"}""",
}


def compiled(kind: str) -> Any:
    models, found = load_text(GRAPH.replace("BLOCK", BLOCKS[kind]), "g.yaml").parse()
    assert found == []
    by_kind: dict[type, dict[str, Any]] = {LLM: {}, MCPServer: {}, Agent: {}, TaskGraph: {}}
    for _, model in models:
        by_kind[type(model)][model.name] = model
    with Checker() as checker:
        done = compile_graph(
            by_kind[TaskGraph]["g"],
            llms=by_kind[LLM],
            servers=by_kind[MCPServer],
            agents=by_kind[Agent],
            checker=checker,
        )
    assert done.findings == []
    return done.result()


@pytest.fixture(scope="module")
def graphs() -> dict[str, Any]:
    return {kind: compiled(kind) for kind in SCALE}


def test_there_is_a_block_for_every_place_of_the_scale() -> None:
    assert tuple(BLOCKS) == SCALE


def test_the_compiled_nodes_differ_in_their_block_alone(graphs: dict[str, Any]) -> None:
    contracts = []
    for kind, graph in graphs.items():
        node = graph.root.by_name["read"].to_json()
        assert node.pop("kind") == kind
        assert node.pop(kind)
        # What follows from the block, and the times of its kind where the node says none.
        assert node.pop("digest")
        assert node.pop("timeoutSeconds") > 0
        contracts.append(node)
    assert all(contract == contracts[0] for contract in contracts)


def test_what_comes_after_sees_no_difference(graphs: dict[str, Any]) -> None:
    assert len({graph.root.by_name["after"].digest for graph in graphs.values()}) == 1
    assert all(graph.root.output_schema == graphs["code"].root.output_schema for graph in graphs.values())


def test_show_says_where_the_node_stands(graphs: dict[str, Any]) -> None:
    assert {kind: place(graph, graph.root.by_name["read"]) for kind, graph in graphs.items()} == {k: k for k in SCALE}

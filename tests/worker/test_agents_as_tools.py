"""Agents as tools of agents: each call is a scope of one node, and goes on where it was."""

from __future__ import annotations

from decurion_crds.compiled import CompiledGraph
from manifests import compiled
from test_agent_graphs import GRAPH, MAP, MIND, OUT, QUICK, every_cut

CHIEF = """  nodes:
    - name: ask
      agent: {model: mind, tools: [{agent: clerk}, {agent: typist, as: type}], prompt: Ask}
  output: {text: nodes.ask.output.text}
---
apiVersion: decurion.dev/v1alpha1
kind: Agent
metadata: {name: clerk}
spec:
  description: Spreads words.
  model: mind
  tools: [{graph: spread}, {agent: typist}]
  output: {letters: {type: integer}}
---
apiVersion: decurion.dev/v1alpha1
kind: Agent
metadata: {name: typist}
spec: {model: mind, tools: [{graph: quick}]}
"""
SCRIPT = """      - match: Ask
        calls: [{tool: clerk, arguments: {prompt: Count}}, {tool: type, arguments: {prompt: Shout}}]
      - match: Count
        calls: [{tool: spread, arguments: {words: [a, bc]}}, {tool: typist, arguments: {prompt: Shout}}]
      - match: Shout
        calls: [{tool: quick, arguments: {word: hey}}]
      - match: '"said":"HEY"'
        calls: [{tool: finish, arguments: {text: shouted}}]
      - match: '{"text":"shouted"}.*"letters":3|"letters":3.*"text":"shouted"'
        calls: [{tool: finish, arguments: {letters: 3}}]
      - match: shouted
        calls: [{tool: finish, arguments: {text: all of it}}]
"""


def chief() -> CompiledGraph:
    return compiled(CHIEF + GRAPH + MAP + OUT + QUICK + MIND + SCRIPT)


def test_an_agent_is_a_tool_that_takes_a_prompt() -> None:
    graph = chief()
    agent = graph.root.by_name["ask"].agent
    assert agent is not None
    assert [(t.name, t.description, t.graph) for t in agent.tools] == [
        ("clerk", "Spreads words.", "agent:clerk"),
        ("type", "", "agent:typist"),
    ]
    clerk = graph.templates["agent:clerk"]
    assert clerk.input_schema["required"] == ["prompt"]
    assert clerk.output_schema["properties"] == {"letters": {"type": "integer"}}
    # What has no map inside runs where its agent runs.
    assert (clerk.leaf, graph.templates["agent:typist"].leaf, graph.root.leaf) == (False, True, False)


async def test_agents_call_agents_that_call_graphs_and_go_on_at_every_cut() -> None:
    whole, log = await every_cut(chief(), step=6)
    assert whole.engine.output == {"text": "all of it"}
    turns = {r.path for r in log if r.type == "turn"}
    assert "/ask#turn-0001.01/answer#turn-0001.02/answer#turn-0001" in turns
    assert "/ask#turn-0001.02/answer#turn-0002" in turns

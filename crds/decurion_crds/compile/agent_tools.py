"""Agents as tools of agents: each is a graph of one node that runs it, with the argument as its prompt."""

from __future__ import annotations

from decurion_crds.v1alpha1 import Agent, TaskGraph

_PREFIX = "agent:"
"""What tells the graph of an Agent from those of TaskGraphs, whose names hold no colon."""


def owner_of(agent: str) -> str:
    """The name of the graph that an Agent is as a tool."""
    return f"{_PREFIX}{agent}"


def is_agent(owner: str) -> bool:
    return owner.startswith(_PREFIX)


def shown(owner: str) -> str:
    """A graph as it is named to people: `lookup`, `Agent clerk`."""
    return f"Agent {owner.removeprefix(_PREFIX)}" if is_agent(owner) else owner


def graph_of(name: str, agent: Agent) -> TaskGraph:
    """The graph that an Agent is as a tool."""
    node = {"name": "answer", "with": {"prompt": "input.prompt"}, "agent": {"ref": name, "prompt": "{{ prompt }}"}}
    spec = {
        "description": agent.spec.description,
        "input": {"prompt": {"type": "string"}},
        "nodes": [node],
        "output": {"$value": "nodes.answer.output"},
    }
    given = {"apiVersion": agent.api_version, "kind": "TaskGraph", "metadata": {"name": name}, "spec": spec}
    return TaskGraph.model_validate(given)

"""What a resource names, read off its spec as it is, right or wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from decurion_crds.compile.builtin import BUILTIN
from decurion_crds.schemas import FOREIGN

_RUN_A_GRAPH = ("graph", "map", "loop")
"""The blocks whose `ref` names another graph."""

OVERRIDES: Mapping[str, str] = {"llms": "LLM", "servers": "MCPServer"}
"""The kind that each field of a run's overrides swaps."""
Swaps: TypeAlias = Mapping[tuple[str, str], str]
"""What a run puts in the place of what its graph names: kind and name → name."""


@dataclass(frozen=True, slots=True)
class Uses:
    """What one spec names: LLMs, MCPServers, Agents, and other graphs with what they are bound to. `schemas` are graphs
    whose shared schemas it refers to.
    """

    llms: frozenset[str] = frozenset()
    servers: frozenset[str] = frozenset()
    agents: frozenset[str] = frozenset()
    runs: tuple[tuple[str, Mapping[str, str]], ...] = ()
    schemas: frozenset[str] = frozenset()
    needs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def graphs(self) -> tuple[tuple[str, Mapping[str, str]], ...]:
        """All graphs that it refers to, with what they are bound to."""
        return (*self.runs, *((name, {}) for name in sorted(self.schemas)))

    @property
    def bound(self) -> frozenset[str]:
        return frozenset(name for _, bind in self.runs for name in bind.values())


def uses(spec: Mapping[str, Any]) -> Uses:
    """What a spec names in its own nodes and those of its templates. What is no name is for the compiler to say."""
    llms: set[str] = set()
    servers: set[str] = set()
    agents: set[str] = set()
    graphs: list[tuple[str, Mapping[str, str]]] = []
    for node in _nodes(spec):
        llm = node.get("llm")
        if isinstance(llm, Mapping) and isinstance(llm.get("ref"), str):
            llms.add(llm["ref"])
        tool = node.get("tool")
        if isinstance(tool, Mapping) and isinstance(tool.get("server"), str):
            servers |= {tool["server"]} - BUILTIN.keys()
        agent = node.get("agent")
        if isinstance(agent, Mapping):
            if isinstance(agent.get("ref"), str):
                agents.add(agent["ref"])
            inside = agent_uses(agent)
            llms |= inside.llms
            servers |= inside.servers
            agents |= inside.agents
            graphs += inside.runs
        for kind in _RUN_A_GRAPH:
            block = node.get(kind)
            if isinstance(block, Mapping) and isinstance(block.get("ref"), str):
                graphs.append((block["ref"], _bound(block)))
    needs = spec.get("needs")
    return Uses(
        frozenset(llms),
        frozenset(servers),
        frozenset(agents),
        tuple(graphs),
        frozenset(_schema_owners(spec)),
        needs if isinstance(needs, Mapping) else {},
    )


def agent_uses(spec: Mapping[str, Any]) -> Uses:
    """The LLM, MCPServers, graphs and Agents that an agent names, that of an Agent or one that is written in a node."""
    model, tools = spec.get("model"), _objects(spec.get("tools"))
    return Uses(
        llms=frozenset({model} if isinstance(model, str) else ()),
        servers=frozenset(tool["server"] for tool in tools if isinstance(tool.get("server"), str)) - BUILTIN.keys(),
        agents=frozenset(tool["agent"] for tool in tools if isinstance(tool.get("agent"), str)),
        runs=tuple((tool["graph"], _bound(tool)) for tool in tools if isinstance(tool.get("graph"), str)),
    )


def fallback_of(spec: Mapping[str, Any]) -> str | None:
    """The LLM that an LLM falls back on."""
    name = spec.get("fallback")
    return name if isinstance(name, str) else None


def _bound(block: Mapping[str, Any]) -> dict[str, str]:
    bind = block.get("bind")
    given = bind.items() if isinstance(bind, Mapping) else ()
    return {name: to for name, to in given if isinstance(to, str)}


def swaps_of(spec: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """The overrides of a run."""
    written = spec.get("overrides") or {}
    return {
        (kind, ref): str(name) for part, kind in OVERRIDES.items() for ref, name in (written.get(part) or {}).items()
    }


def _schema_owners(value: object) -> Iterator[str]:
    """Graphs whose shared schemas are referred to, wherever a schema may stand."""
    due = [value]
    while due:
        here = due.pop()
        if isinstance(here, Mapping):
            ref = here.get("$ref")
            found = FOREIGN.fullmatch(ref) if isinstance(ref, str) else None
            if found:
                yield found["graph"]
            due.extend(here.values())
        elif isinstance(here, list):
            due.extend(here)


def _nodes(spec: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for scope in (spec, *_objects(spec.get("templates"))):
        yield from _objects(scope.get("nodes"))
        yield from _objects(scope.get("finally"))


def _objects(value: object) -> list[Mapping[str, Any]]:
    """The objects of a list; what else is written there is for the compiler to complain about."""
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []

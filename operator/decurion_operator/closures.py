"""What a TaskGraph comes to with all that it refers to, read off the specs as they are, right or wrong.

Each (graph, binding) is looked at once, so the cost grows with the closure and not with the number of uses.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from decurion_crds.compile import BUILTIN, MAX_INSTANCES
from decurion_crds.schemas import FOREIGN

_RUN_A_GRAPH = ("graph", "map", "loop")
"""The blocks whose `ref` names another graph."""


OVERRIDES: Mapping[str, str] = {"llms": "LLM", "servers": "MCPServer"}
"""The kind that each field of a run's overrides swaps."""
Swaps: TypeAlias = Mapping[tuple[str, str], str]
"""What a run puts in the place of what its graph names: kind and name → name."""


@dataclass(frozen=True, slots=True)
class Reach:
    """Names of what a graph's closure needs: LLMs and MCPServers by the names that a run's overrides swap, other
    TaskGraphs and Agents.
    """

    llms: frozenset[str] = frozenset()
    graphs: frozenset[str] = frozenset()
    servers: frozenset[str] = frozenset()
    agents: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Uses:
    """What one spec names: LLMs, MCPServers, Agents, and other graphs with what they are bound to."""

    llms: frozenset[str] = frozenset()
    servers: frozenset[str] = frozenset()
    agents: frozenset[str] = frozenset()
    graphs: tuple[tuple[str, Mapping[str, str]], ...] = ()
    needs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def bound(self) -> frozenset[str]:
        return frozenset(name for _, bind in self.graphs for name in bind.values())


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
            graphs += inside.graphs
        for kind in _RUN_A_GRAPH:
            block = node.get(kind)
            if isinstance(block, Mapping) and isinstance(block.get("ref"), str):
                graphs.append((block["ref"], _bound(block)))
    graphs += [(name, {}) for name in sorted(_schema_owners(spec))]
    needs = spec.get("needs")
    return Uses(
        frozenset(llms),
        frozenset(servers),
        frozenset(agents),
        tuple(graphs),
        needs if isinstance(needs, Mapping) else {},
    )


def agent_uses(spec: Mapping[str, Any]) -> Uses:
    """The LLM, MCPServers, graphs and Agents that an agent names, that of an Agent or one that is written in a node."""
    model, tools = spec.get("model"), _objects(spec.get("tools"))
    return Uses(
        llms=frozenset({model} if isinstance(model, str) else ()),
        servers=frozenset(tool["server"] for tool in tools if isinstance(tool.get("server"), str)) - BUILTIN.keys(),
        agents=frozenset(tool["agent"] for tool in tools if isinstance(tool.get("agent"), str)),
        graphs=tuple((tool["graph"], _bound(tool)) for tool in tools if isinstance(tool.get("graph"), str)),
    )


def _bound(block: Mapping[str, Any]) -> dict[str, str]:
    bind = block.get("bind")
    given = bind.items() if isinstance(bind, Mapping) else ()
    return {name: to for name, to in given if isinstance(to, str)}


def reach(
    name: str,
    spec: Mapping[str, Any],
    look: Callable[[str], Mapping[str, Any] | None],
    agent: Callable[[str], Mapping[str, Any] | None] = lambda name: None,
) -> Reach:
    """What the graph `name` needs; `look` gives the spec of another graph, `agent` that of an Agent, None where there
    is none.
    """
    llms: set[str] = set()
    graphs: set[str] = set()
    servers: set[str] = set()
    agents: set[str] = set()
    known = {name: uses(spec)}
    due: deque[tuple[str, tuple[tuple[str, str], ...]]] = deque([(name, ())])
    seen = set(due)
    while due:
        graph, bound = due.popleft()
        env, here = dict(bound), known[graph]
        own: dict[str, str] = {}
        apart: list[tuple[str, Mapping[str, str]]] = []
        llms |= {env.get(ref, ref) for ref in here.llms}
        servers |= here.servers
        new = sorted(here.agents)
        while new:
            ref = new.pop()
            if ref in agents:
                continue
            agents.add(ref)
            inside = agent_uses(agent(ref) or {})
            new += sorted(inside.agents)
            llms |= inside.llms
            servers |= inside.servers
            # What an Agent names are resources, whatever the names of the graph stand for.
            apart += inside.graphs
        for ref, bind, env in [*((ref, bind, env) for ref, bind in here.graphs), *((r, b, own) for r, b in apart)]:
            if ref not in known:
                graphs.add(ref)
                known[ref] = uses(look(ref) or {})
            given = {need: env.get(to, to) for need, to in bind.items() if need in known[ref].needs}
            llms.update(to for need, to in given.items() if known[ref].needs[need] == "LLM")
            inner = (ref, tuple(sorted((need, to) for need, to in given.items() if need != to)))
            # A graph with more is refused by the compiler.
            if inner not in seen and len(seen) <= MAX_INSTANCES:
                seen.add(inner)
                due.append(inner)
    return Reach(frozenset(llms), frozenset(graphs), frozenset(servers), frozenset(agents))


def swaps_of(spec: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """The overrides of a run."""
    written = spec.get("overrides") or {}
    return {
        (kind, ref): str(name) for part, kind in OVERRIDES.items() for ref, name in (written.get(part) or {}).items()
    }


def unused_swap(swaps: Swaps, reach: Reach, graph: str) -> str:
    """What is wrong with the first override of something that a graph does not use, or empty."""
    used = {"LLM": reach.llms, "MCPServer": reach.servers}
    for part, kind in OVERRIDES.items():
        for ref in sorted(ref for of, ref in swaps if of == kind and ref not in used[kind]):
            return f'overrides.{part} names "{ref}", and graph "{graph}" uses no {kind} of that name.'
    return ""


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

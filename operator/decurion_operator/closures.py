"""What a TaskGraph comes to with all that it refers to, read off the specs as they are, right or wrong.

Each (graph, binding) is looked at once, so the cost grows with the closure and not with the number of uses.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from decurion_crds.compile import MAX_INSTANCES
from decurion_crds.uses import OVERRIDES, Swaps, agent_uses, fallback_of, uses


@dataclass(frozen=True, slots=True)
class Reach:
    """Names of what a graph's closure needs: LLMs and MCPServers by the names that a run's overrides swap, other
    TaskGraphs and Agents. `typing` are MCPServers that nothing calls, by which graphs are typed where they exist: those
    of the names of needs that are bound.
    """

    llms: frozenset[str] = frozenset()
    graphs: frozenset[str] = frozenset()
    servers: frozenset[str] = frozenset()
    agents: frozenset[str] = frozenset()
    typing: frozenset[str] = frozenset()


def reach(
    name: str,
    spec: Mapping[str, Any],
    look: Callable[[str], Mapping[str, Any] | None],
    agent: Callable[[str], Mapping[str, Any] | None] = lambda name: None,
    llm: Callable[[str], Mapping[str, Any] | None] = lambda name: None,
) -> Reach:
    """What the graph `name` needs; `look` gives the spec of another graph, `agent` that of an Agent, `llm` that of the
    LLM that stands for a name, None where there is none.
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
        servers |= {env.get(ref, ref) for ref in here.servers}
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
            servers.update(to for need, to in given.items() if known[ref].needs[need] == "MCPServer")
            inner = (ref, tuple(sorted((need, to) for need, to in given.items() if need != to)))
            # A graph with more is refused by the compiler.
            if inner not in seen and len(seen) <= MAX_INSTANCES:
                seen.add(inner)
                due.append(inner)
    fallbacks = sorted(llms)
    while fallbacks:
        other = fallback_of(llm(fallbacks.pop()) or {})
        if other is not None and other not in llms:
            llms.add(other)
            fallbacks.append(other)
    typing = {need for one in known.values() for need, kind in one.needs.items() if kind == "MCPServer"} - servers
    return Reach(frozenset(llms), frozenset(graphs), frozenset(servers), frozenset(agents), frozenset(typing))


def unused_swap(swaps: Swaps, reach: Reach, graph: str) -> str:
    """What is wrong with the first override of something that a graph does not use, or empty."""
    used = {"LLM": reach.llms, "MCPServer": reach.servers}
    for part, kind in OVERRIDES.items():
        for ref in sorted(ref for of, ref in swaps if of == kind and ref not in used[kind]):
            return f'overrides.{part} names "{ref}", and graph "{graph}" uses no {kind} of that name.'
    return ""

"""The order of nodes: what they declare by `after`, and what follows from what they read."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations, pairwise

from decurion_crds.compile.conditions import Conditions
from decurion_crds.compile.draft import ScopeDraft, Site
from decurion_crds.compile.joins import assign_races, ended_before
from decurion_crds.compile.report import Report, Spot


@dataclass(frozen=True, slots=True)
class Edge:
    """Why a node comes after another: `spot` is where, `why` what stands there. `data` says that it reads the other."""

    spot: Spot
    why: str
    data: bool


Edges = dict[str, dict[str, Edge]]
"""Node → predecessor → the reason that stands first in the node."""


@dataclass(eq=False, slots=True)
class Order:
    """The edges of a scope. `names` is topological, and file order where that is free."""

    edges: Edges
    conditions: Conditions
    names: tuple[str, ...] = ()
    ancestors: dict[str, frozenset[str]] = field(default_factory=dict)

    def before(self, name: str, other: str) -> bool:
        """Whether `name` ends, or is given up, before `other` begins."""
        return name in self.ancestors[other]

    def unordered(self, name: str, other: str) -> bool:
        """Whether two nodes may run at once."""
        ordered = self.before(name, other) or self.before(other, name)
        return name != other and not ordered and not self.conditions.exclude(name, other)


def order_scope(scope: ScopeDraft, report: Report) -> Order:
    """The order of a scope. Cycles are in the report, each with what made its edges; file order breaks them."""
    assign_races(scope, report)
    edges: Edges = {name: {} for name in scope.nodes}
    for node in scope.nodes.values():
        if node.choice is not None and node.chosen_at is not None:
            _join(edges, node.name, node.choice, Edge(node.chosen_at, f"stands in a case of {node.choice}", data=True))
        for name in node.after:
            _join(edges, node.name, name, Edge(node.spot.below("after"), f"after names {name}", data=False))
        for site in node.scope_sites():
            for name in site.reads("nodes"):
                if scope.outer is not None and name in scope.outer.nodes:
                    continue
                _join(edges, node.name, name, Edge(site.spot, f"reads nodes.{name}", data=True))
    conditions = Conditions(scope)
    _infer_from_channels(scope, edges, conditions)
    _report_cycles(scope, edges, report)
    order = Order(edges, conditions, names=_sorted(edges))
    for name in order.names:
        order.ancestors[name] = ended_before(edges[name].keys(), scope.nodes[name].race, order.ancestors)
    for name, channel, site in _channel_reads(scope):
        for writer in writers(scope, channel):
            if order.before(writer, name):
                _join(edges, name, writer, Edge(site.spot, f"reads state.{channel}", data=True))
    return order


def writers(scope: ScopeDraft, channel: str) -> list[str]:
    """The nodes that write a channel, in file order."""
    return [node.name for node in scope.nodes.values() if channel in node.model.writes]


def channels_read(scope: ScopeDraft, site: Site) -> list[str]:
    """The channels that an expression reads; all of them when it reads `state` as a whole."""
    names = site.reads("state")
    return list(scope.channels) if "" in names else names


def _channel_reads(scope: ScopeDraft) -> list[tuple[str, str, Site]]:
    return [
        (node.name, channel, site)
        for node in scope.nodes.values()
        for site in node.scope_sites()
        for channel in channels_read(scope, site)
    ]


def _join(edges: Edges, node: str, predecessor: str, edge: Edge) -> None:
    there = edges[node].get(predecessor)
    if there is None:
        edges[node][predecessor] = edge
    elif edge.data and not there.data:
        edges[node][predecessor] = Edge(there.spot, there.why, data=True)


def _infer_from_channels(scope: ScopeDraft, edges: Edges, conditions: Conditions) -> None:
    """Orders the reader of a channel after its one other writer, unless that one is declared to come later. Writers of
    which one at most runs count as one.

    A node that reads and writes a channel is left alone: with another of its kind it would wait in a circle, so it has
    to say by `after` which value it means.
    """
    declared = {name: _reachable(edges, name) for name in edges}
    for name, channel, site in _channel_reads(scope):
        others = writers(scope, channel)
        if name in others or not all(conditions.exclude(a, b) for a, b in combinations(others, 2)):
            continue
        for other in others:
            if name not in declared[other] and not conditions.exclude(name, other):
                _join(edges, name, other, Edge(site.spot, f"reads state.{channel}", data=True))


def _reachable(edges: Edges, start: str) -> set[str]:
    found: set[str] = set()
    pending = [start]
    while pending:
        for name in edges[pending.pop()]:
            if name not in found:
                found.add(name)
                pending.append(name)
    return found


def _report_cycles(scope: ScopeDraft, edges: Edges, report: Report) -> None:
    """Each circle once, starting with its first node in the file. Edges that go back in the file are then removed."""
    reach = {name: _reachable(edges, name) for name in edges}
    place = {name: i for i, name in enumerate(scope.nodes)}
    told: set[str] = set()
    for name in scope.nodes:
        if name not in reach[name]:
            continue
        members = {other for other in reach[name] if name in reach[other]}
        if name not in told:
            told |= members
            scope.doubtful = True
            _tell_cycle(_shortest_cycle(edges, name, members), edges, report)
    for name, above in edges.items():
        for other in [other for other in above if name in reach[other] and place[other] >= place[name]]:
            del above[other]


def _shortest_cycle(edges: Edges, start: str, members: set[str]) -> list[str]:
    """`[start, …, start]`, each after the next one."""
    came: dict[str, str] = {}
    pending = deque([start])
    while pending:
        name = pending.popleft()
        for other in edges[name]:
            if other == start:
                path = [name]
                while path[-1] != start:
                    path.append(came[path[-1]])
                return [*reversed(path), start]
            if other in members and other not in came:
                came[other] = name
                pending.append(other)
    return [start, start]


def _tell_cycle(cycle: list[str], edges: Edges, report: Report) -> None:
    first = edges[cycle[0]][cycle[1]]
    if len(cycle) == 2:
        report.add("CYCLE", first.spot, f"{cycle[0]} waits for itself: it {first.why}; read another node, or remove it")
        return
    reasons = [f"{name} {edges[name][other].why} ({edges[name][other].spot.path})" for name, other in pairwise(cycle)]
    message = f"{' → '.join(cycle)} wait for one another: {', '.join(reasons)}; remove one of these"
    report.add("CYCLE", first.spot, message)


def _sorted(edges: Mapping[str, Mapping[str, Edge]]) -> tuple[str, ...]:
    """Kahn's algorithm, with the first in the file of those that are free."""
    place = {name: i for i, name in enumerate(edges)}
    names = list(edges)
    waits = {name: len(above) for name, above in edges.items()}
    after: dict[str, list[str]] = {name: [] for name in edges}
    for name, above in edges.items():
        for other in above:
            after[other].append(name)
    free = [place[name] for name, count in waits.items() if count == 0]
    heapq.heapify(free)
    order: list[str] = []
    while free:
        name = names[heapq.heappop(free)]
        order.append(name)
        for other in after[name]:
            waits[other] -= 1
            if waits[other] == 0:
                heapq.heappush(free, place[other])
    return tuple(order)

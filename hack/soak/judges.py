"""What must hold of each run of a random graph, whole, resumed, cancelled or taken over: judged by its log."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from typing import Any

from decurion_crds.compiled import CompiledGraph, Scope
from decurion_crds.globs import overlap
from decurion_ledger import Record, Store, verify
from decurion_worker.engine.scopes import ABANDONED
from decurion_worker.session import RunSession

ENDED = frozenset({"Succeeded", "Failed", "Skipped", "Cancelled", "NotRun"})


class Violated(Exception):
    """What was promised does not hold."""


def check_terminal(session: RunSession, where: str) -> None:
    left = [
        f"{node['name']} is {node['phase']}" for node in session.projection()["nodes"] if node["phase"] not in ENDED
    ]
    if left:
        raise Violated(f"{where}: the run has ended and {', '.join(left)}")


def check_cause(log: list[Record], where: str) -> None:
    """That a run that failed names what failed of itself: not what was given up since something else had failed."""
    failure = log[-1].envelope.get("failure")
    if log[-1].envelope.get("outcome") != "failed" or failure is None:
        return
    if failure["code"] == ABANDONED:
        raise Violated(f"{where}: the run names {failure['path']}, which was given up because something else failed")
    failed = {r.envelope.get("failed_at") for r in log if r.core is not None and _failed(r) == failure["code"]}
    if failure["path"] not in ("/", *failed):
        raise Violated(f"{where}: the run names {failure['path']}, and no record says that it failed so")


def fails_the_run(record: Record, outcome: tuple[Any, ...]) -> bool:
    """Whether it is by this record that a node of the root fails with what the run names."""
    at_root = record.core is not None and record.path.count("/") == 1
    return at_root and (record.envelope.get("failed_at"), _failed(record)) == (outcome[1], outcome[3])


def _failed(record: Record) -> str:
    outcome = (record.core or {})["outcome"]
    return str(outcome["failed"]["code"]) if isinstance(outcome, dict) else ""


async def check_verified(store: Store, where: str, run: str = "run") -> None:
    problems = await verify(store, run)
    if problems:
        raise Violated(f"{where}: the verifier finds {problems}")


def check_once(log: list[Record], where: str) -> None:
    paths = Counter(record.path for record in log if record.core is not None and record.type != "genesis")
    twice = [path for path, times in paths.items() if times > 1]
    if twice:
        raise Violated(f"{where}: committed more than once: {twice}")


def check_writers(graph: CompiledGraph, log: list[Record]) -> None:
    """Of two nodes that wrote one channel of a scope without a rule to merge, one comes after the other."""
    writers: dict[tuple[str, str], list[str]] = {}
    for record in log:
        if record.core is None or not record.core.get("writes"):
            continue
        place, _, name = record.path.partition("!")[0].rpartition("/")
        for channel, _ in record.core["writes"]:
            writers.setdefault((place, channel), []).append(name)
    for (place, channel), names in writers.items():
        scope = _scope_at(graph, place)
        rule = next(c.merge for c in scope.channels if c.name == channel)
        if rule == "replace":
            _check_ordered(scope, place, names, channel)


def check_files(graph: CompiledGraph, log: list[Record]) -> None:
    """Of two nodes of a scope that left files and may write the same ones, one comes after the other."""
    writers: dict[str, set[str]] = {}
    for record in log:
        if record.core is not None and record.core.get("workspace"):
            place, _, name = record.path.partition("!")[0].rpartition("/")
            writers.setdefault(place, set()).add(name.partition("[")[0].partition("@")[0])
    for place, names in writers.items():
        scope = _scope_at(graph, place)
        for one, other in itertools.combinations(sorted(names & set(scope.writers)), 2):
            globs = [scope.by_name[name].workspace.write for name in (one, other)]
            if any(overlap(a, b) for a in globs[0] for b in globs[1]):
                _check_ordered(scope, place, [one, other], "the same files")


def _check_ordered(scope: Scope, place: str, names: Iterable[str], what: str) -> None:
    for one, other in itertools.combinations(names, 2):
        if not (_before(scope, one, other) or _before(scope, other, one)):
            raise Violated(f"{place or '/'}: {one} and {other} wrote {what} in no order")


def raced(graph: CompiledGraph) -> bool:
    """Whether time decides something in the graph: who is first at a `join` that does not wait for all."""
    return any(node.join is not None for scope in (graph.root, *graph.templates.values()) for node in scope.nodes)


def _scope_at(graph: CompiledGraph, place: str) -> Scope:
    scope = graph.root
    for step in place.split("/")[1:]:
        name, call, _ = step.partition("[")[0].partition("@")[0].partition("#")
        node = scope.by_name[name]
        scope = graph.templates[node.graph_tools[0] if call else node.template or ""]
    return scope


def _before(scope: Scope, one: str, other: str) -> bool:
    seen, queue = set(), [other]
    while queue:
        for name in scope.by_name[queue.pop()].after:
            if name == one:
                return True
            if name not in seen:
                seen.add(name)
                queue.append(name)
    return False

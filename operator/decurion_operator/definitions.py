"""Reconciling LLMs, MCPServers, Agents and TaskGraphs: observe, plan, write; and tell the runs that wait for a graph.

What stands here for a graph's readiness is asked for by runs too: `assess` is the one place where references are
resolved, within the namespace, and the compiler is asked.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from decurion_crds.bindings import GraphUse, bound_by_uses, needs_of, uses_in
from decurion_crds.findings import Finding
from decurion_crds.secrets import Entry
from decurion_crds.uses import Swaps
from decurion_crds.v1alpha1 import API_VERSION, parse_resource
from decurion_operator.cache import Cache, Resource
from decurion_operator.closures import Reach, reach
from decurion_operator.compiling import Answer, Compiling, Question
from decurion_operator.conditions import Reason
from decurion_operator.plan.definitions import Verdict, judge, plan_graph, plan_llm, summary, too_large
from decurion_operator.plan.run import SETTLE_SECONDS
from decurion_operator.queue import Key
from decurion_operator.secret_use import not_usable, secret_refs
from decurion_operator.writes import StatusWriter

_MAX_PARSED = 4096


@dataclass(frozen=True, slots=True)
class Assessment:
    """What is known of a graph with what it names. `answer` is None while the compiler works.

    `missing` are kinds and names (`LLM fast`) of what does not exist in its closure; `unready` those that cannot be
    used, with the reason.
    """

    answer: Answer | None
    missing: tuple[str, ...] = ()
    unready: Mapping[str, str] | None = None

    @property
    def verdict(self) -> Verdict | None:
        if self.answer is None:
            return None
        return judge(self.answer.compiled, missing=self.missing, unready=self.unready or {})


class Parser:
    """Findings of the parser for objects, remembered by generation. Parsing a spec of 96 KiB takes milliseconds."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, int], tuple[Finding, ...]] = OrderedDict()

    def findings(self, resource: Resource) -> tuple[Finding, ...]:
        identity = (resource.uid, resource.generation)
        if identity not in self._known:
            meta = {"name": resource.key.name, "namespace": resource.key.namespace}
            raw = {"apiVersion": API_VERSION, "kind": resource.key.kind, "metadata": meta, "spec": resource.spec}
            self._known[identity] = tuple(parse_resource(raw)[1])
            if len(self._known) > _MAX_PARSED:
                self._known.popitem(last=False)
        return self._known[identity]


class Definitions:
    """The reconciler of LLMs, MCPServers, Agents and TaskGraphs. `add` makes a key due."""

    def __init__(
        self,
        cache: Cache,
        compiling: Compiling,
        statuses: StatusWriter,
        parser: Parser,
        *,
        add: Callable[[Key], None],
        now: Callable[[], float],
    ) -> None:
        self._cache = cache
        self._compiling = compiling
        self._statuses = statuses
        self._parser = parser
        self._add = add
        self._now = now

    async def reconcile_endpoint(self, key: Key) -> float | None:
        """An LLM, MCPServer or Agent: valid in itself, and its Secrets can be used.

        What an Agent names is looked at where a graph uses it.
        """
        llm = self._cache.get(key)
        if llm is None:
            return None
        secret = secret_problem(self._cache, key.namespace, secret_refs(llm.spec))
        if secret and (wait := self._settling(llm)) is not None:
            return wait
        findings = () if llm.too_large else self._parser.findings(llm)
        await self._statuses.definition(llm, plan_llm(llm, findings=findings, secret=secret, now=self._now()))
        return None

    async def reconcile_graph(self, key: Key) -> float | None:
        graph = self._cache.get(key)
        for run in self._cache.referrers(key, "TaskGraphRun"):
            if run.phase == "Pending":
                self._add(run.key)
        if graph is None:
            return None
        bound = bound_by_uses(key.name, Namespace(self._cache, key.namespace))
        found = Assessment(None) if graph.too_large else self.assess(graph, bound, asker=key)
        if (found.missing or found.unready) and (wait := self._settling(graph)) is not None:
            return wait
        status = plan_graph(
            graph,
            compiled=found.answer.compiled if found.answer else None,
            missing=found.missing,
            unready=found.unready or {},
            now=self._now(),
        )
        if status is not None:
            await self._statuses.definition(graph, status)
        broken = found.answer is not None and found.answer.compiled.broken is not None
        return 60.0 if broken else None

    def assess(self, graph: Resource, swaps: Swaps, *, asker: Key) -> Assessment:
        """What the compiler says of `graph` with all that it names, `swaps` naming others for some of its names.

        When the answer is not there yet, `asker` is made due once it is.
        """
        closure = self.reach(graph, swaps)
        names = {
            "LLM": {ref: swaps.get(("LLM", ref), ref) for ref in sorted(closure.llms)},
            "TaskGraph": {ref: ref for ref in sorted(closure.graphs)},
            "MCPServer": {ref: swaps.get(("MCPServer", ref), ref) for ref in sorted(closure.servers)},
            "Agent": {ref: ref for ref in sorted(closure.agents)},
        }
        found: dict[str, dict[str, Resource]] = {kind: {} for kind in names}
        missing, unready = [], {}
        for kind, ref, name in [(kind, *pair) for kind, pairs in names.items() for pair in pairs.items()]:
            resource = self._cache.get(Key(kind, graph.key.namespace, name))
            if resource is None:
                missing.append(f"{kind} {name}")
                continue
            if problem := self._problem(resource):
                unready[f"{kind} {name}"] = problem
            if not resource.too_large and not _errors(self._parser.findings(resource)):
                found[kind][ref] = resource
        for ref in sorted(closure.typing):
            resource = self._cache.get(Key("MCPServer", graph.key.namespace, swaps.get(("MCPServer", ref), ref)))
            if resource is not None and not resource.too_large and not _errors(self._parser.findings(resource)):
                found["MCPServer"][ref] = resource
        known = {kind: self._around(graph.key, kind) for kind in names} if missing else {}
        question = Question(graph, found["LLM"], found["TaskGraph"], found["MCPServer"], found["Agent"], known)
        return Assessment(self._compiling.ask(question, asker), tuple(missing), unready)

    def reach(self, graph: Resource, swaps: Swaps) -> Reach:
        """What the closure of a graph names, as what it refers to is now, `swaps` naming others for some names."""

        def look(name: str) -> Mapping[str, Any] | None:
            other = self._cache.get(Key("TaskGraph", graph.key.namespace, name))
            return other.spec if other is not None else None

        def agent(name: str) -> Mapping[str, Any] | None:
            found = self._cache.get(Key("Agent", graph.key.namespace, name))
            return found.spec if found is not None else None

        def llm(name: str) -> Mapping[str, Any] | None:
            found = self._cache.get(Key("LLM", graph.key.namespace, swaps.get(("LLM", name), name)))
            return found.spec if found is not None else None

        return reach(graph.key.name, graph.spec, look, agent, llm)

    def _around(self, key: Key, kind: str) -> tuple[str, ...]:
        near = (one.key.name for one in self._cache.all(kind) if one.key.namespace == key.namespace and one.key != key)
        return tuple(sorted(near))

    def _problem(self, resource: Resource) -> str:
        if resource.too_large:
            return too_large(resource)
        if errors := _errors(self._parser.findings(resource)):
            return summary(errors)
        if resource.key.kind == "TaskGraph":
            return ""
        return secret_problem(self._cache, resource.key.namespace, secret_refs(resource.spec))

    def _settling(self, resource: Resource) -> float | None:
        """Seconds to wait before complaining about a new object: what it lacks is perhaps being applied after it."""
        age = self._now() - resource.created
        fresh = age < SETTLE_SECONDS and not (resource.status or {}).get("conditions")
        return SETTLE_SECONDS - age if fresh else None


class Namespace:
    """What there is around a graph of a namespace, as the cache knows it."""

    def __init__(self, cache: Cache, namespace: str) -> None:
        self._cache = cache
        self._namespace = namespace

    def needs(self, graph: str) -> Mapping[str, str]:
        found = self._cache.get(Key("TaskGraph", self._namespace, graph))
        return needs_of(found.spec) if found is not None else {}

    def uses(self, graph: str) -> Iterator[GraphUse]:
        key, needs = Key("TaskGraph", self._namespace, graph), self.needs(graph)
        for kind in ("TaskGraph", "Agent", "TaskGraphRun"):
            for one in sorted(self._cache.referrers(key, kind), key=lambda one: one.key):
                yield from uses_in(kind, one.key.name, one.spec, graph=graph, needs=needs)

    def exists(self, kind: str, name: str) -> bool:
        return self._cache.get(Key(kind, self._namespace, name)) is not None


def secret_problem(cache: Cache, namespace: str, refs: frozenset[Entry]) -> str:
    """What is wrong with the first Secret entry that cannot be used, or empty."""
    for name, key in sorted(refs):
        secret = cache.get(Key("Secret", namespace, name))
        if secret is None:
            return not_usable(name)
        if key not in secret.spec["keys"]:
            return not_usable(name, key)
    return ""


def _errors(findings: tuple[Finding, ...]) -> list[Finding]:
    return [f for f in findings if f.severity == "error"]


def graph_verdict(graph: Resource | None, name: str) -> Verdict | None:
    """What is wrong with a graph before anything is asked: it does not exist, or is too large. None when nothing is."""
    if graph is None:
        return Verdict(False, Reason.GRAPH_NOT_READY, f'TaskGraph "{name}" does not exist: apply it.')
    if graph.too_large:
        return Verdict(False, Reason.SPEC_TOO_LARGE, too_large(graph))
    return None

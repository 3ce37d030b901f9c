"""What the operator remembers of the cluster: trimmed records, and who refers to whom.

A record holds what planners read and nothing else: no managed fields, no annotations, never a run's `input` (it is read
again when the run is opened), never a Secret's values, and of a finished run only what its last writes need.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from sys import intern
from typing import Any, Final

import orjson

from decurion_crds.uses import agent_uses, fallback_of, swaps_of, uses
from decurion_crds.v1alpha1 import MAX_SPEC_BYTES, TERMINAL_PHASES
from decurion_operator.conditions import seconds_of
from decurion_operator.pruned import pruned_fields
from decurion_operator.queue import Key
from decurion_operator.secret_use import secret_refs

JsonObject = dict[str, Any]

DEFAULT_POOL: Final = "default"
_CONTROL_FIELDS = ("graph", "pool", "cancel", "suspend", "ttlSecondsAfterFinished", "priority")
_FINISHED_FIELDS = ("observedGeneration", "phase", "reason", "graphDigest", "finishedAt", "conditions")
_MANAGED_BY = "app.kubernetes.io/managed-by"
GITOPS_MARKS = frozenset(
    {
        "argocd.argoproj.io/instance",
        "argocd.argoproj.io/tracking-id",
        "app.kubernetes.io/instance",  # what Argo CD before 3.0 marks objects with, alone
        "kustomize.toolkit.fluxcd.io/name",
        "helm.toolkit.fluxcd.io/name",
        "meta.helm.sh/release-name",
    }
)
LIVE_PHASES: Final = frozenset({"Pending", "Queued", "Running", "Suspended"})


@dataclass(frozen=True, slots=True)
class Resource:
    """One object of the cluster, trimmed.

    `spec_bytes` is the size of its spec, `object_bytes` of the whole, both as compact JSON. `status` is None where the
    object has none. `created` is in Unix seconds. `managed` says that a GitOps tool or Helm tracks the object.
    `dropped` says what was applied and not kept, one sentence for each field.
    """

    key: Key
    uid: str
    version: str
    generation: int
    created: float
    deleting: bool
    managed: bool
    spec_bytes: int
    object_bytes: int
    spec: Mapping[str, Any]
    status: Mapping[str, Any] | None
    dropped: tuple[str, ...] = ()

    @property
    def phase(self) -> str:
        """The phase of a run; `Pending` while it has none."""
        return str((self.status or {}).get("phase") or "Pending")

    @property
    def finished(self) -> bool:
        return self.phase in TERMINAL_PHASES

    @property
    def parked(self) -> bool:
        """Whether a run executes nothing since it waits for people, or is suspended: it holds no slot of its pool."""
        if self.phase == "Suspended":
            return True
        return self.phase == "Running" and (self.status or {}).get("reason") == "AwaitingApproval"

    @property
    def resuming(self) -> bool:
        """Whether a run that was suspended is to go on, or to begin."""
        return self.phase == "Suspended" and not self.spec.get("suspend")

    @property
    def pool(self) -> Key:
        """The WorkerPool of a run."""
        return Key("WorkerPool", self.key.namespace, str(self.spec.get("pool") or DEFAULT_POOL))

    @property
    def graph(self) -> Key:
        """The TaskGraph of a run."""
        return Key("TaskGraph", self.key.namespace, str(self.spec.get("graph") or ""))

    @property
    def too_large(self) -> bool:
        return self.spec_bytes > MAX_SPEC_BYTES


def trim(kind: str, raw: Mapping[str, Any]) -> Resource:
    """The record of an object as the API server gives it."""
    meta = raw["metadata"]
    labels, annotations = meta.get("labels") or {}, meta.get("annotations") or {}
    managed = bool(GITOPS_MARKS & (labels.keys() | annotations.keys())) or labels.get(_MANAGED_BY) == "Helm"
    spec = raw.get("spec") or {}
    spec_bytes = len(orjson.dumps(spec))
    key = Key(kind, intern(meta.get("namespace") or ""), meta["name"])
    resource = Resource(
        key=key,
        uid=meta["uid"],
        version=meta["resourceVersion"],
        generation=int(meta.get("generation") or 0),
        created=seconds_of(meta.get("creationTimestamp")) or 0.0,
        deleting="deletionTimestamp" in meta,
        managed=managed,
        spec_bytes=spec_bytes,
        object_bytes=len(orjson.dumps(raw)),
        spec=_spec(kind, raw, oversized=spec_bytes > MAX_SPEC_BYTES),
        status=raw.get("status"),
        dropped=() if kind == "Secret" else pruned_fields(kind, raw),
    )
    if kind == "TaskGraphRun" and resource.finished:
        status = resource.status or {}
        kept = {name: _shared(status[name]) for name in _FINISHED_FIELDS if name in status}
        return replace(resource, spec=_shared(resource.spec), status=kept)
    return resource


def _shared(value: Any) -> Any:
    """`value` with its texts shared between all objects that hold the same: finished runs say the same words, and
    there may be ten thousand of them.
    """
    if isinstance(value, str):
        return intern(value)
    if isinstance(value, dict):
        return {name: _shared(inner) for name, inner in value.items()}
    return [_shared(inner) for inner in value] if isinstance(value, list) else value


def _spec(kind: str, raw: Mapping[str, Any], *, oversized: bool) -> JsonObject:
    if kind == "Secret":
        return {"keys": sorted(raw.get("data") or ())}
    spec = raw.get("spec") or {}
    if kind == "TaskGraphRun":
        return {k: v for k, v in spec.items() if k != "input" and (not oversized or k in _CONTROL_FIELDS)}
    return {} if oversized else dict(spec)


def _links(resource: Resource) -> frozenset[Key]:
    """The objects that `resource` refers to: a change of one of them makes it due."""
    kind, namespace, _ = resource.key
    if kind == "Approval":
        return frozenset()
    if kind == "TaskGraphRun":
        swapped = {Key(of, namespace, name) for (of, _), name in swaps_of(resource.spec).items()}
        return frozenset({resource.graph, resource.pool, *swapped})
    if kind in ("TaskGraph", "Agent"):
        named = (uses if kind == "TaskGraph" else agent_uses)(resource.spec)
        llms = (Key("LLM", namespace, name) for name in named.llms | named.bound)
        servers = (Key("MCPServer", namespace, name) for name in named.servers | named.bound)
        agents = (Key("Agent", namespace, name) for name in named.agents)
        graphs = (Key("TaskGraph", namespace, ref) for ref, _ in named.graphs)
        return frozenset({*llms, *servers, *agents, *graphs})
    secrets = frozenset(Key("Secret", namespace, name) for name, _ in secret_refs(resource.spec))
    other = fallback_of(resource.spec) if kind == "LLM" else None
    return secrets if other is None else secrets | {Key("LLM", namespace, other)}


class Cache:
    """The trimmed objects by key, with the reverse of their references. For one event loop; not thread-safe."""

    def __init__(self) -> None:
        self._objects: dict[str, dict[Key, Resource]] = defaultdict(dict)
        self._referrers: dict[Key, set[Key]] = defaultdict(set)
        self._by_uid: dict[str, Key] = {}

    def get(self, key: Key) -> Resource | None:
        return self._objects[key.kind].get(key)

    def by_uid(self, uid: str) -> Resource | None:
        """The run with that uid."""
        key = self._by_uid.get(uid)
        return self.get(key) if key else None

    def all(self, kind: str) -> Iterator[Resource]:
        return iter(tuple(self._objects[kind].values()))

    def referrers(self, key: Key, kind: str) -> list[Resource]:
        """The objects of `kind` that refer to `key`, whether or not that exists."""
        found = (self.get(k) for k in tuple(self._referrers.get(key, ())) if k.kind == kind)
        return [r for r in found if r is not None]

    def bound(self, resource: Resource) -> frozenset[Key]:
        """The TaskGraphs with needs that a resource uses and may bind."""
        if resource.key.kind == "TaskGraphRun" and not swaps_of(resource.spec):
            return frozenset()
        targets = (key for key in _links(resource) if key.kind == "TaskGraph")
        return frozenset(key for key in targets if (graph := self.get(key)) is not None and graph.spec.get("needs"))

    def users(self, key: Key) -> list[Resource]:
        """The TaskGraphs whose closure `key` belongs to, by whatever way, each once."""
        found: dict[Key, Resource] = {}
        due, seen = [key], set[Key]()
        while due:
            at = due.pop()
            between = [one.key for kind in ("Agent", "LLM") for one in self.referrers(at, kind) if one.key not in seen]
            seen.update(between)
            due += between
            for graph in self.referrers(at, "TaskGraph"):
                if graph.key not in found and graph.key != key:
                    found[graph.key] = graph
                    due.append(graph.key)
        return list(found.values())

    def falling_back(self, key: Key) -> list[Key]:
        """The LLM of this key, and those that come to ask it when they cannot answer."""
        found = [key]
        for at in found:
            found += [one.key for one in self.referrers(at, "LLM") if one.key not in found]
        return found

    def put(self, resource: Resource, *, certain: bool = False) -> bool:
        """Remember `resource`. False, and nothing changes, when what is known is as new or newer.

        `certain` takes it even when it looks older, as after the cluster's store was restored from a backup.
        """
        known = self.get(resource.key)
        if known is not None:
            if known.version == resource.version or (not certain and _older(resource.version, known.version)):
                return False
            self._unlink(known)
        self._objects[resource.key.kind][resource.key] = resource
        if resource.key.kind == "TaskGraphRun":
            self._by_uid[resource.uid] = resource.key
        for target in _links(resource):
            self._referrers[target].add(resource.key)
        return True

    def remove(self, key: Key, *, uid: str) -> Resource | None:
        """Forget the object if it is the one with `uid`, and return it."""
        known = self.get(key)
        if known is None or known.uid != uid:
            return None
        self._unlink(known)
        del self._objects[key.kind][key]
        return known

    def _unlink(self, known: Resource) -> None:
        if self._by_uid.get(known.uid) == known.key:
            del self._by_uid[known.uid]
        for target in _links(known):
            self._referrers[target].discard(known.key)
            if not self._referrers[target]:
                del self._referrers[target]


def _older(version: str, than: str) -> bool:
    """Whether a resource version precedes another. Versions of one API server are decimal numbers that grow; where one
    is not, nothing is older: the version test of a write decides then."""
    return version.isdecimal() and than.isdecimal() and int(version) < int(than)

"""One node alone: run with a given snapshot instead of the graph around it, in memory, with nothing else started.

The node is put into a graph of its own whose other nodes only give what the snapshot says of them, and that graph runs
as any graph does. So every kind of node is what it is in a run: its checks, its tries, its templates.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from decurion_crds.canonical import Json
from decurion_crds.compiled import FINALLY, CompiledGraph, Expr, Limits, Load, Node, Schema, Scope
from decurion_crds.errors import InputError
from decurion_crds.findings import did_you_mean, listed
from decurion_crds.seen import Seen
from decurion_ledger import Record, SealKey, Values, key_of, open_store, read_log
from decurion_worker.embedded import run_embedded
from decurion_worker.opening import OpenRequest
from decurion_worker.snapshot import ENDS, PARTS, Snapshot, SnapshotRefused

__all__ = ["AllSeen", "NoSuchNode", "Outcome", "SnapshotRefused", "alone", "find", "rehearse"]

AllSeen = Mapping[tuple[str, str], Seen]
"""What each node sees, by scope (empty for the root) and node."""

_GIVEN = "$given"
_RUN = "rehearsal"
_NOTHING: AllSeen = MappingProxyType({})
_places = itertools.count()


class NoSuchNode(InputError):
    def __init__(self, wanted: str, known: Collection[str]) -> None:
        meant = did_you_mean(wanted, known)
        hint = f'did you mean "{meant}"?' if meant else f"the nodes are {listed(sorted(known))}"
        super().__init__(f'there is no node "{wanted}"; {hint}')


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of the node. `attempts` are its failed tries, and those of nodes inside it, in the order of the log;
    `left_out` are the parts of the node that the snapshot did not allow to evaluate.
    """

    node: str
    kind: str
    status: str
    output: Json = None
    writes: dict[str, Json] = field(default_factory=dict)
    failure: dict[str, Json] | None = None
    attempts: list[dict[str, Json]] = field(default_factory=list)
    usage: dict[str, Json] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Json]:
        """What is not empty; `output` and `status` always."""
        names = ("failure", "writes", "attempts", "usage", "left_out")
        more = {("leftOut" if name == "left_out" else name): getattr(self, name) for name in names}
        kept = {name: value for name, value in more.items() if value}
        return {"node": self.node, "kind": self.kind, "status": self.status, "output": self.output} | kept


def find(graph: CompiledGraph, path: str) -> tuple[Scope, Node]:
    """The node at a dotted path: `check`, `extractOne.read` by its template, or `extract.read` by the node that runs
    the template; `finally.tell`, and `extractOne.finally.tell`, of what runs at the end. Raises `NoSuchNode`.
    """
    found = _found(graph, path)
    return found.scope, found.node


class _Found(NamedTuple):
    """A node with its scope, by what name that goes in the graph; of a node of `finally` also the scope whose end that
    is.
    """

    scope: Scope
    node: Node
    name: str
    outer: Scope | None


def _found(graph: CompiledGraph, path: str) -> _Found:
    *above, name = path.split(".")
    scope, scope_name, outer = graph.root, "", None
    for step in above:
        node, final = scope.by_name.get(step), FINALLY if scope is graph.root else scope.final
        template = node.template if node is not None else step if scope is graph.root else None
        if step == FINALLY:
            template, outer = final, scope
        if template is None or template not in graph.templates:
            raise NoSuchNode(path, _paths(graph))
        scope, scope_name, outer = graph.templates[template], template, outer if step == FINALLY else None
    if name not in scope.by_name:
        raise NoSuchNode(path, _paths(graph))
    return _Found(scope, scope.by_name[name], scope_name, outer)


def _paths(graph: CompiledGraph) -> list[str]:
    inside = [
        f"{name.replace('/', '.')}.{node.name}" for name, scope in graph.templates.items() for node in scope.nodes
    ]
    return [*(node.name for node in graph.root.nodes), *inside]


def alone(
    graph: CompiledGraph, path: str, given: Mapping[str, Json], *, seen: AllSeen = _NOTHING
) -> tuple[CompiledGraph, Snapshot, list[str]]:
    """A graph of one node, its snapshot, and what of the node is left out. Raises `NoSuchNode`, `SnapshotRefused`.

    `given` has values of `with` by name, and of the scope as `input`, `nodes: {NAME: {output: …}}`, `state` and
    `run`. A name of `with` that it has is not evaluated. `seen` is what the compiler says beside the graph.
    """
    scope, node, name, outer = _found(graph, path)
    around = {**(outer.by_name if outer is not None else {}), **scope.by_name}
    del around[node.name]
    snapshot = Snapshot(node, scope, around, given, path=path, seen=seen.get((name, node.name)))
    own, left_out = _own(path, node, snapshot)
    snapshot.settle()
    fakes = [_fake(name, around[name], snapshot.nodes[name]) for name in snapshot.nodes]
    order = (*(fake.name for fake in fakes), own.name)
    before = tuple(name for name in order[:-1] if any(_reads_node(read, name) for read in own.reads))
    own = own.model_copy(update={"after": before, "control": (), "choice": None, "join": None, "parents": before})
    types = seen[name, node.name].names if (name, node.name) in seen else {}
    with_ = {name: types.get(name, {}) for name in snapshot.given}
    root = Scope(
        inputSchema=_record(
            {**_properties(scope), _GIVEN: _record({"with": _record(with_), "nodes": _record(_outputs(fakes))})},
            [*snapshot.input, _GIVEN],
        ),
        channels=snapshot.channels(),
        nodes=(*fakes, own),
        order=order,
        output={} if own.kind == "switch" else {"output": _path("nodes", own.name, "output")},
        outputSchema=_record({} if own.kind == "switch" else {"output": _or_none(own.output)}),
        leaf=False,
        sealedInput=False,
        sealedOutput=False,
    )
    templates = {name: one for name, one in graph.templates.items() if name != FINALLY}
    whole = graph.model_copy(update={"root": root, "templates": templates, "limits": Limits()})
    return whole, snapshot, left_out


def _properties(scope: Scope) -> dict[str, Schema]:
    found: dict[str, Schema] = scope.input_schema.get("properties", {})
    return found


def _outputs(fakes: Iterable[Node]) -> dict[str, Schema]:
    return {fake.name: fake.output for fake in fakes}


def _record(fields: Mapping[str, Schema], required: Iterable[str] | None = None) -> Schema:
    """An object whose members keep their None, of the fields `required` (all where not said)."""
    return {"type": "object", "properties": dict(fields), "required": list(fields if required is None else required)}


def _or_none(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _reads_node(read: str, name: str) -> bool:
    return read == "nodes" or f"{read}.".startswith(f"nodes.{name}.")


def _path(*steps: str) -> Expr:
    py = steps[0] + "".join(f"[{step!r}]" for step in steps[1:])
    return Expr(src=".".join(steps), py=py, reads=(".".join(steps),), path=steps)


def _fake(name: str, real: Node, output: Json) -> Node:
    """A node that gives `output`, which the snapshot has for `real`."""
    return Node.model_validate(
        {
            "name": name,
            "kind": "transform",
            "reads": (f"input.{_GIVEN}.nodes.{name}",),
            "with": {"value": _path("input", _GIVEN, "nodes", name)},
            "transform": {"$value": _path("value")},
            "output": real.output if output is not None else {},
            "timeoutSeconds": real.timeout_seconds,
            "digest": real.digest,
        }
    )


def _own(path: str, node: Node, snapshot: Snapshot) -> tuple[Node, list[str]]:
    """The node with its given names in place, without the parts that read what is not there."""
    with_: dict[str, Expr] = {}
    for name, expr in node.with_.items():
        with_[name] = _path("input", _GIVEN, "with", name) if name in snapshot.given else expr
        if not snapshot.has(name) and (lack := snapshot.lacks(expr.reads)):
            snapshot.refuse("", f"the snapshot has neither {name} nor {lack}, from which it comes; add one of them")
    load = _own_files(node, snapshot)
    with_ |= {name: _path("input", _GIVEN, "with", name) for name in node.load if name not in load}
    left_out: list[str] = []
    update: dict[str, Any] = {"with_": with_, "load": load}
    if node.when is not None and snapshot.lacks(node.when.reads):
        update["when"] = None
        left_out.append("when")
    if node.otherwise is not None and any(snapshot.lacks(expr.reads) for expr in node.otherwise.values()):
        update |= {"otherwise": None, "on_failure": "fail"}
        left_out.append("otherwise")
    writes = {name: expr for name, expr in node.writes.items() if not snapshot.lacks(expr.reads)}
    left_out += [f"writes.{name}" for name in node.writes if name not in writes]
    update["writes"] = writes
    kept = {*_reads([*with_.values(), *_files(load)]), *_reads(writes.values())}
    dropped = {*_reads([*node.with_.values(), *_files(node.load)]), *_reads(node.writes.values())}
    for part in ("when", "otherwise"):
        exprs = getattr(node, part)
        one = [exprs] if isinstance(exprs, Expr) else list((exprs or {}).values())
        dropped |= _reads(one)
        kept |= _reads(one) if part not in left_out else set()
    control = {read for read in node.reads if read not in dropped and not _covered(read, dropped)}
    if lack := snapshot.lacks(control):
        snapshot.refuse("", f"the snapshot lacks {lack}, which the block of {path} reads; add it")
    update["reads"] = tuple(sorted(control | {read for read in kept if read.partition(".")[0] in PARTS}))
    return node.model_copy(update=update), left_out


def _own_files(node: Node, snapshot: Snapshot) -> dict[str, Load]:
    """What the node loads itself: the names that are not given."""
    load = {name: file for name, file in node.load.items() if name not in snapshot.given}
    for name, file in load.items():
        if not snapshot.has(name) and (lack := snapshot.lacks(file.from_.reads)):
            snapshot.refuse("", f"the snapshot has neither {name} nor {lack}, which says its file; add one of them")
    return load


def _covered(read: str, others: Iterable[str]) -> bool:
    """Whether `read` stands for longer paths that are among `others`."""
    return any(other.startswith(f"{read}.") for other in others)


def _files(load: Mapping[str, Load]) -> list[Expr]:
    return [one.from_ for one in load.values()]


def _reads(exprs: Iterable[Expr]) -> set[str]:
    return {read for expr in exprs for read in expr.reads}


async def rehearse(
    graph: CompiledGraph,
    path: str,
    given: Mapping[str, Json],
    *,
    seen: AllSeen = _NOTHING,
    secrets: Callable[[CompiledGraph], Mapping[tuple[str, str], str]] = lambda graph: {},
    base: str = "",
) -> Outcome:
    """Run the node at `path` with `given` as its snapshot. A node that fails is an outcome, not an exception.

    `seen` is what the compiler says of the nodes beside the graph, by scope and node; without it values of `with` may
    be anything. `base` is the folder of relative paths to files. Raises `NoSuchNode`, `SnapshotRefused`.
    """
    whole, snapshot, left_out = alone(graph, path, given, seen=seen)
    node = whole.root.nodes[-1]
    place = f"memory://rehearsal-{next(_places)}"
    run = snapshot.run.get("id") or _RUN
    inputs: Json = {**snapshot.input, _GIVEN: {"with": snapshot.given, "nodes": snapshot.nodes}}
    facts = {name: value for name, value in snapshot.run.items() if name in ENDS}
    request = OpenRequest(
        run=run,
        name=whole.name,
        graph=whole,
        input=inputs,
        base=base,
        scheduled_at=snapshot.run.get("scheduledAt", ""),
        facts=facts,
    )
    store = open_store(place)
    by = SealKey.generate()
    end = await run_embedded(request, ledger=place, secrets=secrets, store=store, seal_key=lambda make: by)
    values = Values(store, run, seal=await key_of(store, run, by) if whole.sealed else None)
    log = [record async for _, record in read_log(store, run)]
    own = [record for record in log if record.path == f"/{node.name}" and record.core is not None]
    failures = end.projection.get("failures") or []
    failed = end.projection["phase"] != "Succeeded"
    return Outcome(
        node=path,
        kind=node.kind,
        status="failed" if failed else "skipped" if any(record.type == "skip" for record in own) else "ok",
        output=await _output(values, own, node, end.output),
        writes=await _writes(values, own),
        failure=_failure(failures[0] if failures else end.projection) if failed else None,
        attempts=[_attempt(record) for record in log if record.type == "attempt_failed"],
        usage=end.projection.get("usage") or {},
        left_out=left_out,
    )


async def _output(values: Values, own: list[Record], node: Node, output: Json) -> Json:
    if node.kind != "switch":
        return output.get("output") if isinstance(output, Mapping) else None
    core = own[-1].core if own else None
    return await values.unpack(own[-1].envelope, core["delta"]) if core is not None and core["delta"] else None


async def _writes(values: Values, own: list[Record]) -> dict[str, Json]:
    found: dict[str, Json] = {}
    for record in own:
        for channel, name in (record.core or {}).get("writes") or ():
            found[channel] = await values.load(await values.unpack(record.envelope, name))
    return found


def _failure(shown: Mapping[str, Json]) -> dict[str, Json]:
    return {name: shown[name] for name in ("path", "class", "code", "reason", "message") if shown.get(name)}


def _attempt(record: Record) -> dict[str, Json]:
    hidden = ("run", "lease", "worker", "values", "at")
    return {"path": record.path} | {name: value for name, value in record.envelope.items() if name not in hidden}

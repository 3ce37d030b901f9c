"""One node alone: run with a given snapshot instead of the graph around it, in memory, with nothing else started.

The node is put into a graph of its own whose other nodes only give what the snapshot says of them, and that graph runs
as any graph does. So every kind of node is what it is in a run: its checks, its tries, its templates.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from decurion_crds.canonical import Json
from decurion_crds.compiled import FINALLY, Channel, CompiledGraph, Expr, Limits, Load, Node, Scope
from decurion_crds.errors import InputError, OutputMismatch, ValueRefused
from decurion_crds.findings import did_you_mean, listed
from decurion_crds.values import Validator, normalise
from decurion_ledger import Record, SealKey, Values, key_of, open_store, read_log
from decurion_worker.embedded import run_embedded
from decurion_worker.opening import OpenRequest

SCOPE = ("input", "nodes", "state", "run")
_GIVEN = "$given"
_ENDS = ("outcome", "failure")
"""What `run` has in `finally` beside what it has everywhere."""
_RUN = "rehearsal"
_places = itertools.count()


class NoSuchNode(InputError):
    def __init__(self, wanted: str, known: Collection[str]) -> None:
        meant = did_you_mean(wanted, known)
        hint = f'did you mean "{meant}"?' if meant else f"the nodes are {listed(sorted(known))}"
        super().__init__(f'there is no node "{wanted}"; {hint}')


class SnapshotRefused(InputError):
    """A snapshot lacks what the node reads, has what nobody reads, or breaks a schema. The text names the place."""


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
    scope, node, _ = _found(graph, path)
    return scope, node


def _found(graph: CompiledGraph, path: str) -> tuple[Scope, Node, Scope | None]:
    """The node with its scope; of a node of `finally` also the scope whose end that is."""
    *above, name = path.split(".")
    scope, outer = graph.root, None
    for step in above:
        node, final = scope.by_name.get(step), FINALLY if scope is graph.root else scope.final
        template = node.template if node is not None else step if scope is graph.root else None
        if step == FINALLY:
            template, outer = final, scope
        if template is None or template not in graph.templates:
            raise NoSuchNode(path, _paths(graph))
        scope, outer = graph.templates[template], outer if step == FINALLY else None
    if name not in scope.by_name:
        raise NoSuchNode(path, _paths(graph))
    return scope, scope.by_name[name], outer


def _paths(graph: CompiledGraph) -> list[str]:
    inside = [
        f"{name.replace('/', '.')}.{node.name}" for name, scope in graph.templates.items() for node in scope.nodes
    ]
    return [*(node.name for node in graph.root.nodes), *inside]


def alone(graph: CompiledGraph, path: str, snapshot: Mapping[str, Json]) -> tuple[CompiledGraph, Json, list[str]]:
    """A graph of one node, its input, and what of the node is left out. Raises `NoSuchNode`, `SnapshotRefused`.

    `snapshot` has values of `with` by name, and of the scope as `input`, `nodes: {NAME: {output: …}}`, `state` and
    `run`. A name of `with` that it has is not evaluated.
    """
    scope, node, outer = _found(graph, path)
    around = {**(outer.by_name if outer is not None else {}), **scope.by_name}
    own_names = [*node.with_, *node.load]
    known = [*own_names, *SCOPE]
    for name in snapshot:
        if name not in known:
            meant = did_you_mean(name, known)
            hint = f'did you mean "{meant}"?' if meant else f"it may have {listed(known)}"
            raise SnapshotRefused(f'the snapshot has "{name}", which {path} does not read; {hint}')
    given = {name: normal for name in own_names if name in snapshot and (normal := _plain(name, snapshot)) is not ...}
    scoped = _Scoped(scope, around, {name: snapshot.get(name) or {} for name in SCOPE})
    own, left_out = _own(path, node, given, scoped)
    fakes = [_fake(name, around[name]) for name in scoped.nodes]
    order = (*(fake.name for fake in fakes), own.name)
    before = tuple(name for name in order[:-1] if any(_reads_node(read, name) for read in own.reads))
    own = own.model_copy(update={"after": before, "control": (), "choice": None, "join": None, "parents": before})
    root = Scope(
        inputSchema={"type": "object"},
        channels=scoped.channels(),
        nodes=(*fakes, own),
        order=order,
        output={} if own.kind == "switch" else {"output": _path("nodes", own.name, "output")},
        outputSchema={},
        leaf=False,
        sealedInput=False,
        sealedOutput=False,
    )
    templates = {name: one for name, one in graph.templates.items() if name != FINALLY}
    whole = graph.model_copy(update={"root": root, "templates": templates, "limits": Limits()})
    return whole, {**scoped.input, _GIVEN: {"with": given, "nodes": scoped.nodes}}, left_out


def _plain(name: str, snapshot: Mapping[str, Json]) -> Json:
    try:
        return normalise(snapshot[name])
    except ValueRefused as refused:
        raise SnapshotRefused(f"{name} of the snapshot: {refused}") from refused


def _reads_node(read: str, name: str) -> bool:
    return read == "nodes" or f"{read}.".startswith(f"nodes.{name}.")


def _path(*steps: str) -> Expr:
    py = steps[0] + "".join(f"[{step!r}]" for step in steps[1:])
    return Expr(src=".".join(steps), py=py, reads=(".".join(steps),), path=steps)


def _fake(name: str, real: Node) -> Node:
    """A node that gives what the snapshot says of `real`."""
    return Node.model_validate(
        {
            "name": name,
            "kind": "transform",
            "reads": (f"input.{_GIVEN}.nodes.{name}",),
            "with": {"value": _path("input", _GIVEN, "nodes", name)},
            "transform": {"$value": _path("value")},
            "output": {},
            "timeoutSeconds": real.timeout_seconds,
            "digest": real.digest,
        }
    )


class _Scoped:
    """What a snapshot says of the scope, checked against its schemas."""

    def __init__(self, scope: Scope, nodes: Mapping[str, Node], given: Mapping[str, Json]) -> None:
        self._scope = scope
        for name, value in given.items():
            if not isinstance(value, Mapping):
                raise SnapshotRefused(f"{name} of the snapshot is an object of names; write {name}: {{NAME: …}}")
        fields: Mapping[str, Any] = scope.input_schema.get("properties", {})
        self.input = {
            name: _checked(f"input.{name}", value, _known("input", name, fields))
            for name, value in given["input"].items()
        }
        channels = {channel.name: channel.schema_ for channel in scope.channels}
        self.state = {
            name: _checked(f"state.{name}", value, _known("state", name, channels))
            for name, value in given["state"].items()
        }
        outputs = {name: node.output for name, node in nodes.items()}
        self.nodes: dict[str, Json] = {}
        for name, value in given["nodes"].items():
            schema = _known("nodes", name, outputs)
            if value is not None and (not isinstance(value, Mapping) or value.keys() != {"output"}):
                raise SnapshotRefused(f"nodes.{name} of the snapshot has its output alone; write {name}: {{output: …}}")
            output = value["output"] if value is not None else None
            self.nodes[name] = None if output is None else _checked(f"nodes.{name}.output", output, schema)
        self.run = dict(given["run"])

    def channels(self) -> tuple[Channel, ...]:
        return tuple(
            channel.model_copy(update={"initial": self.state[channel.name]}) if channel.name in self.state else channel
            for channel in self._scope.channels
        )

    def lacks(self, reads: Iterable[str]) -> str:
        """The first of `reads` that nothing is given for; empty when there is none."""
        for read in sorted(reads):
            root, _, rest = read.partition(".")
            name = rest.partition(".")[0]
            if root == "nodes" and name not in self.nodes:
                return f"nodes.{name}"
            if root == "input" and name and name not in self.input and name in self._required:
                return f"input.{name}"
            if root == "state" and name and name not in self.state and self._empty(name):
                return f"state.{name}"
            if root == "run" and name in _ENDS and name not in self.run:
                return f"run.{name}"
        return ""

    @property
    def _required(self) -> Collection[str]:
        required: list[str] = self._scope.input_schema.get("required", [])
        return required

    def _empty(self, name: str) -> bool:
        return any(c.name == name and c.initial is None and c.merge == "replace" for c in self._scope.channels)


def _known(what: str, name: str, schemas: Mapping[str, Any]) -> dict[str, Any]:
    if name not in schemas:
        meant = did_you_mean(name, schemas)
        others = f"there are {listed(schemas)}" if schemas else f"it has no {what}"
        hint = f'did you mean "{meant}"?' if meant else others
        raise SnapshotRefused(
            f"the snapshot has {what}.{name}, and where the node stands there is no such name; {hint}"
        )
    found: dict[str, Any] = schemas[name]
    return found


def _checked(where: str, value: Json, schema: Mapping[str, Any]) -> Json:
    try:
        normal = normalise(value, schema)
        Validator(dict(schema)).check(normal)
    except (OutputMismatch, ValueRefused) as error:
        raise SnapshotRefused(f"{where} of the snapshot is not what the graph has there: {error}") from error
    return normal


def _own(path: str, node: Node, given: Mapping[str, Json], scoped: _Scoped) -> tuple[Node, list[str]]:
    """The node with its given names in place, without the parts that read what is not there."""
    with_: dict[str, Expr] = {}
    for name, expr in node.with_.items():
        with_[name] = _path("input", _GIVEN, "with", name) if name in given else expr
        if name not in given and (lack := scoped.lacks(expr.reads)):
            raise SnapshotRefused(f"the snapshot has neither {name} nor {lack}, from which it comes; add one of them")
    load = _own_files(node, given, scoped)
    with_ |= {name: _path("input", _GIVEN, "with", name) for name in node.load if name not in load}
    left_out: list[str] = []
    update: dict[str, Any] = {"with_": with_, "load": load}
    if node.when is not None and scoped.lacks(node.when.reads):
        update["when"] = None
        left_out.append("when")
    if node.otherwise is not None and any(scoped.lacks(expr.reads) for expr in node.otherwise.values()):
        update |= {"otherwise": None, "on_failure": "fail"}
        left_out.append("otherwise")
    writes = {name: expr for name, expr in node.writes.items() if not scoped.lacks(expr.reads)}
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
    if lack := scoped.lacks(control):
        raise SnapshotRefused(f"the snapshot lacks {lack}, which the block of {path} reads; add it")
    update["reads"] = tuple(sorted(control | {read for read in kept if read.partition(".")[0] in SCOPE}))
    return node.model_copy(update=update), left_out


def _own_files(node: Node, given: Mapping[str, Json], scoped: _Scoped) -> dict[str, Load]:
    """What the node loads itself: the names that are not given."""
    load = {name: file for name, file in node.load.items() if name not in given}
    for name, file in load.items():
        if lack := scoped.lacks(file.from_.reads):
            raise SnapshotRefused(f"the snapshot has neither {name} nor {lack}, which says its file; add one of them")
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
    snapshot: Mapping[str, Json],
    *,
    secrets: Callable[[CompiledGraph], Mapping[tuple[str, str], str]] = lambda graph: {},
    base: str = "",
) -> Outcome:
    """Run the node at `path` with `snapshot`. A node that fails is an outcome, not an exception.

    Raises `NoSuchNode`, `SnapshotRefused`. `base` is the folder of relative paths to files.
    """
    whole, given, left_out = alone(graph, path, snapshot)
    node = whole.root.nodes[-1]
    place = f"memory://rehearsal-{next(_places)}"
    at = (snapshot.get("run") or {}).get("scheduledAt", "")
    facts = {name: value for name, value in (snapshot.get("run") or {}).items() if name in _ENDS}
    request = OpenRequest(run=_RUN, name=whole.name, graph=whole, input=given, base=base, scheduled_at=at, facts=facts)
    store = open_store(place)
    by = SealKey.generate()
    end = await run_embedded(request, ledger=place, secrets=secrets, store=store, seal_key=lambda make: by)
    values = Values(store, _RUN, seal=await key_of(store, _RUN, by) if whole.sealed else None)
    log = [record async for _, record in read_log(store, _RUN)]
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

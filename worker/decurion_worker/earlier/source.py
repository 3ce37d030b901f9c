"""Reading the log of an earlier run, and bringing what holds of it into the log of a new one.

The new log is whole by itself: each result that was taken is a result of the new run, with the same core and hash; its
envelope says `from` which run and slot it is, and holds its values or the names of their blobs. What it cost was paid
there, and is not counted again. `genesis` names the earlier run, its last slot and its state hash, and how many results
are taken, so that a driver that comes in between goes on with the rest.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Literal, NamedTuple

from decurion_crds.canonical import Json
from decurion_crds.compiled import CompiledGraph, Node
from decurion_ledger import LedgerPath, Record, Seal, Store, Values, read_log, vhash
from decurion_ledger.errors import BadPath, RunDeleted, RunNotFound
from decurion_ledger.patience import Patience
from decurion_ledger.workspace import Version
from decurion_worker.earlier.select import Races, Seen, is_final, select
from decurion_worker.engine.environment import prune
from decurion_worker.errors import (
    EarlierCollected,
    EarlierDiffers,
    EarlierMissing,
    EarlierOpen,
    NothingFailed,
    PathNotRun,
)
from decurion_worker.runkeys import RunKeys

NO_KEYS = RunKeys()
Mode = Literal["retry", "fork"]
AT_ONCE = 1000
"""Results that are brought over in one go."""
_SHOWN = 2000
"""Paths among which one is looked for that somebody may have meant."""
_CARRIED = ("values", "message", "said", "failed_at", "arms", "best", "model", "fallback", "request", "workspace")
"""What of an envelope belongs to the result, and not to how it was come by."""


@dataclass(frozen=True, slots=True)
class Earlier:
    """The run that a new one is to take results of. `path` is what a fork runs again; a retry has none."""

    run: str
    mode: Mode
    path: str = ""


class Taking(NamedTuple):
    """What is taken of an earlier run: the paths of results, and the note of it in the new run's `genesis`."""

    run: str
    paths: frozenset[str]
    note: dict[str, Json]

    async def rest(
        self, store: Store, run: str, *, taken: int, at: str, worker: str
    ) -> AsyncGenerator[list[Record], None]:
        """The results to commit in `run`, in the order of the earlier log, behind the first `taken`; in groups."""
        group: list[Record] = []
        async with aclosing(read_log(store, self.run)) as log:
            async for slot, record in log:
                if record.core is None or record.path not in self.paths:
                    continue
                if taken > 0:
                    taken -= 1
                    continue
                kept = {name: value for name, value in record.envelope.items() if name in _CARRIED}
                origin: Json = {"run": self.run, "slot": slot}
                group.append(replace(record, envelope={"run": run, "from": origin, "at": at, "worker": worker, **kept}))
                if len(group) >= AT_ONCE:
                    yield group
                    group = []
        if group:
            yield group


@dataclass(slots=True)
class _Log:
    """What is known of the earlier run once its log was read."""

    graph: CompiledGraph
    genesis: Record
    input: Json
    seal: Seal | None = None
    index: dict[str, Seen] = field(default_factory=dict)
    races: Races = field(default_factory=Races)
    close: dict[str, Any] | None = None
    slot: int = 0


class Read:
    """An earlier run whose log was read; only the paths of its results are held."""

    def __init__(self, earlier: Earlier, log: _Log) -> None:
        self._earlier = earlier
        self._log = log

    @property
    def run(self) -> str:
        return self._earlier.run

    @property
    def graph(self) -> CompiledGraph:
        return self._log.graph

    @property
    def seal(self) -> Seal | None:
        """Its key, where something of it is sensitive: who takes results of it has the same."""
        return self._log.seal

    @property
    def input(self) -> Json:
        return self._log.input

    @property
    def seed(self) -> str:
        return str((self._log.genesis.core or {})["seed"])

    @property
    def files(self) -> Version | None:
        """The version of the files that it began with."""
        told = self._log.genesis.envelope.get("workspace")
        return Version.from_json(told) if told is not None else None

    @property
    def facts(self) -> dict[str, Json]:
        return dict(self._log.genesis.envelope["facts"])

    @property
    def base(self) -> str:
        """The folder of relative paths, of a run on a laptop."""
        return str(self._log.genesis.envelope.get("base", ""))

    def taking(self, graph: CompiledGraph, input: Json) -> Taking:
        """What a run of `graph` on `input` takes. Raises `EarlierDiffers`, `NothingFailed`, `PathNotRun`."""
        log, earlier = self._log, self._earlier
        close = log.close or {}
        same_input = vhash(input) == vhash(log.input)
        if earlier.mode == "retry":
            if graph.digest != log.graph.digest or not same_input:
                raise EarlierDiffers(earlier.run, "graph" if same_input else "input")
            if close.get("outcome") == "succeeded":
                raise NothingFailed(earlier.run)
        same = self._same(graph, input)
        chosen = select(log.index, log.graph, graph, same=same, path=earlier.path, races=log.races)
        if not chosen.known:
            places = {path.partition("!")[0] for path in islice(sorted(log.index), _SHOWN)}
            raise PathNotRun(earlier.run, earlier.path, places - {""})
        note = {
            "run": earlier.run,
            "mode": earlier.mode,
            "slot": log.slot,
            "state": close.get("state"),
            "taken": len(chosen.paths),
            **({"path": earlier.path} if earlier.path else {}),
        }
        return Taking(earlier.run, chosen.paths, note)

    def _same(self, graph: CompiledGraph, input: Json) -> _Same:
        same_channels = graph.root.channels == self._log.graph.root.channels
        same_input = vhash(input) == vhash(self._log.input)
        return _Same(self._log.graph, graph, self._log.input, input, same_input, same_channels)


@dataclass(frozen=True, slots=True)
class _Same:
    """Whether a node of the root reads the same of input and channels in both runs, and calls the same tool servers."""

    old_graph: CompiledGraph
    graph: CompiledGraph
    old: Json
    new: Json
    same_input: bool
    same_channels: bool

    def __call__(self, node: Node) -> bool:
        if not self.same_channels and (node.writes or any(_root(read) == "state" for read in node.reads)):
            return False
        if any(_known_by(self.old_graph, name) != _known_by(self.graph, name) for name in _servers(self.graph, node)):
            return False
        reads = [read for read in node.reads if _root(read) == "input"]
        if self.same_input or not reads:
            return True
        return vhash(prune({"input": self.old}, reads)) == vhash(prune({"input": self.new}, reads))


def _servers(graph: CompiledGraph, node: Node) -> set[str]:
    """The tool servers that a node calls, itself or in what runs below it."""
    found, below = set(node.servers), list(node.inner)
    seen = set(below)
    while below:
        for inner in graph.templates[below.pop()].nodes:
            found |= inner.servers
            below += [name for name in inner.inner if name not in seen]
            seen.update(inner.inner)
    return found


def _known_by(graph: CompiledGraph, server: str) -> Json:
    """What tells a tool server from another one: its address and its plain headers. Tokens come and go.

    It is in no digest: who serves a tool is not part of the state of a run.
    """
    spec = graph.servers.get(server)
    if spec is None:
        return None
    headers = sorted(
        [header["name"].lower(), header["value"]] for header in spec.get("headers", ()) if "value" in header
    )
    return [spec["url"], headers]


def _root(read: str) -> str:
    return read.partition(".")[0]


async def read_earlier(store: Store, earlier: Earlier, *, patience: Patience, keys: RunKeys = NO_KEYS) -> Read:
    """Read the log of an earlier run.

    Raises `EarlierMissing`, `EarlierCollected`, `EarlierOpen`, and `PathNotRun` for a path that is none.
    """
    if earlier.path:
        _check_path(earlier)
    log: _Log | None = None
    try:
        async with aclosing(read_log(store, earlier.run)) as records:
            async for slot, record in records:
                if log is None:
                    log = await _begun(store, earlier.run, record, patience, keys)
                log.slot = slot
                if record.type == "close":
                    log.close = record.envelope
                elif record.type == "race_won":
                    log.races.note(record)
                elif record.core is not None and record.type != "genesis" and not is_final(record.path):
                    log.index[record.path] = _seen(record.core)
    except RunNotFound as error:
        raise EarlierMissing(earlier.run, store.uri) from error
    except RunDeleted as error:
        raise EarlierCollected(earlier.run) from error
    if log is None or log.close is None:
        raise EarlierOpen(earlier.run)
    return Read(earlier, log)


def _seen(core: Mapping[str, Any]) -> Seen:
    outcome, has_value = core["outcome"], core["delta"] is not None
    return Seen(True, has_value, outcome["failed"]["code"]) if isinstance(outcome, dict) else Seen(False, has_value)


def _check_path(earlier: Earlier) -> None:
    try:
        parsed = LedgerPath.parse(earlier.path)
    except BadPath as error:
        raise PathNotRun(earlier.run, earlier.path) from error
    if parsed.mark or not parsed.steps or is_final(earlier.path):
        raise PathNotRun(earlier.run, earlier.path)


async def _begun(store: Store, run: str, genesis: Record, patience: Patience, keys: RunKeys) -> _Log:
    values = Values(store, run, patience=patience)
    closure = await values.load(await values.unpack(genesis.envelope, genesis.envelope["closure"]))
    graph = CompiledGraph.model_validate(closure)
    seal = await keys.of(store, run, graph, patience=patience)
    values = Values(store, run, patience=patience, seal=seal)
    given = await values.unpack(genesis.envelope, (genesis.core or {})["input"])
    return _Log(graph, genesis, given, seal)


async def taking_of(
    store: Store,
    note: dict[str, Any],
    graph: CompiledGraph,
    input: Json,
    patience: Patience,
    *,
    keys: RunKeys = NO_KEYS,
) -> Taking:
    """What is to be taken by a run whose `genesis` has this note, as it was worked out first.

    Raises `EarlierMissing` or `EarlierCollected` when the earlier run is gone before all was taken.
    """
    earlier = Earlier(note["run"], note["mode"], note.get("path", ""))
    return (await read_earlier(store, earlier, patience=patience, keys=keys)).taking(graph, input)

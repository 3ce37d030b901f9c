"""Opening a run: its first record is written, or its log is read back, and a fence makes this driver its writer.

Whoever writes `genesis` first decides graph, input, seed and logical time for good. A later open brings none of them:
what stands in the log is what runs, however the graph was edited since.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from decurion_crds.canonical import Json, canonical, digest
from decurion_crds.compiled import CompiledGraph
from decurion_crds.values import OutputMismatch, Validator, ValueRefused, normalise
from decurion_ledger import LogWriter, Record, SealKey, Values, make_key, read_log
from decurion_ledger.errors import RunNotFound
from decurion_ledger.reader import is_deleted
from decurion_worker.appointing import Appointed, signer
from decurion_worker.bundles import get_bundle
from decurion_worker.earlier import Earlier, Read, read_earlier, taking_of
from decurion_worker.engine import Engine
from decurion_worker.errors import BadInput, EarlierCollected, LogCorrupt, RunExists
from decurion_worker.importing import first_files, take_packs
from decurion_worker.projection import RunFacts
from decurion_worker.records import genesis_record
from decurion_worker.runkeys import RunKeys
from decurion_worker.session import RunSession
from decurion_worker.trials import Lives, verdict

if TYPE_CHECKING:
    from decurion_worker.driver import Driver


_INPUT = re.compile(r"input(\.[A-Za-z_][A-Za-z0-9_]*)?")
"""An input by its name, at the beginning of what is wrong with it."""


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """What is needed to open a run. `graph` may stand for a stored bundle; `input_uri` for `input`.

    `leader_epoch` orders those who open a run; `take_over` raises it above the log's. `cluster` is whose live list the
    run is on. Without `graph` and `digest` the run must exist; with `must_be_new` it must not. `base` is the folder of
    relative paths, for a run on a laptop. `earlier` is a run whose results it takes; graph and input are those of that
    run then, where none are given. `retention` are the seconds for which the log is kept after the run's end, -1 for
    good. `appointed` says by whom the driver is appointed to write its log. `seal_key` is that with which the keys of
    runs are encrypted, in place of the driver's.
    `facts` are members that `run` has in expressions beside its own.
    """

    run: str
    name: str
    namespace: str = ""
    digest: str = ""
    graph: CompiledGraph | None = None
    input: Json = None
    input_uri: str = ""
    leader_epoch: int = 0
    take_over: bool = False
    cluster: str = ""
    must_be_new: bool = False
    base: str = ""
    scheduled_at: str = ""
    seed: str = ""
    earlier: Earlier | None = None
    retention: int | None = None
    appointed: Appointed = None
    seal_key: SealKey | None = None
    facts: Mapping[str, Json] = field(default_factory=dict)


async def open_session(driver: Driver, request: OpenRequest) -> RunSession:
    """A session that owns the run, its engine standing where the log ends; not started yet."""
    if request.must_be_new and await _exists(driver, request.run):
        raise RunExists(request.run, driver.ledger_uri)
    try:
        return await _opened(driver, request, None)
    except RunNotFound:
        return await _opened(driver, request, await _genesis(driver, request))


async def _opened(driver: Driver, request: OpenRequest, genesis: Record | None) -> RunSession:
    stalled, lives = _Stalled(), Lives()
    taken, note = 0, None

    async def each(slot: int, record: Record) -> None:
        nonlocal taken, note
        lives.note(record)
        taken += "from" in record.envelope
        note = record.envelope.get("earlier") if record.type == "genesis" else note
        if stalled.session is None:
            stalled.session = await _session(driver, request, record)
        await stalled.session.replay(slot, record)

    opened = await LogWriter.open(
        driver.store,
        request.run,
        leader_epoch=request.leader_epoch,
        driver=f"{driver.name}@{driver.incarnation}",
        genesis=(lambda: genesis) if genesis is not None else None,
        take_over=request.take_over,
        observer=stalled,
        settings=driver.settings.log,
        clock=driver.clock,
        signer=signer(
            request.appointed,
            driver.key,
            driver=driver.name,
            run=request.run,
            leader_epoch=request.leader_epoch,
            take_over=request.take_over,
        ),
        each=each,
        admit=lambda: driver.trials.admit(request.run, lives.barren),
    )
    session = stalled.session
    if session is None:
        raise LogCorrupt(request.run, "its log holds no record")
    session.own(opened)
    if note is not None and taken < note["taken"]:
        await _take(driver, request, session, note, taken)
    if driver.settings.crash_loops:
        session.doomed = verdict(request.run, lives.barren - 1)
    return session


async def _take(driver: Driver, request: OpenRequest, session: RunSession, note: dict[str, Json], taken: int) -> None:
    """Commit what the run takes of an earlier one; what of it is in the log already is left out."""
    patience = driver.settings.log.patience
    keys = run_keys(driver, request)
    taking = await taking_of(driver.store, note, session.graph, session.engine.root.input, patience, keys=keys)
    at = driver.now().astimezone(UTC).isoformat(timespec="milliseconds")
    async with aclosing(taking.rest(driver.store, session.run, taken=taken, at=at, worker=driver.name)) as groups:
        async for group in groups:
            await session.adopt(group)


async def _exists(driver: Driver, run: str) -> bool:
    try:
        async for _ in read_log(driver.store, run):
            return True
    except RunNotFound:
        return False
    return False


class _Stalled:
    """Shows a store that is away on the run that waits for it."""

    session: RunSession | None = None

    def on_stalled(self, run: str, reason: str) -> None:
        if self.session is not None:
            self.session.show_stalled(reason)

    def on_recovered(self, run: str) -> None:
        if self.session is not None:
            self.session.show_recovered()


def run_keys(driver: Driver, request: OpenRequest) -> RunKeys:
    given = request.seal_key
    return RunKeys(driver.seal_key if given is None else lambda make: given)


async def _genesis(driver: Driver, request: OpenRequest) -> Record:
    patience = driver.settings.log.patience
    keys = run_keys(driver, request)
    earlier = (
        await read_earlier(driver.store, request.earlier, patience=patience, keys=keys) if request.earlier else None
    )
    if earlier is not None and await is_deleted(driver.store, earlier.run, patience=patience):
        raise EarlierCollected(earlier.run)
    graph = await _graph_of(driver, request, earlier)
    checked = await _input_of(driver, request, earlier, graph)
    more = {"earlier": earlier.taking(graph, checked).note} if earlier is not None else {}
    base = request.base or (earlier.base if earlier is not None else "")
    if base:
        driver.sources.base = Path(base)
    if earlier is None:
        files = await first_files(
            graph, checked, sources=driver.sources, store=driver.store, run=request.run, patience=patience
        )
    else:
        files = earlier.files
        await take_packs(driver.store, earlier.run, request.run, patience=patience)
    seal = None
    if graph.sealed:
        # Last of all that may be refused: no key stays of a run that never began.
        by = keys.needed(request.run, make=True)
        seal = await make_key(
            driver.store, request.run, by, seal=earlier.seal if earlier is not None else None, patience=patience
        )
    values = Values(driver.store, request.run, patience=patience, seal=seal)
    scheduled = request.scheduled_at or driver.now().astimezone(UTC).isoformat(timespec="seconds")
    # The hash of something sensitive would tell it to whoever tries all that it can be.
    said = values.sealing().name(checked).encode() if graph.root.sealed_input else canonical(checked)
    seed = request.seed or digest("seed/v0", graph.digest.encode(), said)
    if earlier is not None:
        # What runs again is told the same time, and draws the same numbers, as what is taken.
        scheduled, seed = str(earlier.facts["scheduledAt"]), earlier.seed
    return await genesis_record(
        values,
        run=request.run,
        graph=graph,
        input=checked,
        seed=seed,
        facts={**request.facts, "id": request.run, "scheduledAt": scheduled},
        files=files,
        envelope={
            "name": request.name or graph.name,
            "namespace": request.namespace,
            "at": driver.now().astimezone(UTC).isoformat(timespec="milliseconds"),
            **({"base": base} if base else {}),
            **({"retention": request.retention} if request.retention is not None else {}),
            **more,
        },
    )


async def _graph_of(driver: Driver, request: OpenRequest, earlier: Read | None) -> CompiledGraph:
    if request.graph is not None:
        return request.graph
    if request.digest:
        return await get_bundle(driver.store, request.digest)
    if earlier is None:
        raise RunNotFound(request.run, driver.ledger_uri)
    return earlier.graph


async def _input_of(driver: Driver, request: OpenRequest, earlier: Read | None, graph: CompiledGraph) -> Json:
    given = request.input
    if request.input_uri:
        given = _parse(request.input_uri, await driver.sources.read(request.input_uri))
    if given is None and earlier is not None:
        patience = driver.settings.log.patience
        given = await Values(driver.store, request.run, patience=patience, seal=earlier.seal).load(earlier.input)
    try:
        return check_input(graph, {} if given is None else given)
    except BadInput as error:
        if not graph.root.sealed_input:
            raise
        # What is told here is shown on the run's resource, and logged.
        raise BadInput(list(dict.fromkeys(map(_unquoted, error.findings)))) from None


def _unquoted(finding: str) -> str:
    found = _INPUT.match(finding)
    place = found[0] if found is not None else "input"
    return f"{place}: it is not what the graph's input is to be; it may be sensitive, so nothing of it is quoted"


def _parse(uri: str, text: bytes) -> Json:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise BadInput([f"{uri} is no JSON: {error}; give it one JSON object"]) from error
    if not isinstance(value, dict):
        raise BadInput([f"{uri} holds no JSON object; its members are the graph's inputs"])
    return value


def check_input(graph: CompiledGraph, given: Json) -> Json:
    """`given` in the types of the graph's `input`. Raises `BadInput` with every fault."""
    try:
        value = normalise(given, graph.root.input_schema)
        Validator(graph.root.input_schema).check(value)
    except OutputMismatch as error:
        raise BadInput([f"input{fault.removeprefix('$')}" for fault in error.problems]) from error
    except ValueRefused as error:
        raise BadInput([f"input{str(error).removeprefix('$')}"]) from error
    return value


async def _session(driver: Driver, request: OpenRequest, genesis: Record) -> RunSession:
    core = genesis.core or {}
    if base := genesis.envelope.get("base"):
        driver.sources.base = Path(base)
    values = Values(driver.store, request.run, patience=driver.settings.log.patience)
    closure = await values.load(await values.unpack(genesis.envelope, genesis.envelope["closure"]))
    graph = CompiledGraph.model_validate(closure)
    patience = driver.settings.log.patience
    seal = await run_keys(driver, request).of(driver.store, request.run, graph, patience=patience)
    values = Values(driver.store, request.run, patience=patience, seal=seal)
    run_input = await values.unpack(genesis.envelope, core["input"])
    facts = RunFacts(
        graph_digest=core["node"],
        ledger_uri=driver.ledger_uri,
        started_at=genesis.envelope["at"],
    )
    session = RunSession(
        run=request.run,
        graph=graph,
        engine=Engine(graph, input=run_input, facts=genesis.envelope["facts"]),
        values=values,
        facts=facts,
        driver=driver.name,
        now=driver.now,
        seed=core["seed"],
        clock=_clock(genesis.envelope["facts"]["scheduledAt"]),
        seal=seal,
    )
    session.engine.root.base_files = genesis.envelope.get("workspace")
    session.leader_epoch = request.leader_epoch
    session.cluster = request.cluster
    return session


def _clock(scheduled_at: str) -> str:
    """Logical time of `code` nodes: what genesis says, in RFC 3339."""
    return datetime.fromisoformat(scheduled_at).isoformat()

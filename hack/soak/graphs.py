"""Random graphs, each run whole and then cut off and resumed: what `python hack/soak graphs` does with every seed.

Time is virtual and expressions are run by this Python (`plain_python`), so that a seed costs a fraction of a second of
work and no waiting; driver, runners, engine, records and log are the real ones over a store in memory.

Of each seed is checked: the run ends, and every node of it has ended; the verifier finds nothing; each path is
committed once; a log that is cut at a random record (with `sweep`, at each), and one that lacks only its end, is
finished by other runners, more or fewer, to the same output and state; nothing unordered wrote one channel or may have
written one file.

Of a run that fails the state is not compared, but why it failed: which other results were committed before depends on
time. Where time decides something, as of an approval that nobody gave or of `join: any`, only the log that lacks its
end is held to the same state.

One seed in eight is also cancelled after a random record, and another run does what was left. Of one in sixteen a fork
runs one path again, and what comes after it. Both are cut off and resumed, and come to what the whole run came to.

One seed in seven has models and limits (`limits`): where a budget stopped something, or there are limits of `seconds`,
it is held to the same as what time decides. One in seven has something sensitive, unless it writes files.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from decurion_crds.compile import Checker, compile_graph
from decurion_crds.compiled import CompiledGraph
from decurion_crds.errors import DecurionError
from decurion_crds.loader import load_text
from decurion_crds.v1alpha1 import LLM, TaskGraph
from decurion_ledger import LogWriter, Record, SealKey, Store, open_store, read_log
from decurion_ledger import Settings as LogSettings
from decurion_ledger.layout import run_prefix
from decurion_worker.approving import Answer
from decurion_worker.driver import Driver, DriverSettings
from decurion_worker.earlier import Earlier
from decurion_worker.engine import Asked
from decurion_worker.errors import RunLetGo
from decurion_worker.executors import LocalExecutor
from decurion_worker.opening import OpenRequest
from decurion_worker.runner import RunnerSettings
from decurion_worker.session import RunSession
from decurion_worker.sources import Sources
from soak.draw import Writer
from soak.judges import (
    Violated,
    check_cause,
    check_files,
    check_once,
    check_terminal,
    check_verified,
    check_writers,
    fails_the_run,
    raced,
)
from soak.limits import LimitedWriter
from soak.plain_python import PlainPython
from virtual_time import LoopClock, in_virtual_time

HEAD = "apiVersion: decurion.dev/v1alpha1\nkind: TaskGraph\nmetadata: {name: g}\nspec:\n"
PATIENCE = 3600.0
"""Virtual seconds in which a run has to end."""
INTERVALS = (0.02, 0.1, 0.5)
"""Seconds between two segments: how many records come to stand in one, with pauses of up to 0.1 s between them."""
SWEPT = 60
"""Records at most of a run that is cut off at each of them: the work grows with the square of their number."""
FARTHER = 10_000_000
"""From the seed of a graph that is too large for that to the next one that is tried."""
LOOK = 0.5
"""Seconds of the run after which somebody looks whether anything is asked of people."""
BY = SealKey.generate()
"""What the keys of runs are encrypted with."""
TIMED = frozenset({"timer_fired", "approval_given", "budget"})
"""Records that hold what depends on time: what it decided, or when somebody did."""
TERMINAL = frozenset({"Succeeded", "Failed", "Cancelled"})
_stores = itertools.count()


@dataclass(frozen=True)
class Whole:
    """An undisturbed run: its log, the blobs and files beside it, what came of it."""

    session: RunSession
    log: list[Record]
    blobs: dict[str, bytes]
    store: Store

    @property
    def outcome(self) -> tuple[Any, ...]:
        """What must not depend on how the work was spread, nor on crashes."""
        shown = self.session.projection()
        if shown["phase"] == "Failed":
            close = self.log[-1].envelope["failure"]
            return "Failed", close["path"], close["class"], close["code"]
        return shown["phase"], self.session.engine.output, self.session.facts.state_hash

    @property
    def body(self) -> list[Record]:
        return [record for record in self.log if record.type not in ("genesis", "fence", "close")]


def _has_agents(seed: int) -> bool:
    """Whether there may be agents. Their tools have maps inside only where templates are nested."""
    return seed % 8 in (2, 3) and seed % 5 != 4


def _has_limits(seed: int) -> bool:
    return seed % 7 == 1


def _has_time(seed: int) -> bool:
    """Whether limits of time are among them."""
    return seed % 14 == 1


def _writer(seed: int, deepest: int) -> Writer:
    agents, files = _has_agents(seed), seed % 8 in (5, 6)
    if _has_limits(seed):
        seconds = _has_time(seed)
        return LimitedWriter(seed, deepest=deepest, timed=seed % 3 == 0, agents=agents, files=files, seconds=seconds)
    # Nodes that write files may read nothing sensitive.
    sealed = seed % 7 == 2 and not files
    return Writer(seed, deepest=deepest, timed=seed % 3 == 0, agents=agents, files=files, sealed=sealed)


def drawn(seed: int, checker: Checker, *, deepest: int) -> CompiledGraph:
    """The graph of a seed. Raises `Violated` when it does not compile: only right graphs are drawn."""
    writer = _writer(seed, deepest)
    spec = writer.spec(may_fail=seed % 5 == 4)
    models, found = load_text(HEAD + spec, "g.yaml").parse()
    if found:
        raise Violated(f"seed {seed} is refused: {[finding.text() for finding in found]}\n{spec}")
    (graph,) = [model for _, model in models if isinstance(model, TaskGraph)]
    llms = {model.name: model for _, model in models if isinstance(model, LLM)}
    compilation = compile_graph(graph, llms=llms, checker=checker)
    if compilation.compiled is None:
        raise Violated(f"seed {seed} is refused: {[finding.text() for finding in compilation.findings]}\n{spec}")
    return compilation.compiled


def check(seed: int, checker: Checker, *, sweep: bool) -> int:
    """Check what the seed draws; how many records its run has. Raises `Violated`.

    With `sweep` it is cut off at each of its records, of which there are few then.
    """
    chance = random.Random(seed)
    graphs = itertools.count(seed, FARTHER) if sweep else iter([seed])
    try:
        for number in graphs:
            deepest = (2 if _has_agents(seed) else 1) if sweep else 3
            graph = drawn(number, checker, deepest=deepest)
            given = {"k": chance.randrange(7)}
            whole = whole_run(graph, given, chance)
            if not sweep or len(whole.log) <= SWEPT:
                break
        return in_virtual_time(
            _checked(
                graph,
                given,
                whole,
                chance,
                sweep=sweep,
                cancel=seed % 8 == 3,
                fork=seed % 16 == 6,
                timed=_has_time(number),
            )
        )
    except Violated as error:
        raise Violated(f"seed {seed}: {error}") from None
    except TimeoutError:
        raise Violated(f"seed {seed}: the run does not end") from None
    except DecurionError as error:
        raise Violated(f"seed {seed}: {type(error).__name__}: {error}") from error


def whole_run(graph: CompiledGraph, given: dict[str, Any], chance: random.Random) -> Whole:
    """An undisturbed run."""
    return in_virtual_time(_whole(graph, given, chance, runners=1, branches=64))


async def _checked(
    graph: CompiledGraph,
    given: dict[str, Any],
    whole: Whole,
    chance: random.Random,
    *,
    sweep: bool,
    cancel: bool,
    fork: bool,
    timed: bool,
) -> int:
    _check_log(graph, whole)
    body = whole.body
    cuts = range(len(body) + 1) if sweep else [chance.randint(0, len(body)), len(body)]
    timed = timed or raced(graph) or any(record.type in TIMED for record in body)
    for cut in cuts:
        same = cut == len(body) or not timed
        await _resumed(
            whole, cut, chance, same=same, runners=chance.choice([1, 2, 3]), branches=chance.choice([1, 2, 5, 64])
        )
    if cancel:
        await _cancelled(graph, given, whole, after=chance.randint(1, len(body)), chance=chance, same=not timed)
    places = sorted({_place(record.path) for record in body if record.core is not None} - {""})
    if fork and places:
        await _again(Earlier("run", "fork", chance.choice(places)), whole, whole.store, chance, same=not timed)
    return len(whole.log)


def _place(path: str) -> str:
    """The node, item, round or call whose record has this path; "" where it is none that a fork may name."""
    return "" if path.startswith("/finally") else path.partition("!")[0].removesuffix("/")


async def _again(earlier: Earlier, whole: Whole, store: Store, chance: random.Random, *, same: bool) -> None:
    """A run that takes what it can of the run in `store`, and such a run again, cut off anywhere; `same`: they come to
    what the whole run came to.
    """
    spread = {"runners": chance.choice([1, 2, 3]), "branches": chance.choice([1, 5, 64])}
    where = f"{earlier.mode} {earlier.path}".rstrip()
    # Of something sensitive the state has a name under the key of the run, which those that take of it share.
    due = whole.outcome[:2] if whole.session.graph.sealed and store is not whole.store else whole.outcome
    due = due if same and due[0] == "Succeeded" else ()
    async with _Pool(store, chance, **spread) as driver:
        session = await _end_of(await driver.open_run(OpenRequest(run="again", name="g", earlier=earlier)))
    log = await _judged(store, session, due, where)
    before = {record.path: record.core_hash async for _, record in read_log(store, "run")}
    changed = [r.path for r in log if "from" in r.envelope and before.get(r.path) != r.core_hash]
    if changed:
        raise Violated(f"{where}: these are taken and differ: {changed}")
    body = [record for record in log if record.type not in ("genesis", "fence", "close")]
    kept = body[: chance.randint(0, len(body))]
    other = open_store(f"memory://soak-{next(_stores)}")
    async for info in store.list(""):
        if not info.key.startswith(run_prefix("again")) or "/packs/" in info.key:
            await other.put_new(info.key, await store.get(info.key))
    opened = await LogWriter.open(other, "again", leader_epoch=0, driver="before", genesis=lambda: log[0])
    if kept:
        await opened.writer.append(kept)
    async with _Pool(other, chance, **spread) as driver:
        session = await _end_of(await driver.open_run(OpenRequest(run="again", name="g", leader_epoch=1)))
    await _judged(other, session, due, f"{where}, cut after {len(kept)} records")


async def _judged(store: Store, session: RunSession, due: tuple[Any, ...], where: str) -> list[Record]:
    """The log of the run, which has to come to what is `due`, as far as that goes."""
    log = [record async for _, record in read_log(store, "again")]
    found = Whole(session, log, {}, store).outcome
    if found[: len(due)] != due:
        raise Violated(f"{where}: {found} where {due} is due")
    await check_verified(store, where, "again")
    check_terminal(session, where)
    check_once(log, where)
    check_cause(log, where)
    return log


async def _cancelled(
    graph: CompiledGraph, given: dict[str, Any], whole: Whole, *, after: int, chance: random.Random, same: bool
) -> None:
    """A run that is cancelled once `after` records are committed, if it has so many; then what was left is run."""
    store = open_store(f"memory://soak-{next(_stores)}")
    async with _Pool(store, chance, runners=2, branches=chance.choice([1, 5])) as driver:
        session = await driver.open_run(_request(graph=graph, input=given))
        # One that waits for people gets no further; it is cancelled there.
        while session.facts.committed <= after and not (session.ended.is_set() or session.engine.awaiting):
            await asyncio.sleep(0.01)
        session.cancel(chance.choice(["Cancel", "CancelAndFinally", "Stop"]))
        await _end_of(session)
    phase, where = session.projection()["phase"], f"cancelled after {after} records"
    if phase not in TERMINAL:
        raise Violated(f"{where}: the run is {phase}")
    check_terminal(session, where)
    await check_verified(store, where)
    if phase != "Succeeded":
        await _again(Earlier("run", "retry"), whole, store, chance, same=same)


async def _whole(
    graph: CompiledGraph, given: dict[str, Any], chance: random.Random, *, runners: int, branches: int
) -> Whole:
    store = open_store(f"memory://soak-{next(_stores)}")
    async with _Pool(store, chance, runners=runners, branches=branches) as driver:
        session = await _ended(driver, graph=graph, input=given)
    log = [record async for _, record in read_log(store, "run")]
    kept = [
        info.key async for info in store.list("") if info.key.startswith(("blobs/", "keys/")) or "/packs/" in info.key
    ]
    blobs = {key: await store.get(key) for key in kept}
    await check_verified(store, "whole")
    return Whole(session, log, blobs, store)


async def _resumed(whole: Whole, cut: int, chance: random.Random, *, same: bool, runners: int, branches: int) -> None:
    """A log that ends after `cut` records, finished by others; `same`: to what the whole run came to."""
    store = open_store(f"memory://soak-{next(_stores)}")
    for key, data in whole.blobs.items():
        await store.put_new(key, data)
    kept = whole.body[:cut]
    opened = await LogWriter.open(store, "run", leader_epoch=0, driver="before", genesis=lambda: whole.log[0])
    if kept:
        await opened.writer.append(kept)
    async with _Pool(store, chance, runners=runners, branches=branches) as driver:
        session = await _ended(driver, leader_epoch=1)
    log = [record async for _, record in read_log(store, "run")]
    blobs = dict(whole.blobs)
    where = f"cut after {cut} records, {f'at {kept[-1].type} {kept[-1].path}' if kept else 'at genesis'}"
    found = Whole(session, log, blobs, store)
    # Which of several nodes of the root fails first depends on time, and a run stops there; its log says which it was.
    fails = cut < len(whole.body) and found.outcome[0] == whole.outcome[0] == "Failed"
    fails = fails and not any(fails_the_run(record, whole.outcome) for record in kept)
    if same and not fails and found.outcome != whole.outcome:
        raise Violated(f"{where}: {found.outcome} where the whole run has {whole.outcome}")
    await check_verified(store, where)
    check_terminal(session, where)
    check_once(log, where)
    check_cause(log, where)


class _Pool:
    """A driver and its runners in this process."""

    def __init__(self, store: Any, chance: random.Random, *, runners: int, branches: int) -> None:
        uri = "memory://soak"
        sources = Sources(open_store, files=False)
        logs = DriverSettings(log=LogSettings(interval=chance.choice(INTERVALS)))
        self.driver = Driver(
            "driver-0",
            store=store,
            ledger_uri=uri,
            sources=sources,
            settings=logs,
            now=_now,
            clock=LoopClock(),
            seal_key=lambda make: BY,
        )
        settings = RunnerSettings(branches=branches, processes=1)
        evaluator = PlainPython(jitter=chance)
        self.executor = LocalExecutor(settings, evaluator=lambda _: evaluator, now=_now)
        self.runners = runners

    async def __aenter__(self) -> Driver:
        await self.driver.start()
        await self.executor.start(self.driver)
        await self.executor.scale(self.runners)
        return self.driver

    async def __aexit__(self, *_: object) -> None:
        await self.executor.stop()
        await self.driver.stop()


def _request(**more: Any) -> OpenRequest:
    return OpenRequest(run="run", name="g", scheduled_at="2026-01-01T00:00:00+00:00", **more)


def _now() -> datetime:
    """The wall clock, on which the time-outs of a run are due, goes with the loop's."""
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=asyncio.get_running_loop().time())


def _answer(asked: Asked) -> Answer:
    """What is decided by where it is asked, whoever has the run."""
    decision: Literal["Approve", "Reject"] = "Approve" if len(asked.path) % 2 else "Reject"
    return Answer(asked.request, asked.request, asked.digest, decision, "somebody")


async def _ended(driver: Driver, **more: Any) -> RunSession:
    return await _end_of(await driver.open_run(_request(**more)))


async def _end_of(session: RunSession) -> RunSession:
    """The session once it has ended. While the run waits for people, what has no time of its own is decided."""
    async with asyncio.timeout(PATIENCE):
        while not session.ended.is_set():
            if session.engine.awaiting:
                for asked in [one for one in session.engine.approvals.pending() if one.block.timeout_seconds is None]:
                    # The run may end, or be left, while somebody decides.
                    with contextlib.suppress(RunLetGo):
                        await session.answer(_answer(asked))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(session.ended.wait(), LOOK)
    if session.why:
        raise Violated(f"the session ended early: {session.why}")
    return session


def _check_log(graph: CompiledGraph, whole: Whole) -> None:
    phase = whole.session.projection()["phase"]
    if phase not in ("Succeeded", "Failed"):
        raise Violated(f"the run is {phase}")
    check_terminal(whole.session, "whole")
    check_once(whole.log, "whole")
    check_cause(whole.log, "whole")
    check_writers(graph, whole.log)
    check_files(graph, whole.log)


def seeds(first: int, count: int, *, jobs: int, job: int, sweep_every: int) -> list[int]:
    """The seeds of one of `jobs` processes: to each the same share of the long ones, which come first, and the rest."""
    numbers = range(first, first + count)
    swept = [seed for seed in numbers if seed % sweep_every == 0]
    others = [seed for seed in numbers if seed % sweep_every]
    return swept[job::jobs] + others[job::jobs]

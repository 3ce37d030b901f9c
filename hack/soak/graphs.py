"""Random graphs, each run whole and then cut off and resumed: what `python hack/soak graphs` does with every seed.

Time is virtual and expressions are run by this Python (`plain_python`), so that a seed costs a fraction of a second of
work and no waiting; driver, runners, engine, records and log are the real ones over a store in memory.

Of each seed is checked: the run ends, and every node of it has ended; the verifier finds nothing; each path is
committed once; a log that is cut at a random record (with `sweep`, at each), and one that lacks only its end, is
finished by other runners, more or fewer, to the same output and state; nothing unordered wrote one channel or may have
written one file.

Of a run that fails the state is not compared, but why it failed: which other results were committed before depends on
time. Where time decides something, as of an approval that nobody gave or of `join: any`, only the log that lacks its
end is held to the same state. One seed in eight is also cancelled after a random record.

One seed in seven has models and limits (`limits`): where a budget stopped something, or there are limits of `seconds`,
it is held to the same as what time decides. One in seven has something sensitive, unless it writes files.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from decurion_crds.compile import Checker, compile_graph
from decurion_crds.compiled import CompiledGraph, Scope
from decurion_crds.errors import DecurionError
from decurion_crds.globs import overlap
from decurion_crds.loader import load_text
from decurion_crds.v1alpha1 import LLM, TaskGraph
from decurion_ledger import LogWriter, Record, SealKey, open_store, read_log, verify
from decurion_ledger import Settings as LogSettings
from decurion_worker.approving import Answer
from decurion_worker.driver import Driver, DriverSettings
from decurion_worker.engine import Asked
from decurion_worker.engine.scopes import ABANDONED
from decurion_worker.errors import RunLetGo
from decurion_worker.executors import LocalExecutor
from decurion_worker.opening import OpenRequest
from decurion_worker.runner import RunnerSettings
from decurion_worker.session import RunSession
from decurion_worker.sources import Sources
from soak.draw import Writer
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
ENDED = frozenset({"Succeeded", "Failed", "Skipped", "Cancelled", "NotRun"})
_stores = itertools.count()


class Violated(Exception):
    """What was promised does not hold."""


@dataclass(frozen=True)
class Whole:
    """An undisturbed run: its log, the blobs and files beside it, what came of it."""

    session: RunSession
    log: list[Record]
    blobs: dict[str, bytes]

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
            whole = in_virtual_time(_whole(graph, given, chance, runners=1, branches=64))
            if not sweep or len(whole.log) <= SWEPT:
                break
        return in_virtual_time(
            _checked(graph, given, whole, chance, sweep=sweep, cancel=seed % 8 == 3, timed=_has_time(number))
        )
    except Violated as error:
        raise Violated(f"seed {seed}: {error}") from None
    except TimeoutError:
        raise Violated(f"seed {seed}: the run does not end") from None
    except DecurionError as error:
        raise Violated(f"seed {seed}: {type(error).__name__}: {error}") from error


def whole_run(graph: CompiledGraph, given: dict[str, Any], seed: int = 0) -> Whole:
    """An undisturbed run."""
    return in_virtual_time(_whole(graph, given, random.Random(seed), runners=1, branches=64))


async def _checked(
    graph: CompiledGraph,
    given: dict[str, Any],
    whole: Whole,
    chance: random.Random,
    *,
    sweep: bool,
    cancel: bool,
    timed: bool,
) -> int:
    _check_log(graph, whole)
    body = whole.body
    cuts = range(len(body) + 1) if sweep else [chance.randint(0, len(body)), len(body)]
    timed = timed or _raced(graph) or any(record.type in TIMED for record in body)
    for cut in cuts:
        same = cut == len(body) or not timed
        await _resumed(
            whole, cut, chance, same=same, runners=chance.choice([1, 2, 3]), branches=chance.choice([1, 2, 5, 64])
        )
    if cancel:
        await _cancelled(graph, given, after=chance.randint(1, len(body)), chance=chance)
    return len(whole.log)


async def _cancelled(graph: CompiledGraph, given: dict[str, Any], *, after: int, chance: random.Random) -> None:
    """A run that is cancelled once `after` records are committed, if it has so many."""
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
    _check_terminal(session, where)
    await _check_verified(store, where)


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
    await _check_verified(store, "whole")
    return Whole(session, log, blobs)


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
    found = Whole(session, log, blobs)
    # Which of several nodes of the root fails first depends on time, and a run stops there; its log says which it was.
    fails = cut < len(whole.body) and found.outcome[0] == whole.outcome[0] == "Failed"
    fails = fails and not any(_fails_the_run(record, whole.outcome) for record in kept)
    if same and not fails and found.outcome != whole.outcome:
        raise Violated(f"{where}: {found.outcome} where the whole run has {whole.outcome}")
    await _check_verified(store, where)
    _check_terminal(session, where)
    _check_once(log, where)
    _check_cause(log, where)


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


# ---------------------------------------------------------------------- what must hold


def _check_log(graph: CompiledGraph, whole: Whole) -> None:
    phase = whole.session.projection()["phase"]
    if phase not in ("Succeeded", "Failed"):
        raise Violated(f"the run is {phase}")
    _check_terminal(whole.session, "whole")
    _check_once(whole.log, "whole")
    _check_cause(whole.log, "whole")
    check_writers(graph, whole.log)
    _check_files(graph, whole.log)


def _check_terminal(session: RunSession, where: str) -> None:
    left = [
        f"{node['name']} is {node['phase']}" for node in session.projection()["nodes"] if node["phase"] not in ENDED
    ]
    if left:
        raise Violated(f"{where}: the run has ended and {', '.join(left)}")


def _check_cause(log: list[Record], where: str) -> None:
    """That a run that failed names what failed of itself: not what was given up since something else had failed."""
    failure = log[-1].envelope.get("failure")
    if log[-1].envelope.get("outcome") != "failed" or failure is None:
        return
    if failure["code"] == ABANDONED:
        raise Violated(f"{where}: the run names {failure['path']}, which was given up because something else failed")
    failed = {r.envelope.get("failed_at") for r in log if r.core is not None and _failed(r) == failure["code"]}
    if failure["path"] not in ("/", *failed):
        raise Violated(f"{where}: the run names {failure['path']}, and no record says that it failed so")


def _fails_the_run(record: Record, outcome: tuple[Any, ...]) -> bool:
    """Whether it is by this record that a node of the root fails with what the run names."""
    at_root = record.core is not None and record.path.count("/") == 1
    return at_root and (record.envelope.get("failed_at"), _failed(record)) == (outcome[1], outcome[3])


def _failed(record: Record) -> str:
    outcome = (record.core or {})["outcome"]
    return str(outcome["failed"]["code"]) if isinstance(outcome, dict) else ""


async def _check_verified(store: Any, where: str) -> None:
    problems = await verify(store, "run")
    if problems:
        raise Violated(f"{where}: the verifier finds {problems}")


def _check_once(log: list[Record], where: str) -> None:
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


def _check_files(graph: CompiledGraph, log: list[Record]) -> None:
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


def _raced(graph: CompiledGraph) -> bool:
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


def seeds(first: int, count: int, *, jobs: int, job: int, sweep_every: int) -> list[int]:
    """The seeds of one of `jobs` processes: to each the same share of the long ones, which come first, and the rest."""
    numbers = range(first, first + count)
    swept = [seed for seed in numbers if seed % sweep_every == 0]
    others = [seed for seed in numbers if seed % sweep_every]
    return swept[job::jobs] + others[job::jobs]

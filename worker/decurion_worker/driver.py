"""The driver: owns the logs of its runs and shares its runners between them.

All of its state lives on one event loop; every call is short. Runners come from an executor and talk to it by
`submit`; it talks to them through one outbox each. What may run is each session's engine's to say; which runner gets
it is decided in `offering`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from decurion_crds.canonical import Json
from decurion_crds.errors import DecurionError
from decurion_crds.v1alpha1 import CancelForm
from decurion_ledger import Settings as LogSettings
from decurion_ledger import SigningKey, Store
from decurion_ledger.admission import Admission
from decurion_ledger.errors import StaleLeader, StoreError
from decurion_ledger.patience import Clock, SystemClock
from decurion_worker.approving import Answer, Verdict, answered_before
from decurion_worker.changes import Changes
from decurion_worker.engine import Task
from decurion_worker.errors import RunUnknown
from decurion_worker.link import (
    Acked,
    Alive,
    Beat,
    Begin,
    Done,
    End,
    FromRunner,
    Halted,
    Joined,
    Key,
    Outbox,
    Returned,
    Revoked,
    RunnerPort,
    Runners,
    Secrets,
    Submitted,
    ToRunner,
    Work,
)
from decurion_worker.offering import Offering, Seat
from decurion_worker.opening import OpenRequest, open_session
from decurion_worker.runkeys import GiveSealKey
from decurion_worker.session import RunSession
from decurion_worker.sources import Sources
from decurion_worker.supervised import supervised
from decurion_worker.trials import Trials

log = logging.getLogger(__name__)

KEPT_FINISHED = 1000
"""Finished runs, and runs that wait for their store, whose last projection a driver still answers."""


@dataclass(frozen=True, slots=True)
class DriverSettings:
    """`lease`: seconds without a word after which a runner counts as lost; the driver's own stalls do not count.

    `log`: how the log waits for its store. `tick`: how often leases are looked at, in seconds. `pause`: how long an
    outbox gathers before each call, in seconds. `crash_loops`: whether a run that ends its drivers again and again is
    failed; not where a person opens it each time.
    """

    lease: float = 30.0
    log: LogSettings = field(default_factory=lambda: LogSettings(interval=0.02))
    tick: float = 1.0
    pause: float = 0.0
    crash_loops: bool = True


class Driver:
    """One driver process. `executor` starts and ends runners; `now` is the wall clock that records are stamped with.
    `seal_key` gives the key with which those of runs are encrypted, unless whoever opens a run does. `clock` is what
    logs wait by.
    """

    def __init__(
        self,
        name: str,
        *,
        store: Store,
        ledger_uri: str,
        sources: Sources,
        settings: DriverSettings | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        seal_key: GiveSealKey | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.seal_key = seal_key
        self.clock = clock or SystemClock()
        self.name = name
        self.incarnation = secrets.token_hex(8)
        self.key = SigningKey.generate()
        self.store = store
        self.admission = Admission(store)
        self.ledger_uri = ledger_uri
        self.sources = sources
        self.settings = settings or DriverSettings()
        self.now = now
        self.sessions: dict[str, RunSession] = {}
        self.finished: OrderedDict[str, dict[str, Json]] = OrderedDict()
        self.parked: dict[str, dict[str, Json]] = {}
        self.changes = Changes()
        self.trials = Trials()
        self.on_lost: Callable[[str], None] = lambda runner: None
        self._seats: dict[str, Seat] = {}
        self._opening: dict[str, asyncio.Lock] = {}
        self._missing: dict[str, int] = {}
        self._leaders: dict[str, int] = {}
        self._offering = Offering(self._seats, self.sessions, hand=self._hand)
        self._wanted = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._resuming: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._tasks = [supervised(self._offers, "offers"), supervised(self._watch, "leases")]

    async def stop(self) -> None:
        """Let go of all runs; their logs say all that is needed to go on."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for session in list(self.sessions.values()):
            await session.stop("the driver stopped")
        for seat in self._seats.values():
            seat.outbox.close()

    # ------------------------------------------------------------------ runs

    async def open_run(self, request: OpenRequest) -> RunSession:
        """Open a run or attach to it. The session of a run that has ended is not started: `ended` is set.

        Raises `BundleMissing`, `StaleLeader`, `BadInput`, `SourceMissing`, or a `StoreError`, `StoreRefused` among
        them.
        """
        lock = self._opening.setdefault(request.run, asyncio.Lock())
        try:
            async with lock:
                return await self._open(request)
        finally:
            if not lock.locked():
                self._opening.pop(request.run, None)

    async def _open(self, request: OpenRequest) -> RunSession:
        held = self.sessions.get(request.run)
        if held is not None:
            held.heed(request.leader_epoch)
            return held
        await self.admission.check()
        session = await open_session(self, request)
        self.parked.pop(request.run, None)
        if session.facts.state_hash is not None:
            self._keep(session)
            session.ended.set()
            return session
        self.sessions[request.run] = session
        session.on_changed = self._changed
        session.on_acked = self._acked
        session.on_revoked = self._revoked
        session.on_ended = self._ended
        session.start()
        self._changed(session)
        return session

    def projection(self, run: str) -> dict[str, Json]:
        """The latest projection of a run of this driver. Raises `RunUnknown`."""
        if run in self.sessions:
            return self.sessions[run].projection()
        for last in (self.finished, self.parked):
            if run in last:
                return last[run]
        raise RunUnknown(run)

    def give_secrets(self, run: str, values: Mapping[tuple[str, str], str]) -> None:
        """Secrets of a run, kept in memory and handed to the runners that work on it. Raises `RunUnknown`."""
        session = self._session(run)
        session.secrets.update(values)
        for name in session.known_by:
            if name in self._seats:
                self._seats[name].outbox.put(Secrets(run, dict(session.secrets)))

    def cancel(self, run: str, form: CancelForm, *, leader_epoch: int | None = None) -> None:
        """End a run in one of three forms. A run that has ended stays as it is. Raises `RunUnknown`, `StaleLeader`."""
        if run not in self.finished:
            session = self._session(run)
            if leader_epoch is not None:
                session.heed(leader_epoch)
            session.cancel(form)

    def suspend(self, run: str, wanted: bool, *, leader_epoch: int | None = None) -> None:
        """Start nothing more of a run, or go on with it. Raises as `cancel`."""
        if run not in self.finished:
            session = self._session(run)
            if leader_epoch is not None:
                session.heed(leader_epoch)
            session.suspend(wanted)

    async def answer(self, run: str, answer: Answer) -> Verdict:
        """Record what a person decided. Of a run that has ended only what its log says. Raises `RunUnknown`, for a run
        that is open nowhere here; `RunLetGo`; a `StoreError`.
        """
        session = self.sessions.get(run)
        return await session.answer(answer) if session is not None else await answered_before(self.store, run, answer)

    def live(self, cluster: str, runs: Sequence[str], *, leader_epoch: int | None = None) -> None:
        """The runs of a cluster that it still wants. One of its runs that misses two lists in a row is cancelled.

        Raises `StaleLeader` when a later leader of the cluster spoke before.
        """
        if leader_epoch is not None:
            if leader_epoch < (highest := self._leaders.get(cluster, 0)):
                raise StaleLeader(cluster, leader_epoch, highest)
            self._leaders[cluster] = leader_epoch
        wanted = set(runs)
        for run, session in list(self.sessions.items()):
            if session.cluster != cluster:
                continue
            self._missing[run] = 0 if run in wanted else self._missing.get(run, 0) + 1
            if self._missing[run] >= 2:
                session.cancel("Stop", reason="Orphaned")

    def _session(self, run: str) -> RunSession:
        if run not in self.sessions:
            raise RunUnknown(run)
        return self.sessions[run]

    # ------------------------------------------------------------------ what sessions say

    def _changed(self, session: RunSession) -> None:
        if session.advanced:
            self.trials.over(session.run)
        self.changes.mark(session.run)
        self._wanted.set()

    def _acked(self, session: RunSession, acks: Mapping[str, int]) -> None:
        for name, through in acks.items():
            if name in self._seats:
                self._seats[name].outbox.put(Acked(session.run, through))
        self._wanted.set()

    def _revoked(self, session: RunSession, leases: Mapping[str, list[str]]) -> None:
        for name, ids in leases.items():
            if name in self._seats:
                self._seats[name].held.get(session.run, set()).difference_update(ids)
                self._seats[name].outbox.put(Revoked(session.run, ids))
        self._wanted.set()

    def _ended(self, session: RunSession, why: str) -> None:
        if self.sessions.get(session.run) is session:
            del self.sessions[session.run]
        self._missing.pop(session.run, None)
        self.trials.over(session.run)
        for seat in self._seats.values():
            seat.held.pop(session.run, None)
            if seat.name in session.known_by:
                seat.outbox.put(End(session.run))
        if session.facts.state_hash is not None:
            self._keep(session)
        else:
            log.warning("run %s is let go: %s", session.run, why)
            if session.facts.reason == "StoreUnavailable":
                self.parked[session.run] = session.projection()
                if len(self.parked) > KEPT_FINISHED:
                    del self.parked[next(iter(self.parked))]
        self.changes.mark(session.run)
        self._wanted.set()

    def _keep(self, session: RunSession) -> None:
        self.finished[session.run] = session.projection()
        self.changes.mark(session.run)
        while len(self.finished) > KEPT_FINISHED:
            run, _ = self.finished.popitem(last=False)
            self.changes.forget(run)

    # ------------------------------------------------------------------ runners

    def add_runner(
        self,
        name: str,
        runner: RunnerPort,
        *,
        broken: tuple[type[Exception], ...] = (),
        timeout: float = 15.0,
    ) -> None:
        """A runner that was started for this driver. It gets work once it has joined."""

        async def send(seq: int, messages: list[ToRunner]) -> bool:
            return await runner.deliver(self.incarnation, seq, messages)

        outbox = Outbox(
            send,
            on_broken=lambda why: self.lose_runner(name, why),
            broken=broken,
            timeout=timeout,
            pause=self.settings.pause,
        )
        seat = Seat(name, outbox)
        seat.heard = asyncio.get_running_loop().time()
        self._seats[name] = seat
        outbox.put(Alive())
        self._tell_count()

    def _tell_count(self) -> None:
        for seat in self._seats.values():
            seat.outbox.put(Runners(len(self._seats)))

    async def submit(self, runner: str, incarnation: str, seq: int, messages: Sequence[FromRunner]) -> bool:
        """What a runner says. False: this driver does not know it, it ends."""
        seat = self._seats.get(runner)
        if seat is None or incarnation != self.incarnation:
            return False
        seat.heard = asyncio.get_running_loop().time()
        if seq <= seat.seen:
            return True
        seat.seen = seq
        for message in messages:
            match message:
                case Submitted(run=run):
                    self._take(seat, run, message)
                case Joined(capacity=capacity):
                    seat.capacity = capacity
                    self._wanted.set()
                case Halted(run=run, why=why):
                    if run in self.sessions:
                        self.sessions[run].halt(why)
                case Returned(items=items):
                    self._returned(seat, items)
                case Beat():
                    continue
        return True

    def _take(self, seat: Seat, run: str, submitted: Submitted) -> None:
        session = self.sessions.get(run)
        if session is None:
            seat.outbox.put(End(run))
            return
        if submitted.last:
            # The slot is free as soon as the item ended; its record becomes durable beside the next item's start.
            seat.held.get(run, set()).discard(submitted.lease)
            self._wanted.set()
        session.submit(seat.name, submitted)

    def _returned(self, seat: Seat, items: Sequence[tuple[str, str]]) -> None:
        for run, lease in items:
            seat.held.get(run, set()).discard(lease)
            if run in self.sessions:
                self.sessions[run].returned(lease)
        self._wanted.set()

    def is_idle(self, name: str) -> bool:
        """Whether a runner holds nothing."""
        return name not in self._seats or self._seats[name].load == 0

    def dismiss(self, name: str) -> None:
        """Take leave of an idle runner: it gets nothing more."""
        seat = self._seats.pop(name, None)
        if seat is not None:
            seat.outbox.close()
            self._tell_count()

    def lose_runner(self, name: str, why: str) -> None:
        """A runner is gone, or is treated so: its items are offered again."""
        seat = self._seats.pop(name, None)
        if seat is None:
            return
        seat.outbox.close()
        self._tell_count()
        log.warning("runner %s is lost: %s", name, why)
        for session in list(self.sessions.values()):
            session.lose(name, seat.load)
        self.on_lost(name)
        self._wanted.set()

    async def _watch(self) -> None:
        """Look at leases. A gap in our own time restarts them: a driver that slept must not blame its runners."""
        loop = asyncio.get_running_loop()
        last = loop.time()
        while True:
            await asyncio.sleep(self.settings.tick)
            now = loop.time()
            stalled, last = now - last > self.settings.tick + 2.0, now
            for seat in list(self._seats.values()):
                if stalled:
                    seat.heard = now
                elif now - seat.heard > self.settings.lease:
                    self.lose_runner(seat.name, f"no word for {self.settings.lease:.0f} s")
                else:
                    seat.outbox.put(Alive())

    # ------------------------------------------------------------------ offers

    @property
    def pending(self) -> int:
        """Tasks that could be taken now, over all runs."""
        return self._offering.pending

    @property
    def load(self) -> int:
        """Items that runners hold now."""
        return sum(seat.load for seat in self._seats.values())

    def runner_names(self) -> list[str]:
        """Names of the runners that have joined; the worker in every record is one of them."""
        return sorted(name for name, seat in self._seats.items() if seat.capacity)

    async def _offers(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            self._offering.share_out()

    def _hand(self, seat: Seat, session: RunSession, tasks: list[Task]) -> None:
        """Bring tasks that were taken to their runner."""
        begun = [task for task in tasks if task.done]
        self._send(seat, session, [(task, {}) for task in tasks if not task.done])
        if begun:
            # What they did before is read from the store, which may take its time: nobody waits for that here.
            seat.coming.update((session.run, task.key) for task in begun)
            resuming = asyncio.get_running_loop().create_task(self._resume(seat, session, begun))
            self._resuming.add(resuming)
            resuming.add_done_callback(self._resuming.discard)

    async def _resume(self, seat: Seat, session: RunSession, tasks: list[Task]) -> None:
        try:
            loaded = [(task, await session.done(task)) for task in tasks]
        except StoreError as error:
            session.halt(str(error))
            return
        except DecurionError as error:
            await session.stop(f"{type(error).__name__}: {error}")
            return
        finally:
            seat.coming.difference_update((session.run, task.key) for task in tasks)
        if self.sessions.get(session.run) is not session:
            return
        if self._seats.get(seat.name) is not seat:
            session.give_back(tasks)
            self._wanted.set()
            return
        self._send(seat, session, loaded)

    def _send(self, seat: Seat, session: RunSession, loaded: Sequence[tuple[Task, Mapping[str, Done]]]) -> None:
        if not loaded:
            return
        items = [session.item(task, seat.name, done) for task, done in loaded]
        if seat.name not in session.known_by:
            session.known_by.add(seat.name)
            if session.seal is not None:
                seat.outbox.put(Key(session.run, session.seal))
            seat.outbox.put(self._begin(session))
            if session.secrets:
                seat.outbox.put(Secrets(session.run, dict(session.secrets)))
        seat.held.setdefault(session.run, set()).update(item.lease for item in items)
        seat.recalled = False
        seat.outbox.put(Work(items))

    def _begin(self, session: RunSession) -> Begin:
        return Begin(
            run=session.run,
            graph=session.graph,
            seed=session.seed,
            clock=session.clock,
            facts=session.engine.facts,
        )

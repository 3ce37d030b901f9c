"""One run in its driver: its log, its engine, what runners sent and what they hold.

The life of a record, all on one loop:

    runner ─ submit ─▶ inbox ─▶ checked ─▶ one segment ─▶ PUT ─▶ engine.apply ─▶ ack ─▶ new work

One segment is in flight at a time; what comes meanwhile is the next one. Nothing is applied, acknowledged or shown
before it is durable. When another driver owns the log, or the store cannot say what it holds, the session ends, never
the process: whoever wants the run opens it again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import zip_longest

from decurion_crds.canonical import Json
from decurion_crds.compiled import CompiledGraph
from decurion_crds.v1alpha1 import CancelForm
from decurion_ledger import (
    LogWriter,
    Opened,
    Record,
    Seal,
    Values,
    final_state_hash,
)
from decurion_ledger.errors import (
    Fenced,
    LedgerError,
    StaleLeader,
    StoreError,
    StoreUnknown,
)
from decurion_worker.acceptance import Acceptance
from decurion_worker.approving import Answer, Answers, Verdict
from decurion_worker.deciding import record_of
from decurion_worker.engine import (
    Applied,
    Close,
    Engine,
    Failure,
    Step,
    Task,
)
from decurion_worker.errors import RunnerLost
from decurion_worker.intake import Intake, Lease, Suspects
from decurion_worker.link import HISTORY, Done, Submitted, WorkItem
from decurion_worker.loading import applied, done
from decurion_worker.notes import Notes
from decurion_worker.projection import RunFacts, project, shown_failure
from decurion_worker.provenance import Materials
from decurion_worker.records import (
    given_up,
)
from decurion_worker.timers import Timers
from decurion_worker.wide import channel_hash

log = logging.getLogger(__name__)

REFUSALS = 3
"""An item whose record was refused this many times is given up: it would run, and cost, for ever."""
LONE_STRIKES = 3
"""An item that was alone on its runner this many times when the runner was lost is given up."""


STALL_SHOWN = 2.0
"""Seconds after which a commit that is not through is shown as `StoreUnavailable`."""


@dataclass(slots=True)
class _Inbox:
    submitted: list[tuple[str, Submitted]] = field(default_factory=list)
    own: list[Record] = field(default_factory=list)
    given_up: list[tuple[Task, Failure]] = field(default_factory=list)
    """Failures of tasks that nobody brings to an end; written while the task is still wanted."""


class RunSession:
    """A run that this driver owns. Made by `RunSession.open`."""

    def __init__(
        self,
        *,
        run: str,
        graph: CompiledGraph,
        engine: Engine,
        values: Values,
        facts: RunFacts,
        driver: str,
        now: Callable[[], datetime],
        seed: str,
        clock: str,
        seal: Seal | None = None,
    ) -> None:
        self.seal = seal
        self.run = run
        self.graph = graph
        self.engine = engine
        self.facts = facts
        self.seed = seed
        self.clock = clock
        self.secrets: dict[tuple[str, str], str] = {}
        self.known_by: set[str] = set()
        self.leases: dict[str, Lease] = {}
        self.suspects = Suspects()
        self.ended = asyncio.Event()
        self.why = ""
        self.leader_epoch = 0
        self.cluster = ""
        self._suspending = False
        self._awaiting = False
        self.doomed: Failure | None = None
        """Why nothing of this run is tried any more; it is closed with that."""
        self.advanced = False
        """Whether a result was committed since this opening."""
        self._writer: LogWriter
        self._epoch = 0
        self._values = values
        self._driver = driver
        self._now = now
        self._lease_count = 0
        self._inbox = _Inbox()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._intake = Intake(
            run,
            acceptance=Acceptance(graph),
            engine=engine,
            values=values,
            leases=self.leases,
            suspects=self.suspects,
        )
        self._refusals: Counter[str] = Counter()
        self._notes = Notes()
        self._materials = Materials(graph)
        self._timers = Timers(run, now=now, write=self._write_own)
        self._answers = Answers(run, engine.approvals)
        self._form: CancelForm | None = None
        self._halting: asyncio.Task[None] | None = None
        self.on_changed: Callable[[RunSession], None] = lambda session: None
        self.on_acked: Callable[[RunSession, Mapping[str, int]], None] = lambda session, acks: None
        self.on_revoked: Callable[[RunSession, Mapping[str, list[str]]], None] = lambda session, leases: None
        self.on_ended: Callable[[RunSession, str], None] = lambda session, why: None

    def own(self, opened: Opened) -> None:
        """The log was read to its end, and is this driver's."""
        self._writer = opened.writer
        self._epoch = opened.epoch
        self.leader_epoch = max(self.leader_epoch, opened.leader_epoch)
        self.facts.attempt = opened.fences
        self.facts.head = opened.writer.head
        self.engine.abandoned.clear()
        self._suspending = self.engine.suspended

    async def adopt(self, records: list[Record]) -> None:
        """Commit results that come from an earlier run. For a session that has not started."""
        for slot, record in zip(await self._append(records), records, strict=True):
            await self.replay(slot, record)
        self._note_slot(self._writer.slot)

    # ------------------------------------------------------------------ what the driver calls

    def start(self) -> None:
        self._timers.tend(self.engine.timed())
        self._wake.set()
        self._task = asyncio.create_task(self._run(), name=f"run {self.run}")

    def submit(self, runner: str, submitted: Submitted) -> None:
        self._inbox.submitted.append((runner, submitted))
        self._wake.set()

    def cancel(self, form: CancelForm, *, reason: str = "") -> None:
        """Ask for the run's end; what runners hold is taken from them once the record is durable.

        A form that was asked for is kept, but for `Stop`, which may come later.
        """
        asked = self._form or self.engine.form
        if self.engine.closed is None and (asked is None or (form == "Stop" and asked != "Stop")):
            self._form = form
            envelope = {"run": self.run, "form": form, "reason": reason or form, "at": self._stamp()}
            self._inbox.own.append(Record(type="cancel", path="/", core=None, envelope=envelope, core_hash=""))
            self._wake.set()

    async def answer(self, answer: Answer) -> Verdict:
        """Record what a person decided; returns when that is durable, or with why it is refused.

        Raises `RunLetGo` when this driver lets go of the run before it is known.
        """
        waiting = self._answers.put(answer)
        self._wake.set()
        return await waiting

    def suspend(self, wanted: bool) -> None:
        """Hand out nothing new, or go on. What runners hold ends."""
        if wanted is not self._suspending and self.engine.closed is None:
            self._suspending = wanted
            self._write_own(
                Record.event("suspended" if wanted else "resumed", "/", {"run": self.run, "at": self._stamp()})
            )

    def take(self, limit: int, runner: str, *, room: Callable[[str], bool]) -> list[Task]:
        """Up to `limit` tasks for a runner; `room(key)` says whether a suspect may stand on it now."""
        tasks = self.engine.take(limit)
        kept = []
        for task in tasks:
            if room(task.key):
                kept.append(task)
            else:
                self.engine.give_back(task.key)
        if kept and self.engine.times_scopes:
            self._timers.tend(self.engine.timed())
        self._wake_if_due()
        self._show_waiting()
        return kept

    def _show_waiting(self) -> None:
        """Say it when all that is left waits for people: taking nothing can be what shows it."""
        if self.engine.awaiting is not self._awaiting:
            self._awaiting = self.engine.awaiting
            self.on_changed(self)

    def give_back(self, tasks: Iterable[Task]) -> None:
        """Tasks that were taken and reached no runner."""
        for task in tasks:
            self.engine.give_back(task.key)
        self._wake_if_due()

    def _wake_if_due(self) -> None:
        """Taking and giving back can end scopes: their records are due without anything having been committed."""
        if self.engine.deciding:
            self._wake.set()

    def returned(self, lease_id: str) -> None:
        """A runner gives an item back that it has not started."""
        lease = self.leases.pop(lease_id, None)
        if lease is not None:
            self.engine.give_back(lease.key)
            self._wake_if_due()

    async def done(self, task: Task) -> dict[str, Done]:
        """What is committed of a branch, its values loaded."""
        return {
            name: await done(self._values, record, read=name.startswith(HISTORY)) for name, record in task.done.items()
        }

    def item(self, task: Task, runner: str, done: Mapping[str, Done]) -> WorkItem:
        """A work item under a fresh lease held by `runner`."""
        self._lease_count += 1
        lease = Lease(f"{self._epoch}.{self._lease_count}", task.key, runner)
        self.leases[lease.id] = lease
        return WorkItem(
            run=self.run,
            lease=lease.id,
            kind=task.kind,
            scope=task.scope,
            node=task.node,
            env=task.env,
            template=task.template,
            parents=task.parents,
            skip=task.skip,
            done=done,
            notes=self._notes.of(task.key),
            files=task.files,
        )

    def lose(self, runner: str, beside: int) -> None:
        """A runner is gone: what it held may be taken by another, once that is in the log. What it had ended stands.

        `beside` is how many items it held of all runs: one that was alone on it is under suspicion.
        """
        ended = {one.lease for name, one in self._inbox.submitted if name == runner and one.last}
        held = [lease for lease in self.leases.values() if lease.runner == runner and lease.id not in ended]
        self.known_by.discard(runner)
        self._inbox.submitted = [
            (name, one) for name, one in self._inbox.submitted if name != runner or one.lease in ended
        ]
        for lease in held:
            del self.leases[lease.id]
            envelope = {
                "run": self.run,
                "lease": lease.id,
                "worker": runner,
                "held": beside,
                "at": self._stamp(),
            }
            self._inbox.own.append(
                Record(type="lease_lost", path=lease.key, core=None, envelope=envelope, core_hash="")
            )
        self._wake.set()

    def heed(self, leader_epoch: int) -> None:
        """A leader speaks. Raises `StaleLeader` when a later one spoke before."""
        if leader_epoch < self.leader_epoch:
            raise StaleLeader(self.run, leader_epoch, self.leader_epoch)
        self.leader_epoch = leader_epoch

    def halt(self, why: str) -> None:
        """A runner cannot store what it has, for `why`: the run is let go, and whoever wants it opens it again."""
        self.show_stalled(why)
        self._halting = asyncio.get_running_loop().create_task(self.stop(why))

    def projection(self) -> dict[str, Json]:
        return project(self.engine, self.facts)

    async def stop(self, why: str) -> None:
        """Let go of the run without a word in its log."""
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
            await asyncio.wait([self._task])
        self._end(why)

    # ------------------------------------------------------------------ the loop

    async def _run(self) -> None:
        try:
            if self.doomed is not None:
                await self._close(await self._closing(Close("failed", self.doomed, None, None)))
                self.on_changed(self)
            while self.facts.state_hash is None:
                await self._wake.wait()
                self._wake.clear()
                # What came in while the close was written came too late.
                while self.facts.state_hash is None and await self._step():
                    pass
        except Fenced as error:
            self._end(f"Fenced: {error}")
        except (StoreError, StoreUnknown) as error:
            self.show_stalled(str(error))
            self._end(str(error))
        except LedgerError as error:
            self._end(f"{type(error).__name__}: {error}")
        except Exception as error:
            log.exception("a fault in the driver; run %s is let go", self.run)
            self._end(f"{type(error).__name__}: {error}")
        else:
            self._end("")

    async def _step(self) -> bool:
        """Write one group of records and apply them. False when there was nothing to write."""
        inbox, self._inbox = self._inbox, _Inbox()
        answers = self._answers.judged(at=self._stamp())
        checked = self._intake.check(inbox.submitted, epoch=self._epoch)
        loaded = await self._intake.load(checked)
        records = [one.record for one in loaded]
        records += inbox.own + answers.records
        for task, failure in inbox.given_up:
            if self.engine.out.get(task.key) is task:
                signed = self._signed()
                records.append(await given_up(self._values, self.run, self.graph, task, failure, envelope=signed))
        close: Close | None = None
        # What ends the nodes is taken in first: what is decided beside it might not hold any more.
        ends = any(record.type == "cancel" or record.path == "/" for record in inbox.own)
        for decision in () if ends else self.engine.decide():
            if isinstance(decision, Close):
                close = decision
            else:
                records.append(await self._record_of(decision))
        if records:
            slots = await self._append(records)
            self.facts.committed += len(records)
            self._note_slot(slots[-1])
            for (slot, record), one in zip_longest(zip(slots, records, strict=True), loaded):
                await self._apply(slot, record, one)
            # Nothing is acknowledged after a stall of this process before the log is known to be ours still.
            await self._writer.confirm_recent()
        answers.settle()
        for lease, why in checked.void:
            self._offer_again(lease, why)
        if close is not None:
            # After what was written beside it: the state that the record names is that of all records before it.
            await self._close(await self._closing(close))
        if checked.acks:
            self.on_acked(self, checked.acks)
        if checked.refused:
            self.on_revoked(self, checked.refused)
        if records or close:
            self._timers.tend(self.engine.timed())
            self.on_changed(self)
        return bool(records) or close is not None

    async def _append(self, records: list[Record]) -> list[int]:
        """Write records; their slots. A store that does not answer is shown on the run meanwhile, and waited for."""
        late = asyncio.get_running_loop().call_later(
            STALL_SHOWN, self.show_stalled, f"no answer from the store for {STALL_SHOWN:g} s; the run waits for it"
        )
        try:
            return await self._writer.append_each(records)
        finally:
            late.cancel()
            self.show_recovered()

    def show_stalled(self, reason: str) -> None:
        self.facts.reason, self.facts.message = "StoreUnavailable", reason
        self.on_changed(self)

    def show_recovered(self) -> None:
        if self.facts.reason == "StoreUnavailable":
            self.facts.reason = self.facts.message = ""
            self.on_changed(self)

    async def _close(self, record: Record) -> None:
        await self._writer.finish(record)
        self.engine.apply(Applied(record))
        self.facts.finished_at = record.envelope["at"]
        self.facts.state_hash = record.envelope["state"]
        self._note_slot(self._writer.slot)

    def _write_own(self, record: Record) -> None:
        self._inbox.own.append(record)
        self._wake.set()

    def _note_slot(self, slot: int) -> None:
        self.facts.slot = slot
        self.facts.head = self._writer.head

    # ------------------------------------------------------------------ what runners sent

    def _offer_again(self, lease: Lease, why: str) -> None:
        """An item whose record was refused: offered again, given up when that happens again and again."""
        self._refusals[lease.key] += 1
        if self._refusals[lease.key] >= REFUSALS:
            self._give_up(lease.key, Failure(lease.key, "Terminal", "RecordRefused", f"its record is refused: {why}"))
        else:
            self.engine.give_back(lease.key)
            self._wake_if_due()

    # ------------------------------------------------------------------ what is durable

    async def _apply(self, slot: int, record: Record, loaded: Applied | None) -> None:
        self._notes.take(record)
        self._materials.take(record)
        match record.type:
            case "lease_lost":
                self._lost(record)
                return
        self.advanced = self.advanced or record.core is not None
        if usage := record.envelope.get("usage"):
            self.facts.add_usage(usage)
        self._show_failure(record)
        if loaded is None:
            loaded = await applied(self._values, self.engine, slot, record)
        self.engine.apply(replace(loaded, slot=slot))
        if self.engine.abandoned:
            self._abandon()

    def _show_failure(self, record: Record) -> None:
        failure = shown_failure(record)
        if failure is not None:
            self.facts.add_failure(failure)

    def _abandon(self) -> None:
        """Take back what runners do for what failed or was cancelled."""
        keys = set(self.engine.abandoned)
        self.engine.abandoned.clear()
        revoked: dict[str, list[str]] = {}
        for lease in [lease for lease in self.leases.values() if lease.key in keys]:
            del self.leases[lease.id]
            revoked.setdefault(lease.runner, []).append(lease.id)
        for key in keys:
            self.engine.give_back(key)
        if revoked:
            self.on_revoked(self, revoked)

    def _lost(self, record: Record) -> None:
        """A lost item: offered again with fewer neighbours, given up when it was alone too often."""
        if self.suspects.note(record).strikes >= LONE_STRIKES:
            lost = RunnerLost(record.path, LONE_STRIKES)
            self._give_up(record.path, Failure(record.path, lost.klass, lost.code, str(lost)))
        else:
            self.engine.give_back(record.path)

    def _give_up(self, key: str, failure: Failure) -> None:
        task = self.engine.out.get(key)
        if task is None:
            return
        self._inbox.given_up.append((task, failure))
        self._wake.set()

    # ------------------------------------------------------------------ what the driver writes itself

    async def _record_of(self, decision: Step) -> Record:
        return await record_of(decision, run=self.run, graph=self.graph, values=self._values, envelope=self._signed())

    def _signed(self) -> dict[str, Json]:
        return {"worker": self._driver, "at": self._stamp()}

    async def _closing(self, close: Close) -> Record:
        sealed = {channel.name: channel.sealed for channel in self.graph.root.channels}
        channels = {
            name: await channel_hash(self._values.sealing(sealed[name]), value)
            for name, value in self.engine.channels().items()
        }
        state = final_state_hash(self.engine.leaves(), channels, close.output_hash)
        envelope: dict[str, Json] = {
            "run": self.run,
            "outcome": close.outcome,
            "state": state,
            "output": close.output_hash,
            "channels": channels,
            "at": self._stamp(),
        }
        if close.failure is not None:
            self.facts.reason = close.failure.code
            self.facts.message = _placed(close.failure.path, close.failure.message)
            envelope["failure"] = {
                "path": close.failure.path,
                "class": close.failure.klass,
                "code": close.failure.code,
                "message": close.failure.message,
            }
        if (statement := self._materials.statement(self.run, envelope, by=self._writer.certificate)) is not None:
            envelope["provenance"] = self._writer.attested(statement)
        return Record(type="close", path="/", core=None, envelope=envelope, core_hash="")

    # ------------------------------------------------------------------ the end

    def _end(self, why: str) -> None:
        if not self.ended.is_set():
            self.why = why
            self.ended.set()
            self._timers.stop()
            self._answers.fail(why)
            self.leases.clear()
            self.on_ended(self, why)

    def _stamp(self) -> str:
        return self._now().astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    # ------------------------------------------------------------------ opening

    async def replay(self, slot: int, record: Record) -> None:
        """Take one record of the log as it was found; nothing is handed out meanwhile."""
        self.facts.slot = slot
        self.facts.committed += 1
        self._notes.take(record)
        self._materials.take(record)
        match record.type:
            case "genesis" | "fence":
                return
            case "lease_lost":
                self.suspects.note(record)
                return
            case "close":
                self._closed_before(record)
                return
        if usage := record.envelope.get("usage"):
            self.facts.add_usage(usage)
        self._show_failure(record)
        self.engine.apply(await applied(self._values, self.engine, slot, record))

    def _closed_before(self, record: Record) -> None:
        self.engine.apply(Applied(record))
        self.facts.state_hash = record.envelope["state"]
        self.facts.finished_at = record.envelope["at"]
        if failed := record.envelope.get("failure"):
            self.facts.reason = failed["code"]
            self.facts.message = _placed(failed["path"], failed["message"])


def _placed(path: str, message: str) -> str:
    """`message` with its place in front, once."""
    return message if message.startswith(path) else f"{path}: {message}"

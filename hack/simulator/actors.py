"""Drivers and runners of the simulated run: as the product's, with the real writer, journal, permits and receipts.

    runner ─ records ─▶ driver ─ LogWriter ─▶ log ─▶ acknowledgement ─▶ runner

What a driver knows it has from the log. A branch is given to a runner under a lease; a runner that falls silent loses
it. An effect in doubt is asked of a person, by a record, and her answer is one.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from decurion_ledger import LogWriter, Record, RecordType, Values, vhash
from decurion_ledger.errors import Fenced, LedgerError, LogCorrupt, RunClosed, StaleLeader
from decurion_ledger.patience import Patience
from decurion_ledger.writer import Settings
from decurion_worker.effects import Effectful
from decurion_worker.errors import EffectInDoubt, ToolTimeout, ToolUnavailable, Transient
from decurion_worker.permits import Permit, Receipts, Terms
from decurion_worker.tools.port import ToolAnswer
from simulator import keys, work
from simulator.network import Client
from simulator.world import Process, ProcessClock

if TYPE_CHECKING:
    from simulator.simulation import Simulation

STALL = 5.0
LEASE = 30.0
BEAT = 6.0
TOOL_SECONDS = 5.0
TERMS = Terms(permit=15.0, lease=LEASE)
SETTINGS = Settings(
    patience=Patience(total=60.0, blocked=2.0, first=0.2, longest=8.0, attempt=10.0),
    opening=Patience(total=30.0, first=0.2, longest=8.0, attempt=10.0),
    stall=STALL,
    idle=20.0,
)


@dataclass(frozen=True, slots=True)
class Item:
    """A branch to be done: what is committed of it (core hashes by path), and its effects' records."""

    branch: int
    lease: str
    done: dict[str, str]
    notes: tuple[Record, ...]


@dataclass(slots=True)
class Sent:
    """A record on its way from a runner to its driver."""

    runner: Runner
    number: int
    item: Item
    record: Record
    last: bool


class Driver:
    """One incarnation of a driver, and the runners that it owns. `why` says how it ended, once it has."""

    def __init__(self, simulation: Simulation, name: str, leader_epoch: int) -> None:
        self.simulation = simulation
        self.world = simulation.world
        self.name = name
        self.leader_epoch = leader_epoch
        self.process = Process(self.world, name)
        self.client = Client(self.process, simulation.objects, simulation.weather)
        self.why: str | None = None
        self.opened = False
        self.heard = self.world.now
        """When the operator last heard of it."""
        self.runners: list[Runner] = []
        self.committed: dict[str, str] = {}
        self.notes: dict[str, list[Record]] = defaultdict(list)
        self.leases: dict[int, tuple[str, Runner]] = {}
        self._epoch = 0
        self._leased = 0
        self._made = 0
        self._inbox: list[Sent] = []
        self._own: list[Record] = []
        self._wake = asyncio.Event()
        self._seen: dict[str, float] = {}
        self._numbers: dict[str, int] = {}
        self._asked: set[str] = set()
        self._writer: LogWriter
        self._diary: asyncio.Task[None] | None = None
        self._lost: LedgerError | None = None

    def start(self) -> None:
        self.process.start(self._main())

    # ------------------------------------------------------------------ its life

    async def _main(self) -> None:
        self._alive()
        try:
            self.end(await self._run())
        except Fenced as error:
            self.simulation.oracle.fenced(self.name, error.slot)
            self.end("Fenced")
        except StaleLeader:
            self.end("StaleLeader")
        except LogCorrupt as error:
            self.simulation.oracle.alarm(self.name, str(error))
            self.end("LogCorrupt")
        except LedgerError as error:
            self.end(type(error).__name__)

    def end(self, why: str) -> None:
        if self.why is None and not self.world.closing:
            self.why = why
            self.world.note(self.name, f"ends: {why}")

    def _alive(self) -> None:
        self.heard = self.world.now
        if self.why is None:
            asyncio.get_running_loop().call_later(BEAT, self._alive)

    async def _run(self) -> str:
        variant = self.simulation.variant
        opened = await variant.writer.open(
            variant.store(self.client),
            work.RUN,
            leader_epoch=self.leader_epoch,
            driver=self.name,
            genesis=lambda: self._record(work.event(RecordType.GENESIS, "/", {"by": self.name})),
            settings=SETTINGS,
            clock=ProcessClock(self.process),
            nonce=self.name,
            signer=keys.signer(self.name, work.RUN),
        )
        writer = self._writer = opened.writer
        self.opened = True
        self.simulation.oracle.opened(self.name, [(slot, record) for slot, record in opened.records])
        if opened.closed:
            return "closed"
        self._epoch = opened.epoch
        for _, record in opened.records:
            self._apply(record)
        self._start_runners()
        self._offer()
        self._watch()
        while True:
            if self._lost is not None:
                raise self._lost
            records, sent = self._gather()
            if records:
                slots = await writer.append_each(records)
                for record in records:
                    self._apply(record)
                await writer.confirm_recent()
                # From here to the sending nothing is waited for.
                for record, slot in zip(records, slots, strict=True):
                    self.simulation.oracle.acknowledged(self.name, record, slot)
                self.simulation.oracle.stands(self.name, max(slots), self.committed)
                for one in sent:
                    self._answer(one)
                self._offer()
            elif "/joined" in self.committed:
                close = self._record(work.event(RecordType.CLOSE, "/", {"phase": "Succeeded"}))
                await writer.finish(close)
                self.simulation.oracle.acknowledged(self.name, close, writer.slot)
                return "closed"
            else:
                self._wake.clear()
                await self._wake.wait()

    # ------------------------------------------------------------------ records

    def _record(self, record: Record) -> Record:
        """A record of this driver, or of a runner of it, with a number of its own."""
        if "number" not in record.envelope:
            self._made += 1
            record = replace(record, envelope={**record.envelope, "number": f"{self.name}#{self._made}"})
        self.simulation.oracle.made(self.name, record)
        return record

    def _gather(self) -> tuple[list[Record], list[Sent]]:
        """What is to be written now, and which of it was sent by runners."""
        inbox, self._inbox = self._inbox, []
        records, self._own = self._own, []
        sent = []
        paths: set[str] = set()
        for one in inbox:
            lease = self.leases.get(one.item.branch)
            free = one.record.path not in self.committed and one.record.path not in paths
            if lease is None or lease[0] != one.item.lease or (one.record.core is not None and not free):
                continue
            if one.record.core is not None:
                paths.add(one.record.path)
            if one.last:
                del self.leases[one.item.branch]
            records.append(self._record(one.record))
            sent.append(one)
        ends = {work.path(b, "last") for b in range(self.simulation.branches)}
        if not records and "/joined" not in self.committed and ends <= self.committed.keys():
            before = {end: self.committed[end] for end in ends}
            records.append(self._record(work.join(before, {"run": work.RUN, "by": self.name})))
        return records, sent

    def _apply(self, record: Record) -> None:
        if record.core is not None:
            self.committed[record.path] = record.core_hash
        elif record.path != "/":
            self.notes[record.path].append(record)

    def _answer(self, one: Sent) -> None:
        self.simulation.send(self.process, one.runner.process, lambda: one.runner.acknowledged(one.item, one.number))

    # ------------------------------------------------------------------ work

    def _start_runners(self) -> None:
        for _ in range(2):
            runner = Runner(self, f"{self.name}.r{len(self.runners)}")
            self.runners.append(runner)
            self._seen[runner.name] = self.process.time()
            runner.process.start(runner.live())

    def _offer(self) -> None:
        for branch in range(self.simulation.branches):
            if work.path(branch, "last") in self.committed or branch in self.leases:
                continue
            notes = self.notes[work.path(branch, "tool")]
            if notes and notes[-1].type == RecordType.APPROVAL_REQUESTED:
                self._ask(branch, notes[-1])
                continue
            able = [r for r in self.runners if self._seen[r.name] + LEASE > self.process.time()]
            if not able:
                continue
            runner = able[(branch + self._leased) % len(able)]
            self._leased += 1
            lease = f"{self._epoch}.{self._leased}"
            self.leases[branch] = (lease, runner)
            done = {p: self.committed[p] for s in work.STEPS if (p := work.path(branch, s)) in self.committed}
            item = Item(branch, lease, done, tuple(self.notes[work.path(branch, "tool")]))
            self.simulation.oracle.given(self.name, lease, done)
            self.simulation.send(self.process, runner.process, lambda r=runner, i=item: r.take(i))

    def _watch(self) -> None:
        """Take the leases of runners that have fallen silent."""
        now = self.process.time()
        for branch, (lease, runner) in list(self.leases.items()):
            if self._seen[runner.name] + LEASE <= now:
                del self.leases[branch]
                lost = work.event(RecordType.LEASE_LOST, f"/b{branch}", {"lease": lease, "at": f"{self.world.now:.6f}"})
                self._own.append(self._record(lost))
                self._wake.set()
        if all(self._seen[r.name] + LEASE <= now for r in self.runners) and len(self.runners) < 12:
            self._start_runners()
            self._wake.set()
        for runner in self.runners:
            self.simulation.send(self.process, runner.process, runner.hear)
        self._offer()
        if self.why is None:
            if self._diary is None or self._diary.done():
                self._diary = asyncio.get_running_loop().create_task(self._write_diary())
            asyncio.get_running_loop().call_later(BEAT, self._watch)

    async def _write_diary(self) -> None:
        """Records beside those of the runners, so that some arrive while a segment is on its way."""
        try:
            for _ in range(self.world.rng.choice((0, 0, 1, 3))):
                record = self._record(work.event(RecordType.TIMER_SET, "/", {"by": self.name}))
                (slot,) = await self._writer.append_each([record])
                await self._writer.confirm_recent()
                self.simulation.oracle.acknowledged(self.name, record, slot)
        except RunClosed:
            return
        except LedgerError as error:
            self._lost = error
            self._wake.set()

    def submit(self, sent: Sent | None, runner: Runner) -> None:
        """A record of a runner, or its sign of life. What was heard before is not heard again."""
        self._seen[runner.name] = self.process.time()
        if sent is not None and sent.number > self._numbers.get(runner.name, 0):
            self._numbers[runner.name] = sent.number
            self._inbox.append(sent)
            self._wake.set()

    # ------------------------------------------------------------------ the person

    def _ask(self, branch: int, request: Record) -> None:
        name: str = request.envelope["request"]
        if name not in self._asked:
            self._asked.add(name)
            self.simulation.person.ask(branch, name)

    def answered(self, branch: int, request: str, *, done: bool) -> None:
        """The person's answer. One to a request that is not open any more is not heard."""
        where = work.path(branch, "tool")
        notes = self.notes[where]
        if not self.opened or self.why is not None or not notes or notes[-1].envelope.get("request") != request:
            return
        if any(r.envelope.get("request") == request for r in self._own):
            return
        told: dict[str, Any] = {"request": request, "at": f"{self.world.now:.6f}"}
        answer: dict[str, Any] = {"message": "repeat"}
        if done:
            given = ToolAnswer("done").to_json()
            answer = {"answer": vhash(given), "values": {vhash(given): {"inline": given}}}
        given_ = work.event(RecordType.APPROVAL_GIVEN, where, told)
        settled = work.event(RecordType.EFFECT_SETTLED, where, {**told, **answer})
        self._own += [self._record(given_), self._record(settled)]
        self._wake.set()


@dataclass(slots=True)
class _Waiting:
    number: int
    done: asyncio.Future[None]


class Runner:
    """A runner of one driver. It ends when it hears nothing of that for a lease."""

    def __init__(self, driver: Driver, name: str) -> None:
        self.driver = driver
        self.name = name
        self.simulation = driver.simulation
        self.process = Process(driver.world, name)
        self.client = Client(self.process, self.simulation.objects, self.simulation.weather)
        self.clock = ProcessClock(self.process)
        self.receipts = Receipts(self.client, clock=self.clock)
        self.values = Values(
            self.client, work.RUN, clock=self.clock, patience=SETTINGS.patience, now=lambda: driver.world.now
        )
        self.ended = False
        self._heard = self.process.time()
        self._sent = 0
        self._waiting: dict[str, list[_Waiting]] = defaultdict(list)
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def live(self) -> None:
        last = self.process.time()
        while not self.ended:
            self.simulation.send(self.process, self.driver.process, lambda: self.driver.submit(None, self))
            await asyncio.sleep(BEAT)
            now = self.process.time()
            if now - last > BEAT + 2.0:
                self._heard = now
            last = now
            if now - self._heard > LEASE:
                self.end()

    def end(self) -> None:
        self.ended = True
        for task in self._tasks.values():
            task.cancel()

    def hear(self) -> None:
        self._heard = self.process.time()

    def take(self, item: Item) -> None:
        if not self.ended and item.lease not in self._tasks:
            self._tasks[item.lease] = asyncio.get_running_loop().create_task(self._work(item))

    def acknowledged(self, item: Item, number: int) -> None:
        self.hear()
        waiting = self._waiting[item.lease]
        while waiting and waiting[0].number <= number:
            one = waiting.pop(0)
            if not one.done.done():
                one.done.set_result(None)

    # ------------------------------------------------------------------ one branch

    async def _work(self, item: Item) -> None:
        done = dict(item.done)
        try:
            for number, step in enumerate(work.STEPS):
                where = work.path(item.branch, step)
                done = self.simulation.variant.view(self, item, done)
                self.simulation.oracle.viewed(self.driver.name, item.lease, item.branch, done)
                if where in done:
                    continue
                if step == "tool" and not await self._effect(item):
                    return
                before = {p: done[p] for s in work.STEPS[:number][-1:] if (p := work.path(item.branch, s))}
                envelope = {"run": work.RUN, "lease": item.lease, "worker": self.name}
                record = await work.result(self.values, item.branch, step, before, envelope)
                done[where] = record.core_hash
                self._emit(item, record, last=step == "last")
                await self.clock.pause(self.simulation.world.rng.uniform(0.05, 2.0))
        except (Transient, LedgerError) as error:
            # As the product lets go of the run: whoever wants it opens it again.
            self.simulation.world.note(self.name, f"gives up {item.lease}: {type(error).__name__}")
            self.ended = True

    def _emit(self, item: Item, record: Record, *, last: bool = False) -> int:
        self._sent += 1
        if record.core is not None:
            self.simulation.oracle.gave(self.driver.name, item.lease, record.path, record.core_hash)
        record = replace(record, envelope={**record.envelope, "number": f"{self.name}.{self._sent}"})
        one = Sent(self, self._sent, item, record, last)
        self.simulation.send(self.process, self.driver.process, lambda: self.driver.submit(one, self))
        return self._sent

    async def _durable(self, item: Item, record: Record) -> None:
        one = _Waiting(self._emit(item, record), asyncio.get_running_loop().create_future())
        self._waiting[item.lease].append(one)
        await one.done

    async def _effect(self, item: Item) -> bool:
        """Whether the branch's effect is carried out now; else a person is asked, and the branch is left."""
        where = work.path(item.branch, "tool")
        journal = self.simulation.variant.journal(
            self.values,
            work.RUN,
            earlier=item.notes,
            durable=lambda record: self._durable(item, record),
            envelope={"lease": item.lease, "worker": self.name},
            receipts=self.receipts,
            terms=TERMS,
            clock=self.clock,
        )
        effect = Effectful(journal, where, server="s", tool="t", arguments={})
        before = await journal.effect(where)
        if before is not None and before.state == "done":
            return True
        try:
            if before is not None and before.state == "intended":
                await effect.found_out(TOOL_SECONDS)
            else:
                await effect.once(lambda permit: self._call(item, where, permit))
        except EffectInDoubt:
            request = f"{item.lease}@{self.name}.{self._sent}"
            asked = work.event(RecordType.APPROVAL_REQUESTED, where, {"request": request, "lease": item.lease})
            self._emit(item, asked, last=True)
            return False
        return True

    async def _call(self, item: Item, where: str, permit: Permit) -> ToolAnswer:
        """The call of the tool: it may get lost, or its answer; what was sent is carried out within its time-out."""
        world, rng = self.simulation.world, self.simulation.world.rng
        if not permit.holds:
            raise ToolUnavailable("the permit is over", sent=False)
        fate = rng.random()
        if fate < 0.1 and not self.simulation.weather.calm:
            raise ToolUnavailable("no connection", sent=False)
        answered: asyncio.Future[None] = self.process.create_future()
        reply: Callable[[], None] = lambda: None if answered.done() else answered.set_result(None)  # noqa: E731
        lost = fate > 0.85 and not self.simulation.weather.calm

        def carried_out() -> None:
            self.simulation.oracle.carried_out(where, self.name)
            if not lost:
                world.after(rng.uniform(0.01, 0.2), lambda: self.process.call_soon(reply) and None)

        world.note(self.name, f"calls {where}")
        world.after(rng.uniform(0.05, TOOL_SECONDS * 0.95), carried_out)
        try:
            async with asyncio.timeout(TOOL_SECONDS):
                await answered
        except TimeoutError:
            raise ToolTimeout("no answer", sent=True) from None
        return ToolAnswer("done")

"""A runner: takes items from its driver, executes them, and sends what came of them as records.

It holds nothing that is not in the ledger or can be worked out again. When its driver falls silent, speaks with
another incarnation, or does not know it any more, it stops everything and ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from decurion_crds.errors import DecurionError
from decurion_crds.expressions import Evaluator
from decurion_ledger import Record, Seal, Store
from decurion_ledger.errors import StoreError
from decurion_ledger.patience import Patience
from decurion_worker.context import CallsOpen, RunContext
from decurion_worker.emitting import Emitter
from decurion_worker.engine.tasks import task_of
from decurion_worker.failure import Failure, unsaid
from decurion_worker.link import (
    Acked,
    Alive,
    Beat,
    Begin,
    DriverPort,
    End,
    FromRunner,
    Halted,
    Joined,
    Key,
    Outbox,
    Recall,
    Returned,
    Revoked,
    Runners,
    Secrets,
    Submitted,
    ToRunner,
    Work,
    WorkItem,
)
from decurion_worker.permits import Receipts, Terms
from decurion_worker.records import given_up
from decurion_worker.slots import ModelSlots
from decurion_worker.sources import Sources
from decurion_worker.tools import ToolServers
from decurion_worker.wall_clock import utc_now
from decurion_worker.working import work_on

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunnerSettings:
    """`branches`: items held at once. `window`: records of one item, `credit`: bytes of all (by estimate), sent and not
    yet durable.

    Items that wait for nothing but the interpreter are started `ahead` at a time for each of its processes: the others
    can be recalled.

    `beat` and `silence` are seconds: how often it says that it lives, and how long it works without a word from its
    driver. `processes` are interpreter processes. `patience` is how long the writing of a blob is repeated. `terms`
    are those of calls that must not be made twice.
    """

    branches: int = 1024
    processes: int = 2
    ahead: int = 64
    window: int = 16
    credit: int = 8 * 1024 * 1024
    beat: float = 2.0
    silence: float = 30.0
    patience: Patience = field(default_factory=Patience)
    terms: Terms = field(default_factory=Terms)


@dataclass(slots=True)
class RunState:
    context: RunContext
    sent: int = 0
    acked: int = 0
    waiters: deque[tuple[int, asyncio.Future[None]]] = field(default_factory=deque)
    sizes: deque[tuple[int, int]] = field(default_factory=deque)
    ended: bool = False


class Runner:
    """One runner of one driver incarnation. `name` says where it runs and is written into every record.

    `evaluator` opens the interpreter, given the number of its processes. `now` is the wall clock.
    """

    def __init__(
        self,
        name: str,
        *,
        driver: DriverPort,
        incarnation: str,
        store: Store,
        sources: Sources,
        settings: RunnerSettings,
        on_end: Callable[[str], None],
        broken: tuple[type[Exception], ...] = (),
        pause: float = 0.0,
        evaluator: Callable[[int], Evaluator] = Evaluator,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self.name = name
        self._now = now
        self._incarnation = incarnation
        self._store = store
        self._sources = sources
        self._settings = settings
        self._on_end = on_end
        self._runs: dict[str, RunState] = {}
        self._seals: dict[str, Seal] = {}
        """The keys of runs that will begin."""
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._waiting: dict[tuple[str, str], WorkItem] = {}
        """Items that are not started, in the order in which they came."""
        self._computing: set[tuple[str, str]] = set()
        self._seen = 0
        self._unacked = 0
        self._heard = 0.0
        self._room = asyncio.Event()
        self._room.set()
        self._evaluator = evaluator(settings.processes)
        self._starting = asyncio.Lock()
        self._started = False
        self._beating: asyncio.Task[None] | None = None
        self._ended = False
        self._closing: set[asyncio.Task[None]] = set()
        self._slots = ModelSlots()
        self._tools = ToolServers()
        self.receipts = Receipts(store)
        self.terms = settings.terms
        self._leaving: asyncio.Task[None] | None = None

        async def send(seq: int, messages: list[FromRunner]) -> bool:
            return await driver.submit(name, incarnation, seq, messages)

        self._outbox = Outbox(send, on_broken=self._lost_driver, broken=broken, pause=pause)

    async def start(self) -> None:
        """Open the interpreter and report to the driver. A runner that was stopped meanwhile does not start."""
        async with self._starting:
            if self._ended:
                return
            await self._evaluator.__aenter__()
            self._started = True
        self._heard = asyncio.get_running_loop().time()
        self._outbox.put(Joined(worker=self.name, capacity=self._settings.branches))
        self._beating = asyncio.create_task(self._beat())

    async def deliver(self, incarnation: str, seq: int, messages: Sequence[ToRunner]) -> bool:
        """Take what the driver says. A call that was heard before is answered and otherwise ignored."""
        if incarnation != self._incarnation or self._ended:
            self._lost_driver("another incarnation spoke")
            return False
        self._heard = asyncio.get_running_loop().time()
        if seq <= self._seen:
            return True
        self._seen = seq
        for message in messages:
            self._take(message)
        return True

    def _take(self, message: ToRunner) -> None:
        match message:
            case Work(items):
                for item in items:
                    self._receive(item)
            case Recall(count):
                self._give_back(count)
            case Acked(run, through):
                self._acked(run, through)
            case Begin():
                self._begin(message)
            case Key(run, seal):
                self._seals[run] = seal
            case Runners(count):
                self._slots.share(count)
                self._tools.slots.share(count)
            case Secrets(run, values):
                if run in self._runs:
                    self._runs[run].context.give_secrets(values)
            case Revoked(run, leases):
                for lease in leases:
                    self._cancel((run, lease))
            case End(run):
                self._drop_run(run)
            case Alive():
                return

    def _begin(self, begin: Begin) -> None:
        seal = self._seals.pop(begin.run, None)
        if begin.run in self._runs:
            return
        context = RunContext(
            run=begin.run,
            graph=begin.graph,
            seed=begin.seed,
            clock=begin.clock,
            facts=begin.facts,
            store=self._store,
            sources=self._sources,
            evaluator=self._evaluator,
            slots=self._slots,
            tools=self._tools,
            store_patience=self._settings.patience,
            now=self._now,
            seal=seal,
        )
        self._runs[begin.run] = RunState(context)

    # ------------------------------------------------------------------ work

    def _receive(self, item: WorkItem) -> None:
        run = self._runs.get(item.run)
        if run is None or run.context.waits(item):
            self._tasks[item.run, item.lease] = asyncio.create_task(self._work(item))
        else:
            self._waiting[item.run, item.lease] = item
            self._start_waiting()

    def _start_waiting(self) -> None:
        """Start what only computes, as much as keeps the interpreter's processes busy."""
        while self._waiting and len(self._computing) < self._settings.ahead * self._settings.processes:
            key = next(iter(self._waiting))
            item = self._waiting.pop(key)
            self._computing.add(key)
            self._tasks[key] = asyncio.create_task(self._work(item))

    def _give_back(self, count: int) -> None:
        """Give back up to `count` items that were not started, the latest first."""
        given = [self._waiting.popitem()[0] for _ in range(min(count, len(self._waiting)))]
        self._outbox.put(Returned(given))

    async def _work(self, item: WorkItem) -> None:
        run = self._runs.get(item.run)
        try:
            if run is not None:
                await self._execute(run, item)
        except asyncio.CancelledError:
            raise
        except StoreError as error:
            # No fault of the item, nor of this runner: the run is let go whole, and opened again later.
            log.info("item %s of run %s cannot be stored: %s", item.scope or item.node, item.run, error)
            self._outbox.put(Halted(item.run, str(error)))
            self._drop_run(item.run)
        except Exception:
            # A fault of ours must not look like a slow item: the driver hears that the runner is gone and offers its
            # items to another, three times at most.
            log.exception("item %s of run %s broke its runner", item.scope or item.node, item.run)
            self._end("a fault in the runner")
        finally:
            self._tasks.pop((item.run, item.lease), None)
            self._computing.discard((item.run, item.lease))
            self._start_waiting()

    async def _execute(self, run: RunState, item: WorkItem) -> None:
        emit = Emitter(self, run, item, window=self._settings.window)
        try:
            try:
                await work_on(run.context, item, worker=self.name, emit=emit, journal=emit.journal())
            except CallsOpen:
                await self._park(item, emit)
        except StoreError:
            raise
        except DecurionError as error:
            # What is stored is not what it should be: the item fails, not all that stand beside it.
            shown = None if run.context.graph.sealed else error
            log.error(
                "item %s of run %s fails: %s", item.scope or item.node, item.run, type(error).__name__, exc_info=shown
            )
            await self._fail_item(run, item, error)

    async def _fail_item(self, run: RunState, item: WorkItem, error: DecurionError) -> None:
        task = task_of(item)
        failure = Failure(task.key, "Terminal", type(error).__name__, str(error))
        if run.context.graph.sealed:
            failure = unsaid(failure)
        envelope = {"lease": item.lease, "worker": self.name}
        context = run.context
        record = await given_up(context.values, item.run, context.graph, task, failure, envelope=envelope)
        await self.emit(run, item, record, True)

    async def _park(self, item: WorkItem, emit: Emitter) -> None:
        """Give an agent back that waits for others, once all that says so is durable."""
        await emit.settled()
        self._outbox.put(Returned([(item.run, item.lease)]))

    async def emit(self, run: RunState, item: WorkItem, record: Record, last: bool) -> int:
        """Queue a record for the driver; waits while the runner's credit is used up."""
        while self._unacked > self._settings.credit and not run.ended:
            self._room.clear()
            await self._room.wait()
        if run.ended:
            raise asyncio.CancelledError
        run.sent += 1
        size = _size(record)
        self._unacked += size
        run.sizes.append((run.sent, size))
        self._outbox.put(Submitted(item.run, run.sent, item.lease, record, last))
        return run.sent

    async def durable(self, run: RunState, seq: int) -> None:
        """Return when record `seq` of the run is durable (or refused)."""
        if run.acked >= seq:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        run.waiters.append((seq, waiter))
        await waiter

    def _acked(self, name: str, through: int) -> None:
        run = self._runs.get(name)
        if run is None:
            return
        run.acked = max(run.acked, through)
        while run.sizes and run.sizes[0][0] <= through:
            self._unacked -= run.sizes.popleft()[1]
        if self._unacked <= self._settings.credit:
            self._room.set()
        while run.waiters and run.waiters[0][0] <= through:
            waiter = run.waiters.popleft()[1]
            if not waiter.done():
                waiter.set_result(None)

    # ------------------------------------------------------------------ life

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        last = loop.time()
        while not self._ended:
            await asyncio.sleep(self._settings.beat)
            self._outbox.put(Beat())
            now = loop.time()
            if now - last > self._settings.beat + 2.0:
                self._heard = now  # this process slept or starved: that is no silence of the driver's
            last = now
            if now - self._heard > self._settings.silence:
                self._lost_driver(f"no word from the driver for {self._settings.silence:.0f} s")

    def _lost_driver(self, why: str) -> None:
        self._end(why)

    def _end(self, why: str) -> None:
        if self._ended:
            return
        self._ended = True
        self._waiting.clear()
        log.info("runner %s ends: %s", self.name, why)
        running = list(self._tasks.values())
        for key in list(self._tasks):
            self._cancel(key)
        self._outbox.close()
        if running:
            self._leaving = asyncio.get_running_loop().create_task(self._leave(running))
        else:
            self._on_end(self.name)

    async def _leave(self, running: list[asyncio.Task[None]]) -> None:
        """End once the items that were cancelled have left what is to be left of them."""
        await asyncio.wait(running, timeout=1.0)
        await self.receipts.aclose()
        self._on_end(self.name)

    def _cancel(self, key: tuple[str, str]) -> None:
        self._waiting.pop(key, None)
        task = self._tasks.pop(key, None)
        if task is not None:
            task.cancel()

    def _drop_run(self, name: str) -> None:
        """Stop the run's items with it: another driver may own them, and nothing acknowledges their records."""
        self._seals.pop(name, None)
        run = self._runs.pop(name, None)
        if run is None:
            return
        for key in [key for key in (*self._tasks, *self._waiting) if key[0] == name]:
            self._cancel(key)
        self._unacked -= sum(size for _, size in run.sizes)
        run.sizes.clear()
        run.ended = True
        self._room.set()
        closing = asyncio.get_running_loop().create_task(run.context.aclose())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def stop(self) -> None:
        """End the runner and everything it holds."""
        self._end("stopped")
        if self._beating is not None:
            self._beating.cancel()
        if self._leaving is not None:
            await asyncio.wait([self._leaving])
        await self.receipts.aclose()
        for run in list(self._runs.values()):
            await run.context.aclose()
        self._runs.clear()
        await self._tools.aclose()
        async with self._starting:
            if self._started:
                self._started = False
                await self._evaluator.__aexit__(None, None, None)


def _size(record: Record) -> int:
    """Bytes that a record holds until it is durable, roughly: what is fixed, and its inline values."""
    values = record.envelope.get("values") or {}
    return 1024 + 256 * len(values)

"""One seed: the drivers of a run, those who send them out, a person, and all that goes wrong; then the verdict.

In the first minutes faults fall as the seed says; then everything is mended, and the run must end, with what an
undisturbed one gives, everything acknowledged in its log, and each effect carried out once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from functools import lru_cache

from decurion_ledger import LogWriter, Store, Values, check_proof, prove, verify
from decurion_ledger.errors import NotFound, StoreError
from decurion_ledger.retention import collect
from decurion_ledger.stores import MemoryStore, ObjectInfo
from decurion_worker.journal import Journal
from simulator import keys, work
from simulator.actors import BEAT, STALL, Driver, Item, Runner
from simulator.network import Change, Client, Objects, Weather
from simulator.oracle import Oracle
from simulator.world import Process, ProcessClock, World

TROUBLE = 160.0
"""Seconds in which faults fall."""
ENOUGH = 700.0
"""Seconds after which a run that has not ended never will."""
SILENT = 20.0
"""Seconds without a word after which the operator sends out another driver."""
HOLD = 100.0
"""Seconds between a tomb and a deletion; the writer looks for tombs after a sleep of a fifth of that."""
AWAKE = 800.0
"""When who slept through the end of its run, and through its collection, wakes."""
PROVED = 8
"""Of so many seeds one has proofs of its records made and checked."""
STOPS = (0.5, 3.0, 6.0, 12.0, 25.0, 60.0, 120.0, 200.0)


@dataclass(frozen=True)
class Variant:
    """What the simulated drivers are made of: the product's parts, or one of them with a known fault."""

    name: str = "the product"
    writer: type[LogWriter] = LogWriter
    journal: type[Journal] = Journal
    store: Callable[[Client], Store] = field(default=lambda client: client)
    collect: Callable[..., Awaitable[object]] = collect
    view: Callable[[Runner, Item, dict[str, str]], dict[str, str]] = field(default=lambda runner, item, done: done)
    """What a node sees of what is done."""


@dataclass(frozen=True)
class Outcome:
    """`trace` is the digest of the whole history; `met` counts the faults by name."""

    seed: int
    violations: list[str]
    trace: str
    steps: int
    slots: int
    met: dict[str, int]
    lines: list[str] | None


def simulate(seed: int, variant: Variant | None = None, *, told: bool = False) -> Outcome:
    """The history of `seed`, judged. `told` keeps its lines."""
    return Simulation(seed, variant or Variant(), told=told).run()


class Person:
    """Answers after a while what came of an effect: she looks whether it was carried out, and if not says "repeat"."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    def ask(self, branch: int, request: str) -> None:
        world = self._simulation.world
        world.note("person", f"is asked {request}")
        world.after(world.rng.choice((0.5, 5.0, 30.0)), lambda: self._answer(branch, request))

    def _answer(self, branch: int, request: str) -> None:
        simulation = self._simulation
        done = simulation.oracle.effects[work.path(branch, "tool")] > 0
        simulation.world.note("person", f"answers {request}: {'done' if done else 'repeat'}")
        for driver in simulation.drivers[-3:]:
            simulation.send(None, driver.process, lambda d=driver: d.answered(branch, request, done=done))


class Simulation:
    def __init__(self, seed: int, variant: Variant, *, told: bool) -> None:
        self.seed = seed
        self.world = World(seed, told=told)
        rng = self.world.rng
        self.variant = variant
        self.branches = rng.choice((1, 2, 2, 3))
        self.objects = Objects(self.world)
        self.weather = Weather(rng.choice((0.0, 0.05, 0.15, 0.35)))
        self.oracle = Oracle(self.world, self.objects, work.RUN, stall=STALL)
        self.person = Person(self)
        self.drivers: list[Driver] = []
        self._leader = 1
        self._cut_links: dict[str, float] = {}
        self._last: dict[tuple[str, str], float] = {}
        self._snipe = rng.choice((0.0, 0.03, 0.1))
        self._collects = rng.random() < 0.25
        self.objects.watchers.append(self._sniped)

    def run(self) -> Outcome:
        world, rng = self.world, self.world.rng
        self._send_out(self._leader)
        world.after(BEAT, self._operate)
        for _ in range(rng.choice((0, 2, 5, 10))):
            world.at(rng.uniform(0.0, TROUBLE), self._strike)
        if rng.random() < 0.1:
            world.at(rng.uniform(0.0, 20.0), self._duel)
        if self._collects:
            world.at(rng.uniform(0.2, 12.0), self._oversleep)
        world.at(TROUBLE, self._mend)
        quiet = TROUBLE + max(STOPS) + 5.0
        world.run(lambda: bool(self.oracle.violations) or (world.now > TROUBLE and self._over), deadline=ENOUGH)
        if not self.oracle.violations and any(p.paused for p in world.processes):
            world.run(lambda: bool(self.oracle.violations), deadline=min(quiet, world.now + max(STOPS)))
        self._judge()
        if self._collects and not self.oracle.violations:
            self._collect()
        outcome = Outcome(
            self.seed,
            self.oracle.violations,
            world.trace,
            world.steps,
            len(self.oracle.slots),
            self._met(),
            world.lines,
        )
        world.close()
        return outcome

    @property
    def _over(self) -> bool:
        return self.oracle.final and any(driver.why == "closed" for driver in self.drivers)

    # ------------------------------------------------------------------ messages

    def send(self, sender: Process | None, to: Process, what: Callable[[], object]) -> None:
        """Deliver `what` to a process, later, in the order of sending; now and then twice (F23)."""
        world = self.world
        if world.closing:
            return
        name = sender.name if sender is not None else "world"
        arrival = world.now + world.rng.uniform(0.002, 0.05)
        arrival = max(arrival, self._last.get((name, to.name), 0.0), self._cut_links.get(name, 0.0))
        self._last[name, to.name] = arrival
        for _ in range(2 if world.rng.random() < 0.05 and not self.weather.calm else 1):
            world.at(arrival, lambda: to.call_soon(what) and None)

    # ------------------------------------------------------------------ who sends drivers out

    def _send_out(self, leader: int) -> None:
        driver = Driver(self, f"d{len(self.drivers)}", leader)
        self.drivers.append(driver)
        self.oracle.appointed[driver.name] = leader
        self.world.note("operator", f"sends out {driver.name} with leader epoch {leader}")
        driver.start()

    def _operate(self) -> None:
        """Level-triggered: while no driver that was sent out for this leader is heard of, send out another."""
        if self._over:
            return
        last = self.drivers[-1]
        if last.why is not None or self.world.now - last.heard > SILENT or last.process.dead:
            if last.why in ("Fenced", "StaleLeader"):
                self._leader = max(self._leader, self.oracle.highest) + 1
            self._send_out(self._leader)
        self.world.after(BEAT, self._operate)

    # ------------------------------------------------------------------ what goes wrong

    def _mend(self) -> None:
        weather = self.weather
        weather.calm = True
        weather.cut.clear()
        weather.clock.clear()
        weather.credentials.clear()
        self._cut_links.clear()

    def _duel(self) -> None:
        for _ in range(self.world.rng.choice((2, 3, 9))):
            self._send_out(self._leader)

    def _sniped(self, change: Change) -> None:
        """A blow at the moment in which a driver's segment has become durable, before it hears of that."""
        rng = self.world.rng
        closes = any(r.get("type") == "close" for s in self.oracle.slots[-1:] for r in s.records)
        risk = self._snipe * (5 if closes else 1)
        if risk and not self.weather.calm and "/log/" in change.key and rng.random() < risk:
            driver = next((d for d in self.drivers if d.name == change.by), None)
            if driver is not None:
                match rng.randrange(4):
                    case 0:
                        self._kill(driver)
                    case 1:
                        driver.process.pause(rng.choice(STOPS))
                    case _:
                        for runner in driver.runners:
                            runner.process.pause(rng.choice(STOPS))

    def _strike(self) -> None:
        world, rng, weather = self.world, self.world.rng, self.weather
        driver = rng.choice(self.drivers[-2:])
        runner = rng.choice(driver.runners).process if driver.runners else driver.process
        until = world.now + rng.choice(STOPS)
        match rng.randrange(14):
            case 0:
                self._kill(driver)
            case 1 | 2:
                driver.process.pause(rng.choice(STOPS))
            case 3:
                runner.kill()
            case 4 | 5:
                runner.pause(rng.choice(STOPS))
            case 6:
                self._send_out(max(self._leader, self.oracle.highest) + rng.choice((0, 1)))
            case 7:
                # A leader of before that was paused speaks again.
                self._send_out(max(1, self._leader - 1))
            case 8:
                self._leader = max(self._leader, self.oracle.highest) + 1
            case 9:
                weather.cut[driver.name] = until
            case 10:
                weather.cut[runner.name] = until
            case 11:
                self._cut_links[rng.choice((driver.name, runner.name))] = until
            case 12:
                weather.storms.append((world.now, until))
            case 13:
                rng.choice((weather.clock, weather.credentials))[driver.name] = until
                driver.client.resets += 1

    def _kill(self, driver: Driver) -> None:
        driver.process.kill()
        if self.world.rng.random() < 0.5:
            for runner in driver.runners:
                runner.process.kill()

    # ------------------------------------------------------------------ the collection

    def _oversleep(self) -> None:
        """A driver that sleeps until its run has ended and is collected."""
        self.drivers[-1].process.pause(AWAKE - self.world.now)

    def _collect(self) -> None:
        """The run is over, and is collected while a driver sleeps that does not know it."""
        collector = Process(self.world, "collector")
        client = Client(collector, self.objects, Weather(0.05))

        async def work_() -> None:
            while self.oracle.kept:
                try:
                    await self.variant.collect(
                        client, older_than=0.0, hold=HOLD, now=lambda: self.world.now, clock=ProcessClock(collector)
                    )
                except StoreError as error:
                    self.world.note("collector", type(error).__name__)
                await asyncio.sleep(HOLD / 2)

        task = collector.start(work_())
        self.world.run(lambda: bool(self.oracle.violations), deadline=AWAKE + 60.0)
        if task.done():
            task.result()
        elif not self.oracle.violations:
            self.oracle.violated(12, "a run that is over is never collected")

    # ------------------------------------------------------------------ the verdict

    def _judge(self) -> None:
        problems: list[tuple[int, str]] = []
        if not self.oracle.violations:
            auditor = Process(self.world, "auditor")

            async def audit() -> None:
                store = _Direct(self.objects)
                for problem in await verify(store, work.RUN, roots=[keys.ROOT.public]):
                    problems.append((15 if problem.invariant == 15 else 14, str(problem)))
                if self.seed % PROVED == 0 and not problems:
                    problems.extend([(15, fault) for fault in await _unproved(store, work.RUN)])

            task = auditor.start(audit())
            self.world.run(task.done, deadline=self.world.now)
            task.result()
        self.oracle.judge(expected(self.branches), problems)
        if self.oracle.alarms and not self.weather.met.get("gone"):
            self.oracle.violated(14, f"a driver took the log for corrupt: {self.oracle.alarms[0]}")

    def _met(self) -> dict[str, int]:
        met = dict(self.weather.met)
        for driver in self.drivers:
            if driver.why is not None:
                met[driver.why] = met.get(driver.why, 0) + 1
        met["drivers"] = len(self.drivers)
        return met


async def _unproved(store: Store, run: str) -> list[str]:
    """What is wrong with the proofs of a run's results, offline and with a key alone: one that does not hold, and one
    that holds under a key that appointed nobody, or for other bytes.
    """
    found = []
    for path in ("/b0/first", "/joined"):
        proof = (await prove(store, run, path)).to_json()
        if (fault := check_proof(proof, roots=[keys.ROOT.public]).fault) is not None:
            found.append(f"the proof of {path} does not hold: {fault}")
        forged = {**proof, "record": proof["record"].replace('"outcome":"ok"', '"outcome":"no"')}
        for one, root, what in ((proof, keys.FORGER, "under a foreign key"), (forged, keys.ROOT, "of another record")):
            if check_proof(one, roots=[root.public]).fault is None:
                found.append(f"a proof of {path} {what} holds")
    return found


class _Direct:
    """The stored objects, without a network."""

    uri = "sim://direct"

    def __init__(self, objects: Objects) -> None:
        self._held = objects.held

    async def get(self, key: str, range: object = None) -> bytes:
        if key not in self._held:
            raise NotFound(f"GET {key}", "no such object")
        return self._held[key]

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectInfo]:
        for key in sorted(self._held):
            if key.startswith(prefix) and key > after:
                yield ObjectInfo(key, len(self._held[key]))


@lru_cache
def expected(branches: int) -> dict[str, str]:
    """The core hashes of an undisturbed run."""

    async def undisturbed() -> dict[str, str]:
        values = Values(MemoryStore(), work.RUN)
        cores: dict[str, str] = {}
        for branch in range(branches):
            before: dict[str, str] = {}
            for step in work.STEPS:
                record = await work.result(values, branch, step, before, {})
                cores[record.path] = record.core_hash
                before = {record.path: record.core_hash}
        ends = {work.path(branch, "last"): cores[work.path(branch, "last")] for branch in range(branches)}
        return {**cores, "/joined": work.join(ends, {}).core_hash}

    return asyncio.run(undisturbed())

"""Processes that die: a driver with its runners on a store that counts committed records and strikes at a count.

Reference graphs have at most 60 records each, so that every record of them can be a crash point.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Literal

from decurion_crds.canonical import digest
from decurion_crds.compiled import CompiledGraph
from decurion_ledger import LogWriter, Record, open_store, read_log, verify
from decurion_ledger.errors import Unavailable
from decurion_ledger.segment import parse
from decurion_ledger.stores import ObjectInfo, Put, Range, Store
from decurion_ledger.writer import Settings as LogSettings
from decurion_worker.driver import Driver, DriverSettings
from decurion_worker.executors import LocalExecutor
from decurion_worker.link import ToRunner, Work, WorkItem
from decurion_worker.opening import OpenRequest
from decurion_worker.permits import Terms
from decurion_worker.runkeys import GiveSealKey
from decurion_worker.runner import Runner, RunnerSettings
from decurion_worker.session import RunSession
from decurion_worker.sources import Sources
from graphs import code, expr, fan_out, graph, llm, path, scope

RUN = "run-1"
AT_ONCE = DriverSettings(log=LogSettings(interval=0.0))
"""A driver that never lets a record wait for others: most of the time of a short run would be that."""
_stores = itertools.count()


def new_store() -> Store:
    """An empty store in memory."""
    return open_store(f"memory://crash-{next(_stores)}")


class Struck:
    """`store`, and a blow that falls once when this process has written `at` records to logs.

    The blow comes after the write that reached the count and before its answer. A store that is `dead` never answers
    again: so far as its process is concerned, nothing happens any more. `before` is awaited before each conditional
    write, with its key. While the store is `away` conditional writes fail: `lost` on their way, `done` on the way back.
    """

    def __init__(
        self,
        store: Store,
        *,
        at: int | None = None,
        blow: Callable[[], None] | None = None,
        before: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        self.uri = store.uri
        self.store = store
        self.at = at
        self.blow = blow
        self.before = before
        self.away: Literal["", "lost", "done"] = ""
        self.written = 0
        self.dead = asyncio.Event()

    async def _alive(self) -> None:
        if self.dead.is_set():
            await asyncio.Event().wait()

    async def put_new(self, key: str, data: bytes) -> Put:
        if self.before is not None:
            await self.before(key)
        await self._alive()
        if self.away == "lost":
            raise Unavailable(f"PUT {key}", "connection reset")
        result = await self.store.put_new(key, data)
        if result is Put.CREATED and "/log/" in key:
            self.written += len(parse(data, key).records)
            if self.at is not None and self.written >= self.at:
                self.at = None
                (self.blow or self.dead.set)()
        await self._alive()
        if self.away:
            raise Unavailable(f"PUT {key}", "connection reset")
        return result

    async def put(self, key: str, data: bytes) -> None:
        await self._alive()
        await self.store.put(key, data)

    async def get(self, key: str, range: Range | None = None) -> bytes:
        await self._alive()
        return await self.store.get(key, range)

    async def head(self, key: str) -> ObjectInfo:
        await self._alive()
        return await self.store.head(key)

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectInfo]:
        await self._alive()
        async for found in self.store.list(prefix, after):
            yield found

    async def delete(self, key: str) -> None:
        await self._alive()
        await self.store.delete(key)

    async def aclose(self) -> None:
        return


class Dead(Terms):
    """Terms of a world in which whoever held an item before is certainly dead: nothing is in doubt for long."""

    def doubt(self, timeout: float) -> float:
        return 0.0


class Process:
    """A driver and its runners, as one process holds them, on `store`. Leaving the block is its death."""

    def __init__(
        self,
        store: Any,
        *,
        runners: int = 1,
        executor: Any = None,
        settings: DriverSettings | None = None,
        runner: RunnerSettings | None = None,
        sources: Sources | None = None,
        seal_key: GiveSealKey | None = None,
    ) -> None:
        sources, settings = sources or Sources(open_store, files=True), settings or AT_ONCE
        self.driver = Driver(
            "driver-0", store=store, ledger_uri=store.uri, sources=sources, settings=settings, seal_key=seal_key
        )
        self.executor = executor or LocalExecutor(runner or RunnerSettings(branches=64, processes=1, terms=Dead()))
        self._runners = runners

    async def __aenter__(self) -> Process:
        await self.driver.start()
        await self.executor.start(self.driver)
        await self.executor.scale(self._runners)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.executor.stop()
        await self.driver.stop()

    async def open(
        self, compiled: CompiledGraph | None, input: Any = None, *, run: str = RUN, epoch: int = 0
    ) -> RunSession:
        at = "2026-01-01T00:00:00+00:00"
        request = OpenRequest(
            run=run, name="g", graph=compiled, input=input, leader_epoch=epoch, scheduled_at=at, seed="s"
        )
        return await self.driver.open_run(request)

    async def run(
        self, compiled: CompiledGraph | None, input: Any = None, *, seconds: float = 60, **more: Any
    ) -> RunSession:
        """Open a run and see it to its end."""
        session = await self.open(compiled, input, **more)
        async with asyncio.timeout(seconds):
            await session.ended.wait()
        return session


class RunnerDied(Exception):
    """What a call to a runner raises once its process is gone."""


class Fragile:
    """An executor in this process whose runners die whole, at once, when they are given an item that `kills`.

    `deaths` counts them, `died` is told of each. A runner may also be killed by `kill`, or be given up by its driver
    while it works on: `live` are those that run.
    """

    def __init__(
        self,
        settings: RunnerSettings,
        *,
        kills: Callable[[WorkItem], bool] = lambda item: False,
        died: Callable[[int], None] = lambda deaths: None,
    ) -> None:
        self.deaths = 0
        self.live: dict[str, Runner] = {}
        self._settings = settings
        self._kills = kills
        self._died = died
        self._wanted = 0
        self._numbers = itertools.count()
        self._busy: set[asyncio.Task[None]] = set()

    async def start(self, driver: Driver) -> None:
        self._driver = driver
        driver.on_lost = lambda name: self._spawn(self.scale(self._wanted))

    async def scale(self, runners: int) -> None:
        self._wanted = runners
        while len(self.live) < runners:
            name = f"fragile-{next(self._numbers)}"
            runner = Runner(
                name,
                driver=self._driver,
                incarnation=self._driver.incarnation,
                store=self._driver.store,
                sources=self._driver.sources,
                settings=self._settings,
                on_end=lambda ended: None,
            )
            self.live[name] = runner
            self._driver.add_runner(name, _Mortal(self, runner), broken=(RunnerDied,))
            await runner.start()

    async def deliver(self, runner: Runner, incarnation: str, seq: int, messages: Sequence[ToRunner]) -> bool:
        if runner.name not in self.live:
            raise RunnerDied(runner.name)
        taken = await runner.deliver(incarnation, seq, messages)
        if any(self._kills(item) for m in messages if isinstance(m, Work) for item in m.items):
            self.kill(runner.name)
            raise RunnerDied(runner.name)
        return taken

    def kill(self, name: str) -> None:
        """The runner's process is gone; its driver finds out at its next call."""
        self.deaths += 1
        self._spawn(self.live.pop(name).stop())
        self._died(self.deaths)

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._busy.add(task)
        task.add_done_callback(self._busy.discard)

    async def stop(self) -> None:
        self._wanted = 0
        await asyncio.gather(*self._busy)
        for runner in list(self.live.values()):
            await runner.stop()


class _Mortal:
    """A runner as its driver sees it."""

    def __init__(self, executor: Fragile, runner: Runner) -> None:
        self._executor = executor
        self._runner = runner

    async def deliver(self, incarnation: str, seq: int, messages: Sequence[ToRunner]) -> bool:
        return await self._executor.deliver(self._runner, incarnation, seq, messages)


async def until(reached: Callable[[], bool], *, what: str, seconds: float = 30.0) -> None:
    """Poll until `reached()`; a deadline, not a wait."""
    try:
        async with asyncio.timeout(seconds):
            while not reached():
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"{what} did not come within {seconds:g} s") from None


async def read(store: Any, run: str = RUN) -> list[Record]:
    return [record async for _, record in read_log(store, run)]


def results(log: list[Record]) -> Counter[str]:
    """How often each path stands in a log as a result."""
    return Counter(r.path for r in log if r.core is not None and r.type != "genesis")


async def sound(store: Any, run: str = RUN) -> list[Record]:
    """The log of a run that was struck: the verifier finds nothing, and no path is committed twice."""
    assert await verify(store, run) == []
    log = await read(store, run)
    assert not [path for path, count in results(log).items() if count > 1]
    return log


async def cut(whole: list[Record], records: int, *, run: str = RUN, blobs: Store | None = None) -> Store:
    """A store whose log is what a driver had committed when it died after so many of `whole`'s records.

    `whole` begins with genesis and fence; `records` counts what comes after them. `blobs` is a store that holds theirs.
    """
    store = new_store()
    if blobs is not None:
        async for info in blobs.list("blobs/"):
            await store.put_new(info.key, await blobs.get(info.key))
    opened = await LogWriter.open(store, run, leader_epoch=0, driver="first", genesis=lambda: whole[0])
    for record in body(whole)[:records]:
        await opened.writer.append([record])
    await opened.writer.aclose()
    return store


def body(whole: list[Record]) -> list[Record]:
    return [r for r in whole if r.type not in ("genesis", "fence", "close")]


def call_key(at: str, run: str = RUN) -> str:
    """The idempotency key of the model call of the node at `at`."""
    return digest("effect/v0", run.encode(), b"\0", at.encode(), b"\0", b"0")


# ---------------------------------------------------------------------------- reference graphs


def calls(endpoint: str) -> CompiledGraph:
    """A map of branches of two model calls with code between them, and one model call over all."""
    out = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    one = scope(
        llm("ask", "m", q="input.item", output=out),
        code("turn", "return {'t': text + '?'}", text="nodes.ask.output.text"),
        llm("again", "m", q="nodes.turn.output.t", output=out),
        output={"t": path("nodes.again.output.text")},
        inputs=("item",),
    )
    root = scope(
        fan_out("each", "input.items", "one"),
        code("all", "return {'t': ' '.join(r['t'] for r in rows)}", rows="nodes.each.output.items"),
        llm("sum", "m", q="nodes.all.output.t", output=out),
        output={"n": expr('len(nodes["each"]["output"]["items"])', "nodes.each.output.items")},
        inputs=("items",),
        leaf=False,
    )
    return graph(root, llms={"m": {"protocol": "openai", "model": "test", "endpoint": endpoint}}, one=one)

"""A run that ends its driver: it fails in the end, by what its log says, and takes no other run with it."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from crashes import Process, Struck, new_store, read, sound
from decurion_worker.driver import DriverSettings
from decurion_worker.errors import RunOnTrial
from decurion_worker.trials import SUSPECT, TRIALS
from decurion_worker.trials import Lives as Barren
from graphs import map_reduce, nested

POISON, HEALTHY = "poison", ("one", "two", "three")
GRAPHS: dict[str, Any] = {
    POISON: (map_reduce(), {"n": 3}),
    **{name: (nested(), {"rows": [[1, 2], [3]]}) for name in HEALTHY},
}


class Lives:
    """Drivers one after the other on one store. One dies when the poisoned run writes more than its fence.

    While that run is open nothing of the others gets further: the driver dies first.
    """

    def __init__(self) -> None:
        self.store = new_store()
        self.number = 0
        self.waited: Counter[str] = Counter()

    async def live(self, order: list[str]) -> dict[str, dict[str, Any]]:
        """One life of a driver that is asked for all runs in this order; the projections of what it ended."""
        self.number += 1
        struck = Struck(self.store)
        async with Process(struck) as process:
            opened: set[str] = set()
            written: Counter[str] = Counter()

            async def before(key: str) -> None:
                if "/log/" not in key:
                    return
                run = key.split("/")[2]
                written[run] += 1
                poisoned = process.driver.sessions.get(POISON)
                if written[run] > 1 and poisoned is not None and poisoned.doomed is None:
                    struck.dead.set()

            struck.before = before
            asking = asyncio.create_task(self._ask(process, order, opened))
            async with asyncio.timeout(60):
                while not struck.dead.is_set() and not (asking.done() and opened <= set(process.driver.finished)):
                    await process.driver.changes.wait(process.driver.changes.cursor, 0.02)
            asking.cancel()
            return {run: process.driver.finished[run] for run in opened if run in process.driver.finished}

    async def _ask(self, process: Process, order: list[str], opened: set[str]) -> None:
        for run in order:
            compiled, given = GRAPHS[run]
            try:
                await process.open(compiled, given, run=run, epoch=self.number)
                opened.add(run)
            except RunOnTrial:
                self.waited[run] += 1


async def _lives(lives: Lives, run: str) -> int:
    """Barren lives at the end of a run's log."""
    count = Barren()
    for record in await read(lives.store, run):
        count.note(record)
    return count.barren


async def test_a_run_that_ends_its_driver_fails_in_the_end_and_every_other_run_succeeds() -> None:
    lives, ended, runs = Lives(), dict[str, dict[str, Any]](), [POISON, *HEALTHY]
    while len(ended) < len(runs):
        assert lives.number < 40, "the drivers die for ever"
        order = [run for run in runs if run not in ended]
        turn = lives.number % len(order)
        ended |= await lives.live(order[turn:] + order[:turn])
    assert {run: ended[run]["phase"] for run in HEALTHY} == dict.fromkeys(HEALTHY, "Succeeded")
    assert (ended[POISON]["phase"], ended[POISON]["reason"]) == ("Failed", "DriverCrashLoop")
    assert await _lives(lives, POISON) == SUSPECT + TRIALS + 1
    assert sum(lives.waited.values()), "nobody was ever on trial alone"
    for run in runs:
        await sound(lives.store, run)


async def test_who_comes_further_is_no_suspect_any_more() -> None:
    lives = Lives()
    for _ in range(SUSPECT):
        await lives.live([POISON, "one"])
    assert await _lives(lives, "one") == SUSPECT
    ended = await lives.live(["one", POISON])
    assert ended["one"]["phase"] == "Succeeded"
    assert lives.waited[POISON] == 1
    assert await _lives(lives, POISON) == SUSPECT


async def test_where_a_person_opens_the_run_each_time_nothing_is_failed() -> None:
    store = new_store()
    compiled, given = GRAPHS["one"]
    for life in range(SUSPECT + TRIALS + 2):
        struck = Struck(store, at=1 if life else 2)
        async with Process(struck) as process:
            opening = asyncio.create_task(process.open(compiled, given, epoch=life))
            await struck.dead.wait()
            opening.cancel()
    async with Process(store, settings=DriverSettings(crash_loops=False)) as process:
        session = await process.run(None, epoch=99)
    assert session.projection()["phase"] == "Succeeded"

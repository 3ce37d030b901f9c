"""Drivers of a duel. Each takes the log, writes results, is fenced, and comes back.

`python hack/duellist.py URI STALL INTERVAL FOLDER [RESULTS]` reads names, one a line, and forks a driver for each, so
that what drivers import is imported once; it answers with the name and the process. A driver says what it was promised
into the file `FOLDER/NAME`: `ack RUN SLOT PATH`, `closed RUN`, `lost RUN WHY SLOT`, `died`.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import sys
import traceback
from pathlib import Path

from decurion_ledger import LogWriter, Record, RecordType, list_runs, make_core, open_store, vhash
from decurion_ledger.errors import Fenced, LedgerError, StaleLeader
from decurion_ledger.patience import Patience
from decurion_ledger.stores import Store
from decurion_ledger.writer import Settings

RESULTS = 150
"""After so many results, unless it is said how many, a run is closed, and the next one fought for."""


def result(number: int, by: str) -> Record:
    value = f"result {number}"
    core = make_core(
        type=RecordType.COMMIT,
        path=f"/n{number}",
        node="1" * 64,
        parents=[],
        input=None,
        outcome="ok",
        delta=vhash(value),
        schema=None,
    )
    return Record.result(core, {"values": {vhash(value): {"inline": value}}, "by": by})


async def fight(store: Store, run: str, name: str, leader: int, settings: Settings, results: int) -> bool:
    """Own the run until it is closed by `results` of them; True then."""
    opened = await LogWriter.open(
        store,
        run,
        leader_epoch=leader,
        driver=name,
        genesis=lambda: Record.event(RecordType.GENESIS, "/", {"by": name}),
        settings=settings,
    )
    writer = opened.writer
    number = sum(record.core is not None for _, record in opened.records)
    while not opened.closed:
        if number >= results:
            await writer.finish(Record.event(RecordType.CLOSE, "/", {"phase": "Succeeded"}))
            break
        records = [result(number + i, name) for i in range(min(random.choice((1, 2, 5)), results - number))]
        slots = await writer.append_each(records)
        await writer.confirm_recent()
        for record, slot in zip(records, slots, strict=True):
            say("ack", run, slot, record.path)
        number += len(records)
    say("closed", run)
    return True


async def latest(store: Store) -> int:
    """The number of the latest run: who is born late does not walk through all that are closed."""
    while True:
        try:
            return max((int(run.removeprefix("duel-")) for run in await list_runs(store)), default=0)
        except LedgerError:
            await asyncio.sleep(0.2)


def say(*words: object) -> None:
    """One write a line, so that nothing that was said is lost with the process."""
    os.write(1, f"{' '.join(map(str, words))}\n".encode())


async def main(uri: str, name: str, stall: float, interval: float, results: int) -> None:
    store = open_store(uri)
    settings = Settings(
        patience=Patience(total=20.0, blocked=5.0, attempt=5.0),
        opening=Patience(total=20.0, blocked=5.0, attempt=5.0),
        stall=stall,
        interval=interval,
    )
    leader = 1
    for number in itertools.count(await latest(store)):
        run = f"duel-{number}"
        while True:
            try:
                if await fight(store, run, name, leader, settings, results):
                    break
            except Fenced as error:
                say("lost", run, "Fenced", error.slot)
                leader = max(leader, error.leader_epoch) + 1
            except StaleLeader as error:
                leader = error.highest + 1
            except LedgerError as error:
                say("lost", run, type(error).__name__, -1)
            await asyncio.sleep(random.uniform(0.05, 1.0))


def begin(uri: str, name: str, stall: float, interval: float, said: Path, results: int) -> int:
    """The process of a new driver."""
    pid = os.fork()
    if pid:
        return pid
    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
    random.seed()
    try:
        asyncio.run(main(uri, name, stall, interval, results))
    finally:
        # A driver ends by being killed only: whatever brought it here is a fault, and its traceback is on stderr.
        say("died")
        traceback.print_exc()
        os._exit(1)


if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    place, given, pace, folder = sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4])
    wanted = int(sys.argv[5]) if len(sys.argv) > 5 else RESULTS
    open_store(place)  # its libraries
    for line in sys.stdin:
        print(line.strip(), begin(place, line.strip(), given, pace, folder / line.strip(), wanted), flush=True)

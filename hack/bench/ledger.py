"""The ledger beside what one would do without it: an object per record, checkpoints of other engines, a bare fsync.

Everything on this machine, S3 being SeaweedFS; best of the rounds where there are several, ratios within one run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any

from dictionary import measured
from peers_python import peers_python
from postgres import postgres

from cluster.s3 import S3Server
from decurion_ledger import (
    Credentials,
    LogWriter,
    Record,
    RecordType,
    Store,
    find,
    make_core,
    open_store,
    read_log,
    vhash,
)
from decurion_ledger.record import encode
from decurion_ledger.stores import Counted

HERE = Path(__file__).parent
BRANCHES, NODES, DELTA = 2000, 5, 800
STEPS, STEP_BYTES = 400, 1024


@dataclass(frozen=True)
class Row:
    """One line of a part: what was done, and what was counted."""

    what: str
    cells: Sequence[str]


def ledger(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="hack/bench ledger", description=__doc__)
    parser.add_argument("--skip", default="", help="comma-separated: group, steps, resume, lookup, dictionary, fsync")
    parser.add_argument("--records", default="10000,100000", help="records of the logs that are resumed")
    given = parser.parse_args(arguments)
    skipped = set(given.skip.split(","))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        with _s3(folder / "s3") as opened:
            if "group" not in skipped:
                _print("group commit", ("PUTs", "seconds", "× fewer PUTs", "× as fast"), asyncio.run(_group(opened)))
            if "steps" not in skipped:
                heads = ("bytes", "bytes per byte of delta", "ms a step", "ours in so many of its bytes")
                _print(f"{STEPS} steps of {STEP_BYTES} bytes", heads, asyncio.run(_steps(folder, opened)))
            if "resume" not in skipped:
                counts = [int(count) for count in given.records.split(",")]
                heads = ("segments", "seconds", "CPU s", "CPU µs a record")
                _print("resume", heads, asyncio.run(_resume(folder, opened, counts)))
            if "lookup" not in skipped:
                _print("lookup", ("segments", "requests", "KiB read", "ms"), asyncio.run(_lookups(folder, opened)))
        if "dictionary" not in skipped:
            heads = ("bytes of frames", "with a dictionary", "saved of the segments")
            _print("dictionary", heads, [Row(what, cells) for what, cells in asyncio.run(measured())])
        if "fsync" not in skipped:
            _print("checkpoint", ("p50 ms", "p99 ms"), asyncio.run(_fsync(folder)))
    return 0


def _print(part: str, heads: Sequence[str], rows: Sequence[Row]) -> None:
    print(f"\n| {part} | " + " | ".join(heads) + " |")
    print("|---|" + "---|" * len(heads))
    for row in rows:
        print(f"| {row.what} | " + " | ".join(row.cells) + " |", flush=True)


@contextmanager
def _s3(folder: Path) -> Iterator[Callable[[str], Store]]:
    server = S3Server(folder)
    server.start()
    keys = Credentials(server.access_key, server.secret_key)
    try:
        yield lambda name: open_store(
            f"s3://{server.bucket}/{name}", endpoint_url=server.endpoint_url, credentials=keys
        )
    finally:
        server.stop()


def _result(path: str, value: str) -> Record:
    delta = vhash(value)
    core = make_core(
        type=RecordType.COMMIT,
        path=path,
        node="1" * 64,
        parents=[],
        input=None,
        outcome="ok",
        delta=delta,
        schema=None,
    )
    return Record.result(core, {"run": "bench", "values": {delta: {"inline": value}}})


async def _open(store: Store, run: str, **more: Any) -> Any:
    begin = Record.event(RecordType.GENESIS, "/", {"name": "bench"})
    return await LogWriter.open(store, run, leader_epoch=1, driver="bench", genesis=lambda: begin, **more)


# ---------------------------------------------------------------------- group commit


async def _group(opened: Callable[[str], Store]) -> list[Row]:
    """2,000 branches, in each five nodes one after the other, each durable before the next."""
    draw = random.Random(2)
    values = [[draw.randbytes(DELTA // 2).hex() for _ in range(NODES)] for _ in range(BRANCHES)]
    alone = await _object_each(opened("alone"), values)
    grouped = await _grouped(opened("grouped"), values)
    rows = [("an object per record, 64 at once", alone), ("group commit", grouped)]
    return [
        Row(what, (f"{puts:,}", f"{seconds:.2f}", f"{alone[0] / puts:.0f}", f"{alone[1] / seconds:.1f}"))
        for what, (puts, seconds) in rows
    ]


async def _object_each(inner: Store, values: list[list[str]]) -> tuple[int, float]:
    store, room = Counted(inner), asyncio.Semaphore(64)

    async def branch(number: int) -> None:
        for node, value in enumerate(values[number]):
            path = f"/each[{number:05d}]/n{node}"
            async with room:
                await store.put_new(f"records/{number:05d}-{node}", encode(_result(path, value)))

    seconds = await _timed(asyncio.gather(*(branch(number) for number in range(BRANCHES))))
    await store.aclose()
    return store.puts, seconds


async def _grouped(inner: Store, values: list[list[str]]) -> tuple[int, float]:
    store = Counted(inner)
    writer = (await _open(store, "bench")).writer
    before = store.puts

    async def branch(number: int) -> None:
        for node, value in enumerate(values[number]):
            await writer.append([_result(f"/each[{number:05d}]/n{node}", value)])

    seconds = await _timed(asyncio.gather(*(branch(number) for number in range(BRANCHES))))
    await store.aclose()
    return store.puts - before, seconds


async def _timed(work: Any) -> float:
    begin = time.perf_counter()
    await work
    return time.perf_counter() - begin


# ---------------------------------------------------------------------- steps, beside other engines


async def _steps(folder: Path, opened: Callable[[str], Store]) -> list[Row]:
    found: dict[str, tuple[int, float]] = {
        "Decurion's log, a local folder": await _our_steps(open_store(str(folder / "steps"))),
        "Decurion's log, S3": await _our_steps(opened("steps")),
    }
    (folder / "sqlite").mkdir()
    found["LangGraph, SQLite"] = _their_steps("sqlite", str(folder / "sqlite"))
    with postgres(folder / "postgres") as address:
        if address is None:
            print("PostgreSQL is not installed here: its row is left out", file=sys.stderr)
        else:
            found["LangGraph, PostgreSQL"] = _their_steps("postgres", address)
    ours = found["Decurion's log, a local folder"][0]
    return [
        Row(
            what,
            (
                f"{size:,}",
                f"{size / (STEPS * STEP_BYTES):.2f}",
                f"{seconds / STEPS * 1000:.2f}",
                f"1/{size / ours:.0f}",
            ),
        )
        for what, (size, seconds) in found.items()
    ]


async def _our_steps(store: Store) -> tuple[int, float]:
    writer = (await _open(store, "bench")).writer
    draw = random.Random(1)
    records = [_result(f"/round@{i:03d}/step", draw.randbytes(STEP_BYTES // 2).hex()) for i in range(STEPS)]

    async def steps() -> None:
        for record in records:
            await writer.append([record])

    seconds = await _timed(steps())
    size = sum([info.size async for info in store.list("runs/")])
    await store.aclose()
    return size, seconds


def _their_steps(kind: str, place: str) -> tuple[int, float]:
    program = str(HERE / "peers" / "langgraph_steps.py")
    command = [peers_python(), program, kind, place, str(STEPS), str(STEP_BYTES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    if done.returncode:
        raise SystemExit(f"{kind} failed:\n{done.stderr[-2000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    return found["bytes"], found["seconds"]


# ---------------------------------------------------------------------- resume and lookup


async def _written(store: Store, records: int, *, batch: int) -> int:
    """A log of so many records in segments of `batch`; the number of its segments."""
    writer = (await _open(store, "bench")).writer
    draw = random.Random(3)
    for start in range(0, records, batch):
        some = range(start, min(start + batch, records))
        await writer.append([_result(f"/each[{i // 5:05d}]/n{i % 5}", draw.randbytes(200).hex()) for i in some])
    return int(writer.slot) + 1


async def _resume(folder: Path, opened: Callable[[str], Store], counts: list[int]) -> list[Row]:
    rows = []
    for count in counts:
        for where, store in (
            ("a local folder", open_store(str(folder / f"log-{count}"))),
            ("S3", opened(f"log-{count}")),
        ):
            segments = await _written(store, count, batch=100)

            async def read(store: Store = store) -> None:
                async for _ in read_log(store, "bench"):
                    pass

            before = time.process_time()
            seconds = await _timed(read())
            cpu = time.process_time() - before
            rows.append(_row(f"{count:,} records read back and checked, {where}", segments, seconds, cpu, count))
            await store.aclose()
        done = await asyncio.to_thread(_child, str(folder / f"run-{count}"), count)
        rows.append(_row(f"{done['records']:,} records, a run resumed by its driver", *done["row"]))
    return rows


def _row(what: str, segments: int, seconds: float, cpu: float, records: int) -> Row:
    return Row(what, (f"{segments:,}", f"{seconds:.2f}", f"{cpu:.2f}", f"{cpu / records * 1e6:.0f}"))


def _child(folder: str, records: int) -> dict[str, Any]:
    command = [sys.executable, str(HERE / "resumed.py"), folder, str(records)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600)
    if done.returncode:
        raise SystemExit(f"resume of {records} records failed:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {"records": found["records"], "row": (found["segments"], found["seconds"], found["cpu"], found["records"])}


async def _lookups(folder: Path, opened: Callable[[str], Store]) -> list[Row]:
    rows = []
    for records, batch in ((10_000, 100), (10_000, 10)):
        for where, inner in (
            ("a local folder", open_store(str(folder / f"look-{batch}"))),
            ("S3", opened(f"look-{batch}")),
        ):
            segments = await _written(inner, records, batch=batch)
            store, took = Counted(inner), []
            for i in range(0, records, records // 20):
                path = f"/each[{i // 5:05d}]/n{i % 5}"
                begin = time.perf_counter()
                if await find(store, "bench", path) is None:
                    raise SystemExit(f"{path} was not found")
                took.append(time.perf_counter() - begin)
            cells = (f"{store.gets / 20:.0f}", f"{store.bytes_out / 20 / 1024:.0f}", f"{sum(took) / 20 * 1000:.1f}")
            rows.append(Row(f"one of {records:,} records, {where}", (f"{segments:,}", *cells)))
            await inner.aclose()
    return rows


# ---------------------------------------------------------------------- one durable checkpoint


async def _fsync(folder: Path) -> list[Row]:
    store = open_store(str(folder / "checkpoint"))
    writer = (await _open(store, "bench")).writer
    draw = random.Random(4)
    records = [_result(f"/r@{i:04d}/n", draw.randbytes(512).hex()) for i in range(1000)]
    ours, bare = [], []
    with (folder / "appended").open("ab", buffering=0) as file:
        for record in records:  # in turn, so that both meet the same disk
            ours.append(await _timed(writer.append([record])))
            data, begin = encode(record), time.perf_counter()
            file.write(data)
            os.fsync(file.fileno())
            bare.append(time.perf_counter() - begin)
    await store.aclose()
    return [
        Row("a record of 1 KB, acknowledged by the log on a local disk", _percentiles(ours)),
        Row("the same bytes appended to a file, fsync", _percentiles(bare)),
    ]


def _percentiles(seconds: list[float]) -> tuple[str, str]:
    cuts = quantiles(seconds, n=100)
    return f"{cuts[49] * 1000:.2f}", f"{cuts[98] * 1000:.2f}"

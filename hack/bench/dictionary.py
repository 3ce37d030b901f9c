"""What a zstd dictionary would save in segments: logs of real runs, with a dictionary trained on other runs."""

from __future__ import annotations

import asyncio
import random
import tempfile
from pathlib import Path
from typing import Any

import zstandard
from wide import chains, nested, values

from decurion_crds.compiled import CompiledGraph
from decurion_ledger import open_store, read_log
from decurion_ledger.layout import slot_key
from decurion_ledger.record import encode
from decurion_ledger.segment import FRAME_BYTES, LEVEL
from decurion_worker.driver import Driver
from decurion_worker.executors import LocalExecutor
from decurion_worker.opening import OpenRequest
from decurion_worker.pool import Pool, PoolSettings
from decurion_worker.runner import RunnerSettings
from decurion_worker.sources import Sources
from graphs import compile_manifest

DICTIONARY = 16 * 1024


async def measured() -> list[tuple[str, tuple[str, ...]]]:
    """Rows: bytes stored now, with a dictionary, what that saves, and the records of a segment."""
    graphs: dict[str, Any] = {"chains": chains(), "values": values(), "nested": nested()}
    with tempfile.TemporaryDirectory() as folder:
        logs = {
            name: await _log(Path(folder) / name, compile_manifest(graph), 10 if name == "nested" else 100)
            for name, graph in graphs.items()
        }
    rows = []
    for name, (records, stored) in logs.items():
        others = [line for other, (lines, _) in logs.items() if other != name for line in lines]
        random.Random(1).shuffle(others)
        dictionary = zstandard.train_dictionary(DICTIONARY, others)
        for what, batch in (("as the run wrote them", 0), ("one record a segment", 1)):
            plain, better = _sizes(records, batch or _batch(records, stored), dictionary)
            tables = len(records) * 60 + 16
            saved = f"{(plain - better) / (plain + tables) * 100:.0f} %"
            rows.append((f"{name}: {len(records):,} records, {what}", (f"{plain:,}", f"{better:,}", saved)))
    return rows


def _batch(records: list[bytes], segments: int) -> int:
    return max(1, len(records) // segments)


def _sizes(records: list[bytes], batch: int, dictionary: zstandard.ZstdCompressionDict) -> tuple[int, int]:
    plain = zstandard.ZstdCompressor(level=LEVEL, write_checksum=False)
    with_it = zstandard.ZstdCompressor(level=LEVEL, write_checksum=False, dict_data=dictionary)
    sizes = [0, 0]
    for start in range(0, len(records), batch):
        frame = b""
        for line in [*records[start : start + batch], b""]:
            if frame and (not line or len(frame) + len(line) > FRAME_BYTES):
                sizes[0] += len(plain.compress(frame))
                sizes[1] += len(with_it.compress(frame))
                frame = b""
            frame += line
    return sizes[0], sizes[1]


async def _log(folder: Path, graph: CompiledGraph, count: int) -> tuple[list[bytes], int]:
    """The stored form of a run's records, and the number of its segments."""
    store = open_store(str(folder))
    driver = Driver("driver-0", store=store, ledger_uri=str(folder), sources=Sources(open_store, files=False))
    pool = Pool(driver, LocalExecutor(RunnerSettings()), PoolSettings(min_runners=1, max_runners=1))
    await pool.start()
    session = await driver.open_run(OpenRequest(run="run", name="g", graph=graph, input={"count": count}))
    await session.ended.wait()
    await pool.stop()
    lines, slots = [], 0
    async for slot, record in read_log(open_store(str(folder)), "run"):
        lines.append(encode(record) + b"\n")
        slots = slot + 1
    assert await open_store(str(folder)).head(slot_key("run", slots - 1))
    return lines, slots


if __name__ == "__main__":
    for row in asyncio.run(measured()):
        print(row)

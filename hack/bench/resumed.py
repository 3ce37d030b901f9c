"""A run of so many records in a local folder, then opened again by another driver: seconds until that stands at its
end.

Run by `hack/bench ledger` as a process of its own. Prints one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

A_BRANCH = 6


async def main(folder: str, records: int) -> None:
    from wide import chains

    from decurion_ledger import open_store
    from decurion_worker.driver import Driver
    from decurion_worker.executors import LocalExecutor
    from decurion_worker.opening import OpenRequest
    from decurion_worker.pool import Pool, PoolSettings
    from decurion_worker.runner import RunnerSettings
    from decurion_worker.sources import Sources
    from graphs import compile_manifest

    count = records // A_BRANCH
    graph = compile_manifest(chains())
    store = open_store(folder)
    sources = Sources(open_store, files=False)
    first = Driver("driver-0", store=store, ledger_uri=folder, sources=sources)
    pool = Pool(first, LocalExecutor(RunnerSettings(branches=1024)), PoolSettings(min_runners=1, max_runners=1))
    await pool.start()
    request = OpenRequest(run="bench", name="wide", graph=graph, input={"count": count})
    session = await first.open_run(request)
    await session.ended.wait()
    await pool.stop()
    second = Driver("driver-1", store=store, ledger_uri=folder, sources=sources)
    begin, cpu = time.perf_counter(), time.process_time()
    again = await second.open_run(OpenRequest(run="bench", name="wide"))
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    if again.projection()["phase"] != "Succeeded":
        raise SystemExit(f"it does not stand at its end: {again.projection()}")
    found = {"seconds": seconds, "cpu": cpu, "records": again.facts.committed, "segments": again.facts.slot + 1}
    print(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))

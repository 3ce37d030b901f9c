"""Wide graphs: what a branch costs at 1,000, 10,000 and 50,000 of them, and what others take for the same.

Three cases, each in a process of its own, with the ledger in memory, in a local folder or on S3:

* `chains`: N branches of five instant `transform` nodes each; one number comes back from each;
* `values`: N branches with outputs of 2 KB, all of them read by one `code` node behind the map, by reference;
* `nested`: a map of √N maps of √N branches.

Peers, in the same run, for `chains`: plain asyncio (no ledger, no checks: a limit), one Ray task a branch, LangGraph's
`Send` without a checkpointer and with a durable one. `rss` is the peak of the process, driver and runner together;
`driver` runs `chains` on Ray with the ledger on S3, and `rss` is the peak of the driver's process alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from peers_python import peers_python

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

STEPS = 5


@dataclass
class Row:
    name: str
    count: int
    found: dict[str, Any]


def wide(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="hack/bench wide", description=__doc__)
    parser.add_argument("--counts", default="1000,10000,50000", help="branches of `chains`")
    parser.add_argument("--peer-count", type=int, default=1000, help="branches that the peers get")
    parser.add_argument("--values", type=int, default=10_000, help="branches of `values` and `nested`")
    parser.add_argument("--stores", default="memory,local,s3", help="where the ledger of `chains` is")
    parser.add_argument("--skip", default="", help="comma-separated: chains, values, nested, driver, peers")
    given = parser.parse_args(arguments)
    skipped = set(given.skip.split(","))
    rows: list[Row] = []
    for store in given.stores.split(",") if "chains" not in skipped else ():
        for count in map(int, given.counts.split(",")):
            rows.append(_show(Row(f"chains, ledger {store}", count, _child("chains", count, store))))
    if "peers" not in skipped:
        rows += _peers(given.peer_count)
    for case in ("values", "nested"):
        if case not in skipped:
            rows.append(_show(Row(f"{case}, ledger local", given.values, _child(case, given.values, "local"))))
    if "driver" not in skipped:
        for count in map(int, given.counts.split(",")):
            rows.append(_show(Row("chains on Ray, S3, the driver alone", count, _child("driver", count, "s3"))))
    _print(rows)
    return 0


def _peers(count: int) -> list[Row]:
    rows = [
        _show(Row("plain asyncio, nothing kept", count, _child("asyncio", count, ""))),
        _show(Row("Ray, one task a branch, nothing kept", count, _child("ray", count, ""))),
    ]
    program = str(HERE / "peers" / "langgraph_send.py")
    for kind in ("memory", "durable"):
        done = subprocess.run(
            [peers_python(), program, kind, str(count)], capture_output=True, text=True, check=True, timeout=1800
        )
        rows.append(_show(Row(f"LangGraph Send, {kind}", count, json.loads(done.stdout.splitlines()[-1]))))
    return rows


def _child(case: str, count: int, store: str) -> dict[str, Any]:
    command = [sys.executable, str(HERE / "wide.py"), case, str(count), store]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600)
    if done.returncode:
        raise SystemExit(f"{case} {count} {store} failed:\n{done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _show(row: Row) -> Row:
    print(f"{row.name}, {row.count}: {row.found}", file=sys.stderr, flush=True)
    return row


def _print(rows: list[Row]) -> None:
    durable = next((r for r in rows if r.name == "LangGraph Send, durable"), None)
    print(
        "| what | branches | seconds | CPU s | ms a branch | peak MB | PUTs | segments | status bytes | × LangGraph |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        f, per = row.found, row.found["seconds"] / row.count * 1000
        beside = f"{durable.found['seconds'] / durable.count * 1000 / per:.1f}" if durable is not None else ""
        cells = [f"{f['seconds']:.2f}", f"{f['cpu']:.2f}", f"{per:.3f}", *(f.get(k, "") for k in KEYS), beside]
        print(f"| {row.name} | {row.count:,} | " + " | ".join(map(str, cells)) + " |")


KEYS = ("rss", "puts", "segments", "status")

# ---------------------------------------------------------------------- one case, in its own process


def chains() -> dict[str, Any]:
    nodes = [
        {
            "name": f"s{i}",
            "with": {"v": f"nodes.s{i - 1}.output.v" if i else "input.item"},
            "transform": {"v": "v + 1"},
        }
        for i in range(STEPS)
    ]
    one = {"name": "one", "input": {"item": INTEGER}, "nodes": nodes, "output": {"v": f"nodes.s{STEPS - 1}.output.v"}}
    return _graph([PLAN, EACH], {"sum": "sum([r.v for r in nodes.each.output.items])"}, [one])


def values() -> dict[str, Any]:
    make = {
        "name": "make",
        "with": {"item": "input.item"},
        "code": "{'v': item, 'text': 'x' * 2000}",
        "output": {"v": INTEGER, "text": {"type": "string"}},
    }
    one = {
        "name": "one",
        "input": {"item": INTEGER},
        "nodes": [make],
        "output": {"v": "nodes.make.output.v", "text": "nodes.make.output.text"},
    }
    total = {
        "name": "total",
        "with": {"rows": "nodes.each.output.items"},
        "code": "sum([row['v'] for row in rows])",
        "output": INTEGER,
    }
    return _graph([PLAN, EACH, total], {"sum": "nodes.total.output"}, [one])


def nested() -> dict[str, Any]:
    side = {
        "name": "side",
        "with": {"item": "input.item", "count": "input.count"},
        "code": "list(range(item * count, item * count + count))",
        "output": {"type": "array", "items": INTEGER},
    }
    inner = {"name": "each", "map": {"items": "nodes.side.output", "as": "item", "template": "one"}}
    outer = {
        "name": "outer",
        "input": {"item": INTEGER, "count": INTEGER},
        "nodes": [side, inner],
        "output": {"v": "sum([r.v for r in nodes.each.output.items])"},
    }
    add = {"name": "add", "with": {"v": "input.item"}, "transform": {"v": "v + 0"}}
    one = {"name": "one", "input": {"item": INTEGER}, "nodes": [add], "output": {"v": "nodes.add.output.v"}}
    each = {
        "name": "each",
        "with": {"count": "input.count"},
        "map": {"items": "nodes.plan.output", "as": "item", "template": "outer"},
    }
    return _graph([PLAN, each], {"sum": "sum([r.v for r in nodes.each.output.items])"}, [outer, one])


INTEGER = {"type": "integer"}
PLAN = {
    "name": "plan",
    "with": {"count": "input.count"},
    "code": "list(range(count))",
    "output": {"type": "array", "items": INTEGER},
}
EACH = {"name": "each", "map": {"items": "nodes.plan.output", "as": "item", "template": "one"}}


def _graph(nodes: list[Any], output: dict[str, str], templates: list[Any]) -> dict[str, Any]:
    return {
        "apiVersion": "decurion.dev/v1alpha1",
        "kind": "TaskGraph",
        "metadata": {"name": "wide"},
        "spec": {"input": {"count": INTEGER}, "nodes": nodes, "output": output, "templates": templates},
    }


async def _ours(case: str, count: int, uri: str) -> dict[str, Any]:
    from decurion_crds.canonical import canonical
    from decurion_ledger import open_store
    from decurion_ledger.stores import Counted
    from decurion_worker.driver import Driver
    from decurion_worker.executors import LocalExecutor
    from decurion_worker.opening import OpenRequest
    from decurion_worker.pool import Pool, PoolSettings
    from decurion_worker.runner import RunnerSettings
    from decurion_worker.sources import Sources
    from graphs import compile_manifest

    given = math.isqrt(count) if case == "nested" else count
    graph = compile_manifest({"chains": chains, "values": values, "nested": nested}[case]())
    store = Counted(open_store(uri))
    driver = Driver("driver-0", store=store, ledger_uri=uri, sources=Sources(open_store, files=False))
    pool = Pool(driver, LocalExecutor(RunnerSettings(branches=1024)), PoolSettings(min_runners=1, max_runners=1))
    await pool.start()
    try:
        cpu, begin = time.process_time(), time.perf_counter()
        session = await driver.open_run(OpenRequest(run="bench", name="wide", graph=graph, input={"count": given}))
        await session.ended.wait()
        seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    finally:
        await pool.stop()
    expected = sum(range(count)) + (STEPS * count if case == "chains" else 0)
    if session.engine.output != {"sum": expected}:
        raise SystemExit(f"the result is wrong: {session.engine.output} {session.why} {session.facts.message}")
    return {
        "seconds": seconds,
        "cpu": cpu,
        "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "puts": store.puts,
        "segments": session.facts.slot + 1,
        "records": session.facts.committed,
        "status": len(canonical(session.projection())),
    }


def _driver_alone(count: int) -> dict[str, Any]:
    """`chains` on a runner of its own: the peak is that of the driver's process, all that it imports included."""
    from cluster.s3 import S3Server
    from graphs import compile_manifest
    from pool import Pool

    graph = compile_manifest(chains())
    with tempfile.TemporaryDirectory() as folder:
        server = S3Server(Path(folder) / "s3")
        server.start()
        try:
            with Pool(Path(folder) / "pool", ledger=server.uri("wide"), executor="ray", env=server.env) as pool:
                client = pool.client()
                client.put_bundle(graph)
                pid = client.drivers()[0]["pid"]
                before = _memory(pid)
                client.open(graph, "bench", {"count": count}).raise_for_status()
                end = client.finished("bench", timeout=3600)
                found = _memory(pid)
        finally:
            server.stop()
    if end.get("output") != {"sum": sum(range(count)) + STEPS * count}:
        raise SystemExit(f"the result is wrong: {end}")
    seconds = (datetime.fromisoformat(end["finishedAt"]) - datetime.fromisoformat(end["startedAt"])).total_seconds()
    return {
        "seconds": seconds,
        "cpu": float("nan"),
        "rss": found["VmHWM"],
        "before": before["VmRSS"],
        "after": found["VmRSS"],
        "segments": end["ledger"]["slot"] + 1,
    }


def _memory(pid: int) -> dict[str, int]:
    """MiB of a process, by the names of the kernel."""
    rows = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("Vm"))
    return {name.rstrip(":"): int(size) // 1024 for name, size, *_ in rows}


async def _asyncio(count: int) -> dict[str, Any]:
    async def step(v: int) -> int:
        await asyncio.sleep(0)
        return v + 1

    async def branch(v: int) -> int:
        for _ in range(STEPS):
            v = await step(v)
        return v

    begin = time.perf_counter()
    found = await asyncio.gather(*(branch(i) for i in range(count)))
    assert sum(found) == sum(range(count)) + STEPS * count
    return {"seconds": time.perf_counter() - begin, "cpu": time.process_time()}


def _ray(count: int) -> dict[str, Any]:
    import ray

    @ray.remote
    def branch(v: int) -> int:
        return v + STEPS

    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    ray.get([branch.remote(i) for i in range(8)])
    begin = time.perf_counter()
    found = ray.get([branch.remote(i) for i in range(count)])
    seconds = time.perf_counter() - begin
    assert sum(found) == sum(range(count)) + STEPS * count
    ray.shutdown()
    return {"seconds": seconds, "cpu": time.process_time()}


def main(case: str, count: int, store: str) -> None:
    if case == "asyncio":
        print(json.dumps(asyncio.run(_asyncio(count))))
    elif case == "driver":
        print(json.dumps(_driver_alone(count)))
    elif case == "ray":
        print(json.dumps(_ray(count)))
    elif store == "s3":
        from cluster.s3 import S3Server

        with tempfile.TemporaryDirectory() as folder:
            server = S3Server(Path(folder))
            server.start()
            os.environ.update(server.env)
            try:
                print(json.dumps(asyncio.run(_ours(case, count, server.uri("wide")))))
            finally:
                server.stop()
    else:
        with tempfile.TemporaryDirectory() as folder:
            uri = f"file://{folder}/ledger" if store == "local" else "memory://bench"
            print(json.dumps(asyncio.run(_ours(case, count, uri))))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])

"""2,000 branches of a model call that takes 1 s: on Ray with S3, through kubectl, in this process, and the link alone.

Times are seconds. `genesis → close` is between the first and the last record of the run, `apply → event` between
`kubectl apply` and the watch event that shows the run as succeeded. Best of the rounds; ratios within one run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from cluster.api_server import ApiServer
from cluster.binary import binary_path
from cluster.control_plane import ControlPlane
from cluster.s3 import S3Server
from decurion_ledger import open_store
from decurion_ledger.stores import Counted
from decurion_worker.driver import Driver
from decurion_worker.executors import LocalExecutor
from decurion_worker.opening import OpenRequest
from decurion_worker.pool import Pool as LocalPool
from decurion_worker.pool import PoolSettings
from decurion_worker.runner import RunnerSettings
from decurion_worker.sources import Sources
from graphs import WIDE, compiled, model
from model_server import start_model_server
from operator_process import OperatorProcess
from pool import Pool

MANIFESTS = Path(__file__).parent.parent.parent / "crds" / "manifests"


@dataclass
class Row:
    name: str
    seconds: list[float]
    note: str = ""


def fanout(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="hack/bench fanout", description=__doc__)
    parser.add_argument("--branches", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--skip", default="", help="comma-separated: link, process, ray, kubectl")
    given = parser.parse_args(arguments)
    skipped = set(given.skip.split(","))
    rows: list[Row] = []
    with start_model_server(delay=1.0) as server, tempfile.TemporaryDirectory() as folder:
        if "link" not in skipped:
            rows.append(Row("link alone, Ray, pretended commits", _link(given.branches, given.rounds)))
        if "process" not in skipped:
            rows.append(asyncio.run(_in_process(server.endpoint, given.branches, given.rounds)))
        if "ray" not in skipped:
            rows += _on_ray(
                Path(folder), server.endpoint, given.branches, given.rounds, kubectl="kubectl" not in skipped
            )
    _print(rows, given.branches)
    return 0


def _link(branches: int, rounds: int) -> list[float]:
    """In a process of its own: Ray ships the actors of a program's main module, not those of what it imports."""
    command = [sys.executable, str(Path(__file__).parent / "link.py"), str(branches), str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    return [float(seconds) for seconds in json.loads(done.stdout.splitlines()[-1])]


async def _in_process(endpoint: str, branches: int, rounds: int) -> Row:
    graph = compiled(endpoint)
    store = Counted(open_store("memory://bench"))
    driver = Driver("driver-0", store=store, ledger_uri="memory://bench", sources=Sources(open_store, files=False))
    pool = LocalPool(driver, LocalExecutor(RunnerSettings(branches=2 * branches)), PoolSettings())
    await pool.start()
    seconds = []
    try:
        for i in range(rounds):
            session = await driver.open_run(
                OpenRequest(run=f"run-{i}", name="wide", graph=graph, input={"count": branches})
            )
            await session.ended.wait()
            shown = session.projection()
            seconds.append(_between(shown["startedAt"], shown["finishedAt"]))
    finally:
        await pool.stop()
    return Row("in process, memory ledger: genesis → close", seconds)


def _on_ray(folder: Path, endpoint: str, branches: int, rounds: int, *, kubectl: bool) -> list[Row]:
    s3 = S3Server(folder / "s3")
    s3.start()
    rows = []
    try:
        pool = Pool(folder / "pool", ledger=s3.uri("bench"), executor="ray", env=s3.env, runners=2)
        with pool:
            rows.append(_through_ingress(pool, endpoint, branches, rounds))
            if kubectl and binary_path().exists():
                rows += _through_kubectl(folder, pool, endpoint, branches, rounds)
    finally:
        s3.stop()
    return rows


def _through_ingress(pool: Pool, endpoint: str, branches: int, rounds: int) -> Row:
    graph, client = compiled(endpoint), pool.client()
    client.put_bundle(graph)
    seconds, slots = [], 0
    for i in range(rounds + 1):
        client.open(graph, f"ray-{i}", {"count": branches}).raise_for_status()
        end = client.finished(f"ray-{i}", timeout=300)
        slots = end["ledger"]["slot"] + 1
        if i:  # the first run warms connections and interpreters
            seconds.append(_between(end["startedAt"], end["finishedAt"]))
    return Row("Ray, ledger in S3: genesis → close", seconds, f"{slots} segments")


def _through_kubectl(folder: Path, pool: Pool, endpoint: str, branches: int, rounds: int) -> list[Row]:
    inner, outer = [], []
    with _cluster(folder) as api:
        operator = OperatorProcess(folder, kubeconfig=api.kubeconfig, namespace="default").start()
        try:
            api.kubectl("apply", "--filename", "-", stdin=_definitions(pool, endpoint))
            api.kubectl("wait", "--for=condition=Ready", "tg/wide", "tgw/ray", "--timeout=90s")
            for i in range(rounds):
                took, end = _one(api, f"wide-{i}", branches)
                outer.append(took)
                inner.append(_between(end["startedAt"], end["finishedAt"]))
        finally:
            operator.stop()
    return [
        Row("kubectl, operator, Ray, S3: started → finished", inner),
        Row("kubectl, operator, Ray, S3: apply → event", outer),
    ]


@contextmanager
def _cluster(folder: Path) -> Iterator[ApiServer]:
    plane = ControlPlane(binary=binary_path(), folder=folder / "kubernetes")
    try:
        api = plane.start()
        api.kubectl("apply", "--server-side", "--filename", MANIFESTS)
        api.kubectl("wait", "--for=condition=Established", "--timeout=30s", "crd", "--all")
        yield api
    finally:
        plane.stop()


def _definitions(pool: Pool, endpoint: str) -> str:
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "pool", "labels": {"decurion.dev/use": "true"}},
        "stringData": {"token": pool.token},
    }
    worker_pool = {
        "apiVersion": "decurion.dev/v1alpha1",
        "kind": "WorkerPool",
        "metadata": {"name": "ray"},
        "spec": {
            "mode": "External",
            "url": pool.url,
            "auth": {"secretKeyRef": {"name": "pool", "key": "token"}},
        },
    }
    items = [secret, worker_pool, model(endpoint), WIDE]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


def _one(api: ApiServer, name: str, branches: int) -> tuple[float, dict[str, Any]]:
    """Seconds from `kubectl apply` to the watch event of success, and the status at the end."""
    run = {
        "apiVersion": "decurion.dev/v1alpha1",
        "kind": "TaskGraphRun",
        "metadata": {"name": name},
        "spec": {"graph": "wide", "pool": "ray", "input": {"count": branches}},
    }
    command = [
        str(api.kubectl_command), "get", "tgr", "--watch",
        "--output=jsonpath={.metadata.name} {.status.phase}{'\\n'}",
    ]  # fmt: skip
    watch = subprocess.Popen(command, stdout=subprocess.PIPE, env=api.env, text=True)
    try:
        begun = time.monotonic()
        api.kubectl("apply", "--filename", "-", stdin=json.dumps(run))
        assert watch.stdout is not None
        for line in watch.stdout:
            if line.split() == [name, "Succeeded"]:
                break
        took = time.monotonic() - begun
    finally:
        watch.terminate()
        watch.wait(20)
    return took, dict(json.loads(api.kubectl("get", "tgr", name, "-o", "json"))["status"])


def _between(start: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()


def _print(rows: list[Row], branches: int) -> None:
    base = next((min(row.seconds) for row in rows if row.name.startswith("in process")), None)
    print(f"{branches} branches of a model call of 1 s, best of {len(rows[0].seconds)}:")
    for row in rows:
        best = min(row.seconds)
        ratio = f"{best / base:5.2f} × in process" if base else ""
        print(f"  {row.name:52s} {best:7.2f} s  {ratio}  {row.note}  (all: {[round(s, 2) for s in row.seconds]})")

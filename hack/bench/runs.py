"""Many runs with a large input, applied at once, through a pool that runs few at a time: what they cost the operator's
memory and the cluster's store.

Real API server and operator process; a Local pool with its ledger in a folder; a scripted model. A further round
applies as many runs again, with those of the rounds before still there: what memory it adds is what a run costs for
good. The store's size is that of etcd's file, and what of it is in use; the API server compacts every 5 minutes, which
makes room in the file, and at the end the bench compacts and defragments.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from cluster.api_server import ApiServer
from cluster.binary import binary_path
from cluster.control_plane import ControlPlane
from cluster.process import free_ports
from operator_process import OperatorProcess

MANIFESTS = Path(__file__).parent.parent.parent / "crds" / "manifests"
MIB = 1024 * 1024
ENDED = ("Succeeded", "Failed", "Cancelled")
PHASES = ("Pending", "Queued", "Running", *ENDED)


def runs(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="hack/bench runs", description=__doc__)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=2, help="how often so many runs are applied at once")
    parser.add_argument("--bytes", type=int, default=90_000, help="size of each run's input")
    parser.add_argument("--max-running", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=1.0, help="time of each run's model call")
    parser.add_argument("--timeout", type=float, default=900.0)
    parser.add_argument("--settle", type=float, default=15.0, help="seconds between a round's end and its rest")
    parser.add_argument("--rest", type=float, default=65.0, help="seconds of rest in which memory is looked at")
    given = parser.parse_args(arguments)
    if not binary_path().exists():
        print("the Kubernetes API server is not built: `make cluster` builds it")
        return 3
    with tempfile.TemporaryDirectory() as name, _stage(Path(name), given) as stage:
        before = stage.look()
        stage.mark("before")
        for number in range(given.rounds):
            _round(stage, given, number * given.runs)
        stage.store.compact()
        stage.mark("compacted")
        _print(given, stage, before, stage.look())
        phases = stage.stored()
    return 0 if phases == {"Succeeded": given.rounds * given.runs} else 1


def _round(stage: Stage, given: argparse.Namespace, first: int) -> None:
    begun = time.monotonic()
    _apply(stage.api, range(first, first + given.runs), given.bytes)
    stage.times.append(time.monotonic() - begun)
    for third in (1, 2, 3):
        ended = first + given.runs * third // 3
        left = begun + given.timeout - time.monotonic()
        stage.phases = stage.until_ended(ended, seconds=max(1.0, left))
        stage.mark(f"{ended} ended")
    stage.times.append(time.monotonic() - begun)
    time.sleep(given.settle)
    stage.rest(given.rest)


class Store:
    """The cluster's etcd, over its JSON."""

    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, timeout=120, trust_env=False)

    def sizes(self) -> tuple[float, float]:
        """Of its file and of what is in use there, in MiB."""
        told = self._call("maintenance/status")
        return int(told["dbSize"]) / MIB, int(told["dbSizeInUse"]) / MIB

    def compact(self) -> None:
        """Give up all versions but the last ones, and the room that they took."""
        revision = self._call("maintenance/status")["header"]["revision"]
        self._call("kv/compaction", revision=revision, physical=True)
        self._call("maintenance/defragment")

    def _call(self, path: str, **body: Any) -> dict[str, Any]:
        answer = self._client.post(f"/v3/{path}", json=body)
        answer.raise_for_status()
        return dict(answer.json())


@dataclass
class Stage:
    """The servers of the bench, and what is seen of them."""

    api: ApiServer
    pid: int
    port: int
    store: Store
    marks: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    phases: dict[str, int] = field(default_factory=dict)
    peak: float = 0.0
    most_running: int = 0

    def mark(self, name: str) -> None:
        """Note the operator's memory and the store's size, in MiB."""
        size, used = self.store.sizes()
        self.marks.append(f"{name}: RSS {self.resident():.0f}, etcd {size:.0f} ({used:.0f} in use)")

    def rest(self, seconds: float) -> None:
        """Note the operator's memory while nothing runs: a comparison with the cluster in that time takes some."""
        end, seen = time.monotonic() + seconds, [self.resident()]
        while time.monotonic() < end:
            time.sleep(0.5)
            seen.append(self.resident())
        seen.sort()
        self.mark(f"at rest for {seconds:.0f} s, median {seen[len(seen) // 2]:.0f}, {seen[0]:.0f} to {seen[-1]:.0f}")

    def resident(self) -> float:
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text())
        return int(found.group(1)) / 1024 if found else 0.0

    def watch_memory(self, stop: threading.Event) -> None:
        while not stop.wait(0.2):
            self.peak = max(self.peak, self.resident())

    def look(self) -> dict[str, float]:
        """The operator's metrics, by name with labels."""
        text = httpx.get(f"http://127.0.0.1:{self.port}/metrics", trust_env=False, timeout=30).text
        rows = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in rows}

    def until_ended(self, count: int, *, seconds: float) -> dict[str, int]:
        """How many runs are in which phase, once `count` ended, as the operator tells: a list of 300 is 60 MB."""
        deadline = time.monotonic() + seconds
        while True:
            seen = self.look()
            phases = {p: int(seen[f'decurion_runs{{phase="{p}"}}']) for p in PHASES}
            self.most_running = max(self.most_running, phases["Running"])
            if sum(phases[p] for p in ENDED) >= count or time.monotonic() > deadline:
                return {name: count for name, count in phases.items() if count}
            time.sleep(0.5)

    def stored(self) -> dict[str, int]:
        """How many runs of which phase the API server has."""
        rows = self.api.kubectl("get", "tgr", "--no-headers", "--chunk-size=20", seconds=300).splitlines()
        return dict(Counter(row.split()[2] if len(row.split()) > 3 else "Pending" for row in rows))


@contextmanager
def _stage(folder: Path, given: argparse.Namespace) -> Iterator[Stage]:
    plane = ControlPlane(binary=binary_path(), folder=folder / "kubernetes")
    (port,) = free_ports(1)
    stop = threading.Event()
    try:
        api = plane.start()
        api.kubectl("apply", "--server-side", "--filename", MANIFESTS)
        api.kubectl("wait", "--for=condition=Established", "--timeout=30s", "crd", "--all")
        more = ("--local-pools", "--health-port", str(port))
        operator = OperatorProcess(folder, kubeconfig=api.kubeconfig, namespace="default", more=more).start()
        try:
            api.kubectl("apply", "--filename", "-", stdin=_definitions(folder / "ledger", given))
            api.kubectl("wait", "--for=condition=Ready", "tg/long", "tgw/default", "--timeout=90s")
            stage = Stage(api, operator.pid, port, Store(plane.etcd_url))
            watching = threading.Thread(target=stage.watch_memory, args=(stop,), daemon=True)
            watching.start()
            yield stage
            stop.set()
            watching.join()
        finally:
            stop.set()
            operator.stop()
    finally:
        plane.stop()


def _object(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "decurion.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def _list(items: list[dict[str, Any]]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


def _definitions(ledger: Path, given: argparse.Namespace) -> str:
    pool = {"mode": "Local", "ledger": {"uri": f"file://{ledger}"}, "maxRunning": given.max_running}
    model = {"protocol": "scripted", "scripted": {"replies": [{"reply": "done", "delaySeconds": given.seconds}]}}
    integer = {"n": {"type": "integer"}}
    graph = {
        "input": {"text": {"type": "string"}},
        "nodes": [
            {"name": "size", "with": {"text": "input.text"}, "code": '{"n": len(text)}', "output": integer},
            {"name": "ask", "with": {"n": "nodes.size.output.n"}, "llm": {"ref": "slow", "prompt": "{{ n }}"}},
        ],
        "output": {"n": "nodes.size.output.n", "said": "nodes.ask.output.text"},
    }
    return _list(
        [_object("WorkerPool", "default", pool), _object("LLM", "slow", model), _object("TaskGraph", "long", graph)]
    )


def _apply(api: ApiServer, numbers: range, size: int, *, clients: int = 8) -> None:
    """Create the runs as `kubectl apply` stores them, with the copy of the object in its annotation.

    kubectl itself takes half a second of CPU for each, which would be the measure of the bench.
    """
    path = "/apis/decurion.dev/v1alpha1/namespaces/default/taskgraphruns"
    headers = {"Authorization": f"Bearer {api.token}"}
    with (
        httpx.Client(
            base_url=api.url, verify=api.ssl_context(), headers=headers, timeout=60, trust_env=False
        ) as client,
        ThreadPoolExecutor(clients) as threads,
    ):

        def create(number: int) -> None:
            name = f"run-{number:04}"
            # Every input is another one, as with real users.
            spec = {"graph": "long", "input": {"text": (name * (size // len(name) + 1))[:size]}}
            body = _object("TaskGraphRun", name, spec)
            copy = {"kubectl.kubernetes.io/last-applied-configuration": json.dumps(body)}
            body["metadata"]["annotations"] = copy
            client.post(path, json=body).raise_for_status()

        list(threads.map(create, numbers))


def _print(given: argparse.Namespace, stage: Stage, before: dict[str, float], after: dict[str, float]) -> None:
    def grown(prefix: str) -> dict[str, int]:
        names = sorted(n for n in after if n.startswith(prefix) and after[n] > before.get(n, 0.0))
        return {n.removeprefix(prefix): int(after[n] - before.get(n, 0.0)) for n in names}

    told = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    commit = told.stdout.strip()
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    print(f"{given.rounds} x {given.runs} runs of {given.bytes} B, maxRunning {given.max_running}, commit {commit}")
    times = " s, ".join(f"{each:.0f}" for each in stage.times)
    print(f"  {stage.phases}, at most {stage.most_running} seen Running; load {load}")
    print(f"  applied and ended in each round after {times} s")
    print(f"  peak RSS {stage.peak:.0f} MiB")
    for mark in stage.marks:
        print(f"  MiB {mark}")
    for label, prefix in (
        ("calls", "decurion_api_requests_total"),
        ("bytes", "decurion_api_bytes_total"),
        ("reconciles", "decurion_reconcile_seconds_count"),
        ("errors", "decurion_reconcile_errors_total"),
    ):
        for name, count in grown(prefix).items():
            print(f"  {label} {name}: {count} ({count / given.rounds / given.runs:.1f} a run)")

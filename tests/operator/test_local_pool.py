"""Pools of mode Local: the driver is a child process of the operator. Real API server, real child processes."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from decurion_ledger import open_store, read_log, verify
from decurion_operator.local_pool import LocalPool
from decurion_operator.metrics import Meter
from decurion_operator.queue import Key
from decurion_operator.settings import OperatorSettings
from decurion_worker.local_pool import LocalPoolConfig

INTEGER = {"n": {"type": "integer"}}
ASKS = {
    "input": INTEGER,
    "nodes": [
        {"name": "first", "with": {"n": "input.n"}, "llm": {"ref": "slow", "prompt": "first {{ n }}"}},
        {"name": "second", "with": {"text": "nodes.first.output.text"}, "llm": {"ref": "slow", "prompt": "{{ text }}"}},
        {"name": "size", "with": {"text": "nodes.second.output.text"}, "code": '{"n": len(text)}', "output": INTEGER},
    ],
    "output": {"n": "nodes.size.output.n"},
}
START = 60.0
EXAMPLE = Path(__file__).parents[2] / "examples" / "local-pool"


def scripted(seconds: float) -> dict[str, Any]:
    return {"protocol": "scripted", "scripted": {"replies": [{"reply": "four", "delaySeconds": seconds}]}}


def parent_of(pid: int) -> int | None:
    """The parent of a process; None when there is no such process any more (a zombie is none)."""
    try:
        status = dict(
            line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
        )
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if status["State"].startswith("Z") else int(status["PPid"])


def children_of(parent: int) -> set[int]:
    pids = {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()}
    return {pid for pid in pids if parent_of(pid) == parent}


def served_by(pid: int) -> set[int]:
    """The processes of Local pools among the children of `pid`."""
    return {c for c in children_of(pid) if b"decurion_worker.serve_local" in Path(f"/proc/{c}/cmdline").read_bytes()}


def shown_by(pid: int) -> bytes:
    """What anybody with an account on the machine may read of a process of the same user."""
    return Path(f"/proc/{pid}/environ").read_bytes() + Path(f"/proc/{pid}/cmdline").read_bytes()


async def set_up(cluster: Any, ledger: Path | dict[str, Any], *, seconds: float = 0.0, **spec: Any) -> None:
    pool = {"mode": "Local", "ledger": ledger if isinstance(ledger, dict) else {"uri": f"file://{ledger}"}} | spec
    await cluster.create("WorkerPool", "default", pool)
    await cluster.create("LLM", "slow", scripted(seconds))
    await cluster.create("TaskGraph", "double", ASKS)


async def records(ledger: Path, uid: str) -> list[Any]:
    return [record async for _, record in read_log(open_store(str(ledger)), uid)]


@pytest.fixture
def local(operate: Any) -> Any:
    return lambda **changes: operate(**{"local_pools": True, "pool_seconds": 5.0} | changes)


async def test_a_run_applied_with_its_pool_succeeds_and_its_ledger_is_where_the_pool_says(
    cluster: Any, local: Any, tmp_path: Path
) -> None:
    async with local():
        await set_up(cluster, tmp_path / "ledger")
        await cluster.until_status("WorkerPool", "default", seconds=START, Ready="True")
        await cluster.start("one")
        status = await cluster.until_status("TaskGraphRun", "one", seconds=START, phase="Succeeded")
        assert status["output"] == {"n": 4}
        uid = (await cluster.get("TaskGraphRun", "one"))["metadata"]["uid"]
    assert await verify(open_store(str(tmp_path / "ledger")), uid) == []
    assert not served_by(os.getpid())


async def test_the_example_of_a_local_pool_runs_as_it_is_applied(cluster: Any, local: Any, tmp_path: Path) -> None:
    pool = (EXAMPLE / "pool.yaml").read_text().replace("/var/lib/decurion", str(tmp_path / "ledger"))
    async with local():
        await cluster.apply((EXAMPLE / "graph.yaml").read_text())
        await cluster.apply(pool)
        await cluster.kubectl("wait", "--for=condition=Succeeded", "tgr/first", "--timeout=60s", seconds=70)
        assert (await cluster.status("TaskGraphRun", "first"))["output"] == {"text": "Good morning, Ada!"}


async def test_a_run_goes_on_when_the_process_is_killed_in_the_middle(
    cluster: Any, local: Any, until: Any, tmp_path: Path
) -> None:
    async with local():
        await set_up(cluster, tmp_path / "ledger", seconds=1.5)
        await cluster.start("one")
        uid = (await cluster.get("TaskGraphRun", "one"))["metadata"]["uid"]

        async def half_done() -> bool:
            nodes = (await cluster.status("TaskGraphRun", "one")).get("nodes") or []
            return any(n["name"] == "first" and n["phase"] == "Succeeded" for n in nodes)

        await until(half_done, what="the first node", seconds=START)
        (pid,) = served_by(os.getpid())
        os.kill(pid, signal.SIGKILL)
        status = await cluster.until_status("TaskGraphRun", "one", seconds=START, phase="Succeeded")
        assert status["attempt"] == 2
        assert served_by(os.getpid()) != {pid}
        paths = [r.path for r in await records(tmp_path / "ledger", uid) if r.type == "commit"]
        assert sorted(paths) == ["/!output", "/first", "/second", "/size"]
    assert await verify(open_store(str(tmp_path / "ledger")), uid) == []


async def test_a_process_that_stands_still_is_replaced(cluster: Any, local: Any, until: Any, tmp_path: Path) -> None:
    async with local(pool_seconds=2.0, drivers_seconds=0.2):
        await set_up(cluster, tmp_path / "ledger")
        await cluster.until_status("WorkerPool", "default", seconds=START, Ready="True")
        (pid,) = served_by(os.getpid())
        os.kill(pid, signal.SIGSTOP)
        await cluster.until_status("WorkerPool", "default", Ready="False")
        await cluster.until_status("WorkerPool", "default", seconds=START, Ready="True")
        assert parent_of(pid) is None
        await cluster.start("one")
        await cluster.until_status("TaskGraphRun", "one", seconds=START, phase="Succeeded")


RUN = (
    "import json, sys; from decurion_operator import OperatorSettings, run_operator; "
    "s = json.loads(sys.argv[1]); s['namespaces'] = tuple(s['namespaces']); run_operator(OperatorSettings(**s))"
)


@asynccontextmanager
async def operator_process(settings: OperatorSettings, log: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    with log.open("ab") as out:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", RUN, json.dumps(asdict(settings)), stdout=out, stderr=out, env=dict(os.environ)
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def test_no_pool_outlives_an_operator_that_is_killed(
    cluster: Any, settings: OperatorSettings, until: Any, tmp_path: Path
) -> None:
    settings = replace(settings, local_pools=True)
    async with operator_process(settings, tmp_path / "log") as process:
        await set_up(cluster, tmp_path / "ledger", seconds=1.5)
        await cluster.start("one")
        await cluster.until_status("TaskGraphRun", "one", seconds=START, phase="Running")
        (pid,) = served_by(process.pid)
        below = {pid} | children_of(pid)
        process.kill()

        async def gone() -> bool:
            return all(parent_of(each) is None for each in below)

        await until(gone, what="the end of the pool and of its own processes", seconds=20)
    async with operator_process(settings, tmp_path / "log") as process:
        await cluster.until_status("TaskGraphRun", "one", seconds=START, phase="Succeeded")
        process.terminate()
        async with asyncio.timeout(20):
            assert await process.wait() == 0
    assert "Traceback" not in (tmp_path / "log").read_text()


async def test_the_condition_says_why_a_pool_cannot_be_started(cluster: Any, local: Any, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    async with local():
        await set_up(cluster, blocked / "ledger")
        status = await cluster.until_status("WorkerPool", "default", seconds=START, Ready="False")
        ready = next(c for c in status["conditions"] if c["type"] == "Ready")
        assert ready["reason"] == "PoolProcessEnded"
        assert str(blocked) in ready["message"]


async def test_an_operator_that_serves_no_local_pools_says_how_to_allow_them(
    cluster: Any, operate: Any, tmp_path: Path
) -> None:
    async with operate():
        await set_up(cluster, tmp_path / "ledger")
        status = await cluster.until_status("WorkerPool", "default", Ready="False")
        ready = next(c for c in status["conditions"] if c["type"] == "Ready")
        assert ready["reason"] == "LocalPoolsOff"
        assert "--local-pools" in ready["message"]
        await cluster.start("one")
        run = await cluster.until_status("TaskGraphRun", "one", phase="Pending", reason="PoolUnavailable")
        assert "--local-pools" in run["message"]
        assert not served_by(os.getpid())


@pytest.mark.s3
async def test_a_ledger_in_a_store_is_reached_with_the_keys_of_a_labelled_secret(
    cluster: Any, local: Any, s3_server: Any
) -> None:
    keys = {"AWS_ACCESS_KEY_ID": s3_server.access_key, "AWS_SECRET_ACCESS_KEY": s3_server.secret_key}
    where = {
        "uri": s3_server.uri(cluster.namespace),
        "endpointURL": s3_server.endpoint_url,
        "region": "us-east-1",
        "addressing": "path",
        "checksum": "md5",
        "credentials": {"secretRef": {"name": "store"}},
    }
    async with local():
        await set_up(cluster, where)
        status = await cluster.until_status("WorkerPool", "default", Ready="False", ReferencesResolved="False")
        assert "decurion.dev/use=true" in status["conditions"][0]["message"]
        await cluster.create("Secret", "store", stringData=keys, metadata={"labels": {"decurion.dev/use": "true"}})
        await cluster.until_status("WorkerPool", "default", seconds=START, Ready="True")
        await cluster.start("one")
        done = await cluster.until_status("TaskGraphRun", "one", seconds=START, phase="Succeeded")
        assert done["ledger"]["uri"].startswith(where["uri"])
        (pid,) = served_by(os.getpid())
        seen = shown_by(pid)
        assert s3_server.secret_key.encode() not in seen
        assert b"KUBECONFIG" not in seen


async def test_a_process_that_ends_at_once_is_started_again_with_growing_pauses(tmp_path: Path, until: Any) -> None:
    meter, ended = Meter(), 0

    def changed() -> None:
        nonlocal ended
        ended += 1

    settings = OperatorSettings(backoff_seconds=0.05, backoff_cap_seconds=3600.0)
    config = LocalPoolConfig(socket="", token="", ledger="nonsense://x")
    pool = LocalPool(Key("WorkerPool", "ns", "p"), config, settings, meter, changed=changed)
    pool.start()
    try:

        async def twice() -> bool:
            return ended >= 2

        await until(twice, what="two starts", seconds=START)
        assert "nonsense:// is unknown" in pool.problem
        assert b"decurion_local_pool_restarts_total 2.0" in meter.text()
    finally:
        await pool.aclose()
    assert not served_by(os.getpid())

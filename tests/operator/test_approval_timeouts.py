"""The time of a request runs out on a cluster although the driver that made it is no longer there."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from test_real_pool import TOKEN, apply_pool

from decurion_ledger import Record, open_store, read_log

GRAPH = {
    "nodes": [
        {
            "name": "review",
            "approval": {"message": "Go on?", "timeoutSeconds": 20, "onTimeout": "approve"},
        },
        {"name": "pay", "with": {"ok": "nodes.review.output.approved"}, "transform": {"paid": "ok"}},
    ],
    "output": {"paid": "nodes.pay.output.paid"},
}


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextlib.asynccontextmanager
async def worker(ledger: Path, port: int, log: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """A pool in a process of its own, killed without a word at the end of the block."""
    command = [str(Path(sys.executable).parent / "decurion"), "worker", "serve", "--ledger", str(ledger)]
    with log.open("ab") as out:
        process = await asyncio.create_subprocess_exec(
            *command,
            "--port",
            str(port),
            env={**os.environ, "DECURION_POOL_TOKEN": TOKEN},
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def log_of(ledger: Path, uid: str) -> list[Record]:
    return [record async for _, record in read_log(open_store(str(ledger)), uid)]


async def test_a_time_out_that_nobody_saw_is_noticed_by_the_next_driver(
    cluster: Any, operate: Any, tmp_path: Path
) -> None:
    ledger, port, said = tmp_path / "ledger", free_port(), tmp_path / "worker.log"
    async with operate():
        async with worker(ledger, port, said):
            await cluster.create("TaskGraph", "pay", GRAPH)
            await apply_pool(cluster, f"http://127.0.0.1:{port}")
            await cluster.create("TaskGraphRun", "one", {"graph": "pay"})
            status = await cluster.until_status("TaskGraphRun", "one", reason="AwaitingApproval", seconds=60)
            due = status["nextWakeAt"]
            assert status["approvals"][0]["due"] == due
        uid = (await cluster.get("TaskGraphRun", "one"))["metadata"]["uid"]
        before = await log_of(ledger, uid)
        assert [r.path for r in before if r.type == "approval_requested"] == ["/review!open"]
        assert not any(r.path == "/pay" for r in before)
        async with worker(ledger, port, said):
            done = await cluster.until_status("TaskGraphRun", "one", phase="Succeeded", seconds=60)
        assert (done["output"], done["attempt"]) == ({"paid": True}, 2)
        assert "nextWakeAt" not in done
        log = await log_of(ledger, uid)
        assert len([r for r in log if r.type == "approval_requested"]) == 1


async def test_it_does_when_neither_the_operator_nor_a_driver_lived_meanwhile(
    cluster: Any, operate: Any, tmp_path: Path
) -> None:
    ledger, port, said = tmp_path / "ledger", free_port(), tmp_path / "worker.log"
    async with worker(ledger, port, said), operate():
        await cluster.create("TaskGraph", "pay", GRAPH)
        await apply_pool(cluster, f"http://127.0.0.1:{port}")
        await cluster.create("TaskGraphRun", "one", {"graph": "pay"})
        await cluster.until_status("TaskGraphRun", "one", reason="AwaitingApproval", seconds=60)
    async with operate(), worker(ledger, port, said):
        done = await cluster.until_status("TaskGraphRun", "one", phase="Succeeded", seconds=60)
        assert done["output"] == {"paid": True}

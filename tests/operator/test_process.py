"""The operator as a process: how it starts, is killed, and lives through an API server that is away."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from tcp_proxy import proxying

from decurion_operator import Operator, StartError

RUN = (
    "import json, sys; from decurion_operator import OperatorSettings, run_operator; "
    "s = json.loads(sys.argv[1]); s['namespaces'] = tuple(s['namespaces']); run_operator(OperatorSettings(**s))"
)
Process = asyncio.subprocess.Process


@pytest.fixture
def operator_process(settings: Any, tmp_path: Path) -> Callable[..., AbstractAsyncContextManager[Process]]:
    """An operator in a process of its own, killed at the end of the block."""

    @asynccontextmanager
    async def started() -> AsyncIterator[Process]:
        log = (tmp_path / "operator.log").open("ab")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", RUN, json.dumps(asdict(settings)), stdout=log, stderr=log, env=dict(os.environ)
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            log.close()

    return started


async def test_a_run_survives_kill_9_of_the_operator_and_of_the_drivers_and_an_edited_graph(
    cluster: Any, pool: Any, operator_process: Any
) -> None:
    async with operator_process():
        await cluster.set_up(pool)
        await cluster.start("one")
        before = await cluster.until_status("TaskGraphRun", "one", phase="Running", seconds=40)
    await cluster.delete("TaskGraph", "double")
    await pool.restart()
    async with operator_process() as process:
        await cluster.until_status("TaskGraphRun", "one", attempt=2, seconds=40)
        await pool.finish("one", output={"n": 42})
        ended = await cluster.until_status("TaskGraphRun", "one", phase="Succeeded")
        assert ended["graphDigest"] == before["graphDigest"] == pool.by_name("one").digest
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(20):
            assert await process.wait() == 0


@pytest.fixture
async def cut_off(settings: Any, cluster: Any, tmp_path: Path) -> AsyncIterator[tuple[Any, Any]]:
    """Settings whose kubeconfig goes through a proxy, and the proxy."""
    config = yaml.safe_load(cluster.server.kubeconfig.read_text())
    async with proxying(httpx.URL(cluster.server.url).port) as proxy:
        config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{proxy.port}"
        copy = tmp_path / "through-proxy"
        copy.touch(mode=0o600)
        copy.write_text(yaml.safe_dump(config))
        yield replace(settings, kubeconfig=str(copy)), proxy


async def test_an_api_server_that_is_away_for_a_while_costs_nothing_but_time(
    cluster: Any, pool: Any, operate: Any, cut_off: Any, until: Any
) -> None:
    settings, proxy = cut_off
    async with operate(kubeconfig=settings.kubeconfig, resync_seconds=1.0) as operator:
        await cluster.set_up(pool)
        for name in ("one", "two"):
            await cluster.start(name)
            await cluster.until_status("TaskGraphRun", name, phase="Running")
        proxy.cut()
        await cluster.delete("TaskGraphRun", "two")
        await pool.finish("one", output={"n": 42})
        failed = operator.meter.text().count(b"decurion_api_requests_total")

        async def noticed() -> bool:
            return b'code="0"' in operator.meter.text()

        await until(noticed, what="a call that fails")
        assert failed
        proxy.mend()
        status = await cluster.until_status("TaskGraphRun", "one", phase="Succeeded", seconds=40)
        assert status["output"] == {"n": 42}

        async def ended() -> bool:
            return bool(pool.by_name("two").ended)

        await until(ended, what="the end of the run that was deleted meanwhile", seconds=40)
        await cluster.start("three")
        await cluster.until_status("TaskGraphRun", "three", phase="Running", seconds=40)


async def test_the_probes_tell_liveness_readiness_and_metrics(
    cluster: Any, pool: Any, operate: Any, until: Any
) -> None:
    async with operate() as operator, httpx.AsyncClient(trust_env=False) as client:
        base = f"http://127.0.0.1:{operator.probes.port}"

        async def ready() -> bool:
            return (await client.get(f"{base}/readyz")).status_code == 200

        await until(ready, what="readiness")
        assert (await client.get(f"{base}/livez")).text == "ok"
        await cluster.set_up(pool)
        await cluster.start("one")
        await cluster.until_status("TaskGraphRun", "one", phase="Running")
        metrics = (await client.get(f"{base}/metrics")).text
        assert 'decurion_runs{phase="Running"} 1.0' in metrics
        assert 'decurion_api_requests_total{code="200",kind="TaskGraphRun",verb="PATCH"}' in metrics
        assert "decurion_loop_lag_seconds" in metrics
        assert cluster.namespace not in metrics


async def test_no_answer_of_the_api_server_ends_the_start_with_what_to_check(settings: Any, cut_off: Any) -> None:
    away, proxy = cut_off
    proxy.cut()
    with pytest.raises(StartError, match="check that it runs and that the kubeconfig names it"):
        await Operator.start(replace(away, start_seconds=0.5))


async def test_an_unusable_kubeconfig_is_named(settings: Any, tmp_path: Path) -> None:
    with pytest.raises(StartError, match="nowhere"):
        await Operator.start(replace(settings, kubeconfig=str(tmp_path / "nowhere")))


async def test_a_taken_port_is_named(settings: Any) -> None:
    server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        with pytest.raises(StartError, match=f"Port {port} "):
            await Operator.start(replace(settings, health_port=port))

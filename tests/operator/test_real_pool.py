"""The operator with a real driver behind the real ingress, and the fake pool held against that one."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import fake_ingress
import pytest

from decurion_crds.canonical import canonical
from decurion_crds.compile import Checker, compile_graph
from decurion_crds.compiled import CompiledGraph
from decurion_crds.v1alpha1 import TaskGraph, parse_resource
from decurion_ledger import open_store, read_log, verify
from decurion_ledger.errors import RunDeleted
from decurion_ledger.layout import run_prefix
from decurion_ledger.retention import HOLD, collect
from decurion_operator.errors import BundleMissing, PoolError, PoolRefused, PoolUnavailable, RunUnknown, StaleLeader
from decurion_operator.ingress import Ingress, OpenRequest
from decurion_operator.metrics import Meter
from decurion_worker.driver import Driver
from decurion_worker.drivers import DriverCalls
from decurion_worker.executors.local import LocalExecutor
from decurion_worker.pool import Pool, PoolSettings
from decurion_worker.runner import RunnerSettings
from decurion_worker.serve import ingress, serve
from decurion_worker.sources import Sources

TOKEN = "token-of-the-pool"
INTEGER = {"n": {"type": "integer"}}
SMALL = {"nodes": [{"name": "a", "code": '{"n": 1}', "output": INTEGER}], "output": {"n": "nodes.a.output.n"}}
SLOW = {
    "input": INTEGER,
    "nodes": [
        {"name": "read", "with": {"n": "input.n"}, "llm": {"ref": "slow", "prompt": "{{ n }}"}},
        {"name": "size", "with": {"text": "nodes.read.output.text"}, "code": '{"n": len(text)}', "output": INTEGER},
    ],
    "output": {"n": "nodes.size.output.n"},
}
SCRIPTED = {"protocol": "scripted", "scripted": {"replies": [{"reply": "four", "delaySeconds": 3}]}}


@asynccontextmanager
async def real_pool(ledger: Path) -> AsyncIterator[str]:
    """One driver with one runner in this process; gives the URL of its ingress."""
    uri = str(ledger)
    driver = Driver("driver-0", store=open_store(uri), ledger_uri=uri, sources=Sources(open_store, files=True))
    pool = Pool(driver, LocalExecutor(RunnerSettings(branches=8)), PoolSettings(branches=8))
    await pool.start()
    stop, url = asyncio.Event(), asyncio.get_running_loop().create_future()
    app = ingress(DriverCalls(driver), token=TOKEN)
    serving = asyncio.ensure_future(serve(app, host="127.0.0.1", port=0, ready=url.set_result, stop=stop))
    try:
        yield await url
    finally:
        # The driver first: the server waits for long polls, and the run would go on meanwhile.
        await pool.stop()
        stop.set()
        await serving


async def apply_pool(cluster: Any, url: str) -> None:
    data = {"token": base64.b64encode(TOKEN.encode()).decode()}
    await cluster.create("Secret", "pool", data=data, metadata={"labels": {"decurion.dev/use": "true"}})
    auth = {"secretKeyRef": {"name": "pool", "key": "token"}}
    await cluster.create("WorkerPool", "default", {"mode": "External", "url": url, "auth": auth})


async def test_a_real_run_succeeds_and_shows_its_nodes_and_ledger(cluster: Any, operate: Any, tmp_path: Path) -> None:
    async with real_pool(tmp_path / "ledger") as url, operate():
        await cluster.set_up_graph()
        await apply_pool(cluster, url)
        await cluster.start("one")
        status = await cluster.until_status("TaskGraphRun", "one", phase="Succeeded", seconds=40)
        assert status["output"] == {"n": 42}
        assert [(n["name"], n["phase"]) for n in status["nodes"]] == [("double", "Succeeded")]
        assert status["ledger"]["uri"].endswith("ledger")
        assert len(status["stateHash"]) == 64


async def test_a_real_input_that_does_not_fit_fails_the_run_with_its_place(
    cluster: Any, operate: Any, tmp_path: Path
) -> None:
    async with real_pool(tmp_path / "ledger") as url, operate():
        await cluster.set_up_graph()
        await apply_pool(cluster, url)
        await cluster.start("one", input={"n": "many"})
        status = await cluster.until_status("TaskGraphRun", "one", phase="Failed", reason="BadInput", seconds=40)
        assert "input" in status["message"]
        assert "n" in status["message"]


async def test_a_real_run_deleted_while_no_operator_was_there_is_ended_by_two_live_lists(
    cluster: Any, operate: Any, until: Any, tmp_path: Path
) -> None:
    forever = {"protocol": "scripted", "scripted": {"replies": [{"reply": "four", "delaySeconds": 3600}]}}
    async with real_pool(tmp_path) as url:
        async with operate():
            await cluster.create("LLM", "slow", forever)
            await cluster.create("TaskGraph", "slow", SLOW)
            await apply_pool(cluster, url)
            for name in ("one", "kept"):
                await cluster.create("TaskGraphRun", name, {"graph": "slow", "input": {"n": 1}})
                await cluster.until_status("TaskGraphRun", name, phase="Running", attempt=1)
            uids = {name: (await cluster.get("TaskGraphRun", name))["metadata"]["uid"] for name in ("one", "kept")}
        await cluster.delete("TaskGraphRun", "one")
        async with operate(resync_seconds=0.3):
            store = open_store(str(tmp_path))

            async def closed() -> Any:
                records = [record async for _, record in read_log(store, uids["one"])]
                return records if records[-1].type == "close" else None

            records = await until(closed, what="the end of the deleted run")
            assert next(r for r in records if r.type == "cancel").envelope["reason"] == "Orphaned"
            assert (await cluster.status("TaskGraphRun", "kept"))["phase"] == "Running"
            kept = [record.type async for _, record in read_log(store, uids["kept"])]
            assert "cancel" not in kept


async def test_a_real_run_survives_a_new_driver_and_an_edited_graph(cluster: Any, operate: Any, tmp_path: Path) -> None:
    async with operate():
        await cluster.create("LLM", "slow", SCRIPTED)
        await cluster.create("TaskGraph", "slow", SLOW)
        async with real_pool(tmp_path / "ledger") as url:
            await apply_pool(cluster, url)
            await cluster.create("TaskGraphRun", "one", {"graph": "slow", "input": {"n": 1}})
            before = await cluster.until_status("TaskGraphRun", "one", phase="Running", attempt=1, seconds=40)
        await cluster.delete("TaskGraph", "slow")
        async with real_pool(tmp_path / "ledger") as url:
            await cluster.patch("WorkerPool", "default", {"spec": {"url": url}})
            status = await cluster.until_status("TaskGraphRun", "one", phase="Succeeded", seconds=60)
        assert status["graphDigest"] == before["graphDigest"]
        assert status["attempt"] > before["attempt"]
        assert status["output"] == {"n": 4}


async def test_the_ledger_of_an_ended_run_is_kept_as_long_as_its_resource_says(
    cluster: Any, operate: Any, until: Any, tmp_path: Path
) -> None:
    """Collections of a year ago, of now and of later: each moves a run on by what stands in the log, not by waiting."""
    ledger, wanted = tmp_path / "ledger", {"at-once": 0, "long": 365 * 86400, "for-good": -1, "unsaid": None}
    async with real_pool(ledger) as url, operate():
        await cluster.set_up_graph()
        await apply_pool(cluster, url)
        for name, seconds in wanted.items():
            await cluster.start(name, **({} if seconds is None else {"retentionSeconds": seconds}))
        runs = {}
        for name in wanted:
            await cluster.until_status("TaskGraphRun", name, phase="Succeeded", seconds=60)
            runs[(await cluster.get("TaskGraphRun", name))["metadata"]["uid"]] = name
        store = open_store(str(ledger))

        async def fates(*, older_than: float, hold: float = HOLD) -> dict[str, str]:
            done = await collect(store, older_than=older_than, hold=hold)
            return {runs[one.run]: one.fate for one in done.runs}

        month = 30 * 86400.0
        kept = {"at-once": "condemned", "long": "kept", "for-good": "kept", "unsaid": "kept"}
        assert await fates(older_than=month) == kept
        assert await fates(older_than=month) == kept, "what is behind a tomb stays for its hold"
        assert await fates(older_than=month, hold=0) == kept | {"at-once": "deleted"}
        assert await fates(older_than=0) == {"long": "kept", "for-good": "kept", "unsaid": "condemned"}
        [gone] = [run for run, name in runs.items() if name == "at-once"]
        with pytest.raises(RunDeleted):
            await verify(store, gone)
        for run, name in runs.items():
            if name != "at-once":
                assert await verify(store, run) == []
        status = await cluster.status("TaskGraphRun", "at-once")
        assert (status["phase"], status["output"]) == ("Succeeded", {"n": 42}), "what the resource shows stays"
    async with real_pool(ledger) as url, operate():
        await cluster.patch("WorkerPool", "default", {"spec": {"url": url}})
        await cluster.start("another")
        await cluster.until_status("TaskGraphRun", "another", phase="Succeeded", seconds=60)
        assert (await cluster.status("TaskGraphRun", "at-once"))["phase"] == "Succeeded", "nothing opens it again"
        assert [info.key async for info in store.list(run_prefix(gone))] == []


def compiled(spec: dict[str, Any] = SMALL, **llms: dict[str, Any]) -> CompiledGraph:
    base = {"apiVersion": "decurion.dev/v1alpha1", "metadata": {"name": "g"}}
    graph, _ = parse_resource(base | {"kind": "TaskGraph", "spec": spec})
    assert isinstance(graph, TaskGraph)
    models = {name: parse_resource(base | {"kind": "LLM", "spec": llm})[0] for name, llm in llms.items()}
    with Checker() as checker:
        done = compile_graph(graph, llms=models, checker=checker).compiled
    assert done is not None
    return done


@pytest.fixture(params=["fake", "real"])
async def client(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Ingress]:
    """A client of the fake pool, and of the real one: what follows holds for both."""
    if request.param == "fake":
        pool = fake_ingress.FakePool(token=TOKEN)
        pool.instant = True
        async with fake_ingress.serve(pool):
            made = Ingress(pool.url, token=TOKEN, seconds=10, observer=Meter())
            yield made
            await made.aclose()
    else:
        async with real_pool(tmp_path / "ledger") as url:
            made = Ingress(url, token=TOKEN, seconds=10, observer=Meter())
            yield made
            await made.aclose()


def opening(digest: str, *, epoch: int = 5, input: Any = None) -> OpenRequest:
    return OpenRequest(
        uid="u-1",
        name="one",
        namespace="ns",
        digest=digest,
        leader_epoch=epoch,
        scheduled_at="2026-12-01T10:00:00Z",
        cluster="c",
        input=input or {},
    )


async def test_a_run_is_opened_once_attached_to_and_reported_to_its_end(client: Ingress) -> None:
    graph = compiled()
    await client.put_bundle(graph.digest, canonical(graph.to_json()))
    await client.put_bundle(graph.digest, canonical(graph.to_json()))
    opened = await client.open(opening(graph.digest))
    drivers = {driver.id: driver for driver in await client.drivers()}
    assert opened.driver in drivers
    incarnation, cursor, seen = "", 0, {}
    async with asyncio.timeout(20):
        while seen.get("phase") != "Succeeded":
            changes = await client.changes(opened.driver, since=cursor, incarnation=incarnation, wait=1.0)
            incarnation, cursor = changes.incarnation, changes.cursor
            seen = changes.runs.get("u-1", seen)
    assert incarnation == drivers[opened.driver].incarnation
    assert seen["graphDigest"] == graph.digest
    again = await client.open(opening(graph.digest, epoch=6))
    assert again.projection is not None
    assert again.projection["phase"] == "Succeeded"
    everything = await client.changes(opened.driver, since=cursor, incarnation="another", wait=1.0)
    assert "u-1" in everything.runs
    await client.live(opened.driver, uids=["u-1"], cluster="c", leader_epoch=6)


async def test_what_a_pool_does_not_know_has_an_error_of_its_own(client: Ingress) -> None:
    graph = compiled()
    with pytest.raises(BundleMissing):
        await client.open(opening("ab" * 32))
    with pytest.raises(PoolRefused):
        await client.put_bundle("ab" * 32, canonical(graph.to_json()))
    with pytest.raises(RunUnknown):
        await client.cancel("nobody", how="Cancel", leader_epoch=5)
    with pytest.raises(RunUnknown):
        await client.put_secrets("nobody", {("name", "key"): "value"})
    with pytest.raises(PoolError):
        await client.changes("driver-99", since=0, incarnation="", wait=0.0)


async def test_a_take_over_by_an_older_leader_is_told_the_epoch_that_stands(tmp_path: Path) -> None:
    graph = compiled(SLOW, slow=SCRIPTED)
    async with real_pool(tmp_path / "ledger") as url:
        first = Ingress(url, token=TOKEN, seconds=10, observer=Meter())
        await first.put_bundle(graph.digest, canonical(graph.to_json()))
        await first.open(opening(graph.digest, epoch=9, input={"n": 1}))
        await first.aclose()
    async with real_pool(tmp_path / "ledger") as url:
        second = Ingress(url, token=TOKEN, seconds=10, observer=Meter())
        with pytest.raises(StaleLeader) as refused:
            await second.open(opening(graph.digest, epoch=3, input={"n": 1}))
        assert refused.value.highest == 9
        await second.aclose()


async def test_a_wrong_token_is_not_of_use(client: Ingress) -> None:
    wrong = Ingress(client.url, token="wrong", seconds=5, observer=Meter())
    with pytest.raises(PoolUnavailable, match=r"401.*spec\.auth"):
        await wrong.drivers()
    await wrong.aclose()

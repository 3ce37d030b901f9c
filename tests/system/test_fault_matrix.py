"""Faults between processes that need no cluster: two pools on one ledger, an ingress that dies, a new release.

The parts are real: `decurion worker serve` as processes, SeaweedFS, Ray where drivers are actors. Blows fall at counts
of committed records.
"""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cluster.process import wait_until
from cluster.s3 import S3Server
from crashes import call_key, calls, results
from decurion_crds.compiled import CompiledGraph
from decurion_ledger import Credentials, open_store, read_log, verify
from model_server import ModelServer, start_model_server
from pool import Ingress, Pool

if TYPE_CHECKING:
    from cluster.ray_runtime import RayRuntime

BRANCHES = 40
INPUT = {"items": [f"question {i}" for i in range(BRANCHES)]}
LEASE = 3.0


@pytest.fixture(scope="module")
def model() -> Iterator[ModelServer]:
    with start_model_server(delay=0.2) as server:
        yield server


@pytest.fixture(scope="module")
def graph(model: ModelServer) -> CompiledGraph:
    return calls(model.endpoint)


@pytest.fixture(scope="module")
def undisturbed(graph: CompiledGraph, tmp_path_factory: pytest.TempPathFactory) -> str:
    """State hash of the same graph and input when nothing happens."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with _local(folder, str(folder / "ledger")) as pool:
        client = pool.client()
        client.put_bundle(graph)
        client.open(graph, "quiet", INPUT).raise_for_status()
        return str(client.finished("quiet")["stateHash"])


def _local(folder: Path, ledger: str, env: dict[str, str] | None = None) -> Pool:
    return Pool(folder, ledger=ledger, env=env, branches=8, lease=LEASE)


def _begin(client: Ingress, graph: CompiledGraph, run: str, *, epoch: int = 1) -> None:
    client.put_bundle(graph)
    client.open(graph, run, INPUT, epoch=epoch).raise_for_status()


async def _log(store: Any, run: str) -> list[Any]:
    return [record async for _, record in read_log(store, run)]


async def _sound(store: Any, run: str, end: dict[str, Any], undisturbed: str) -> list[Any]:
    assert end["phase"] == "Succeeded", end
    assert end["stateHash"] == undisturbed
    assert await verify(store, run) == []
    log = await _log(store, run)
    assert max(results(log).values()) == 1
    return log


async def _durable_calls(store: Any, run: str, model: ModelServer) -> dict[str, int]:
    """Calls so far of what is durable now."""
    durable = [call_key(r.path, run) for r in await _log(store, run) if r.envelope.get("usage")]
    counts = model.keys()
    assert durable, "nothing was durable when the blow fell"
    return {key: counts[key] for key in durable}


async def test_a_pool_that_sleeps_while_another_takes_its_run_lets_go_of_it_on_waking(
    s3_server: S3Server, graph: CompiledGraph, model: ModelServer, undisturbed: str, tmp_path: Path
) -> None:
    ledger = s3_server.uri(f"matrix-{secrets.token_hex(4)}")
    access = Credentials(s3_server.access_key, s3_server.secret_key)
    store = open_store(ledger, endpoint_url=s3_server.endpoint_url, region=s3_server.region, credentials=access)
    with (
        _local(tmp_path / "a", ledger, s3_server.env) as first,
        _local(tmp_path / "b", ledger, s3_server.env) as second,
    ):
        sleeper, waker = first.client(), second.client()
        _begin(sleeper, graph, "slept")
        sleeper.follow("slept", until=lambda p: p["committed"] >= 30)
        os.kill(first.pid, signal.SIGSTOP)
        try:
            before = await _durable_calls(store, "slept", model)
            _begin(waker, graph, "slept", epoch=2)
            end = waker.finished("slept")
            counts = model.keys()
            assert {key: counts[key] for key in before} == before
            log = await _sound(store, "slept", end, undisturbed)
            assert end["attempt"] == 2
        finally:
            os.kill(first.pid, signal.SIGCONT)
        wait_until(lambda: not sleeper.drivers()[0]["runs"], seconds=30, what="the sleeper's end of the run")
        assert await _log(store, "slept") == log
        refused = sleeper.open(graph, "slept", INPUT, epoch=1)
        assert refused.status_code == 200, "a closed run is answered, whoever asks"
        assert refused.json()["projection"]["stateHash"] == undisturbed


async def test_of_two_pools_that_are_told_to_run_the_same_the_later_leader_s_keeps_it(
    graph: CompiledGraph, undisturbed: str, tmp_path: Path
) -> None:
    ledger = str(tmp_path / "ledger")
    with _local(tmp_path / "a", ledger) as first, _local(tmp_path / "b", ledger) as second:
        old, new = first.client(), second.client()
        _begin(old, graph, "duel", epoch=1)
        old.follow("duel", until=lambda p: p["committed"] >= 20)
        _begin(new, graph, "duel", epoch=2)
        wait_until(lambda: not old.drivers()[0]["runs"], seconds=30, what="the fenced pool's end of the run")
        for _ in range(3):
            refused = old.open(graph, "duel", INPUT, epoch=1)
            assert (refused.status_code, refused.json()["highest"]) == (409, 2)
        end = new.finished("duel")
        log = await _sound(open_store(ledger), "duel", end, undisturbed)
    assert [r.envelope["leader_epoch"] for r in log if r.type == "fence"] == [1, 2]


def _on_ray(folder: Path, ray: RayRuntime, driver: str, *, release: str) -> Pool:
    return Pool(
        folder,
        ledger=str(folder / "ledger"),
        executor="ray",
        env={"DECURION_IMAGE_DIGEST": release},
        branches=8,
        lease=LEASE,
        ping=1.5,
        driver=driver,
        more=("--ray-address", ray.address, "--runner-cpus", "0.25"),
    )


@pytest.fixture
def ray_driver(ray_runtime: RayRuntime) -> Iterator[str]:
    with ray_runtime.driver() as name:
        yield name


async def test_a_killed_ingress_costs_nothing_and_a_new_release_takes_its_runs_over(
    ray_runtime: RayRuntime, ray_driver: str, graph: CompiledGraph, model: ModelServer, undisturbed: str, tmp_path: Path
) -> None:
    pool = _on_ray(tmp_path, ray_runtime, ray_driver, release="one")
    store = open_store(pool.ledger)
    with pool:
        client = pool.client()
        _begin(client, graph, "orphaned")
        client.follow("orphaned", until=lambda p: p["committed"] >= 20)
        before = client.drivers()[0]
        pool.stop(hard=True)
        durable = await _durable_calls(store, "orphaned", model)
    with pool:
        client = pool.client()
        after = client.drivers()[0]
        end = client.finished("orphaned")
    log = await _sound(store, "orphaned", end, undisturbed)
    assert (after["pid"], after["incarnation"]) == (before["pid"], before["incarnation"])
    assert end["attempt"] == 1
    assert not [r for r in log if r.type == "lease_lost"]
    counts = model.keys()
    assert {key: counts[key] for key in durable} == durable

    with pool, _on_ray(tmp_path, ray_runtime, ray_driver, release="two") as release:
        old, new = pool.client(), release.client()
        assert new.drivers()[0]["incarnation"] != old.drivers()[0]["incarnation"]
        _begin(old, graph, "rolled")
        old.follow("rolled", until=lambda p: p["committed"] >= 20)
        _begin(new, graph, "rolled", epoch=2)
        end = new.finished("rolled")
        wait_until(lambda: not old.drivers()[0]["runs"], seconds=30, what="the old release's end of the run")
    await _sound(store, "rolled", end, undisturbed)
    assert end["attempt"] == 2

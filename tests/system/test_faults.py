"""Runs on real Ray, a real S3 server and a real model protocol, struck in the middle.

Each blow falls at a count of committed records. Afterwards: the run has succeeded, its state hash is that of an
undisturbed run, every path is committed once, and the model was not asked again for anything that was durable before.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from cluster.process import wait_until
from cluster.s3 import S3Server
from decurion_crds.canonical import digest
from decurion_ledger import Credentials, open_store, read_log, verify
from graphs import expr, fan_out, graph, llm, path, scope
from model_server import start_model_server
from pool import Ingress, Pool

pytestmark = [pytest.mark.s3, pytest.mark.ray]

BRANCHES = 96
LEASE = 3.0
RECORDS = 3 * BRANCHES
"""Two model calls and an output a branch; what the root adds is few."""


def points(name: str, count: int = 3) -> list[int]:
    """Counts of committed records at which blows fall: seeded by the test, apart, and well before the end."""
    part = (RECORDS * 3 // 4) // count
    chance = random.Random(name)
    return [10 + i * part + chance.randrange(part // 2) for i in range(count)]


@dataclass
class Spine:
    """A pool on Ray over S3, a model server, and a graph of one model call a branch."""

    pool: Pool
    ingress: Ingress
    s3: S3Server
    model: Any
    prefix: str

    @property
    def graph(self) -> Any:
        spec = {"protocol": "openai", "model": "test", "endpoint": self.model.endpoint}
        out = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
        one = scope(
            llm("first", "m", q="input.item", output=out),
            llm("second", "m", q="nodes.first.output.text", output=out),
            output={"t": path("nodes.second.output.text")},
            inputs=("item",),
        )
        root = scope(
            fan_out("each", "input.items", "one"),
            output={"n": expr('len(nodes["each"]["output"]["items"])', "nodes.each.output.items")},
            inputs=("items",),
            leaf=False,
        )
        return graph(root, llms={"m": spec}, one=one)

    def store(self) -> Any:
        return open_store(
            self.pool.ledger,
            endpoint_url=self.s3.endpoint_url,
            region="us-east-1",
            credentials=Credentials(self.s3.access_key, self.s3.secret_key),
        )

    async def log(self, run: str) -> list[Any]:
        return [record async for _, record in read_log(self.store(), run)]

    def begin(self, run: str, *, epoch: int = 1) -> Callable[[], Any]:
        found, items = self.graph, [f"question {i}" for i in range(BRANCHES)]
        self.ingress.put_bundle(found)

        def open_it() -> None:
            self.ingress.open(found, run, {"items": items}, epoch=epoch).raise_for_status()

        open_it()
        return open_it

    def struck_at(self, run: str, records: int, *, reopen: Callable[[], Any] | None = None) -> None:
        self.ingress.follow(run, until=lambda p: p["committed"] >= records, timeout=60, reopen=reopen)

    def a_runner(self) -> str:
        """The name of a runner that has joined."""
        found: list[str] = []

        def joined() -> bool:
            found[:] = self.driver()["runners"]
            return bool(found)

        wait_until(joined, seconds=60, what="a runner")
        return found[0]

    def key(self, run: str, at: str) -> str:
        return digest("effect/v0", run.encode(), b"\0", at.encode(), b"\0", b"0")

    def driver(self) -> dict[str, Any]:
        return self.ingress.drivers()[0]


@pytest.fixture(scope="module")
def spine(s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spine]:
    folder = tmp_path_factory.mktemp("faults")
    prefix = f"faults-{os.getpid()}-{time.monotonic_ns()}"
    with start_model_server(delay=0.3) as model:
        pool = Pool(
            folder,
            ledger=s3_server.uri(prefix),
            executor="ray",
            env=s3_server.env,
            runners=2,
            branches=8,
            lease=LEASE,
            ping=1.5,
        )
        with pool:
            yield Spine(pool, pool.client(), s3_server, model, prefix)


@pytest.fixture(scope="module")
def undisturbed(spine: Spine) -> str:
    """State hash of the same graph and input when nothing happens."""
    spine.begin("undisturbed")
    projection = spine.ingress.finished("undisturbed")
    assert projection["phase"] == "Succeeded"
    return str(projection["stateHash"])


async def _check(spine: Spine, run: str, end: dict[str, Any], undisturbed: str) -> list[Any]:
    assert end["phase"] == "Succeeded", end
    assert end["stateHash"] == undisturbed
    log = await spine.log(run)
    paths = Counter(r.path for r in log if r.core is not None and r.type != "genesis")
    assert max(paths.values()) == 1
    assert await verify(spine.store(), run) == []
    return log


async def _durable_calls(spine: Spine, run: str) -> dict[str, int]:
    """Calls so far of the nodes that are durable now, by key."""
    durable = [r.path for r in await spine.log(run) if r.type == "commit" and r.envelope.get("usage")]
    counts = spine.model.keys()
    return {key: counts[key] for key in (spine.key(run, p) for p in durable)}


def _still(spine: Spine, before: dict[str, int]) -> None:
    counts = spine.model.keys()
    assert {key: counts[key] for key in before} == before, "the model was asked again for what was durable"
    assert before, "nothing was durable when the blow fell"


async def test_two_runners_share_the_work(spine: Spine, undisturbed: str) -> None:
    log = await spine.log("undisturbed")
    assert len({r.envelope["worker"] for r in log if r.type == "commit" and "usage" in r.envelope}) == 2


def _pid(runner: str) -> int:
    return int(runner.split("-")[-2])


async def test_killed_runners_are_replaced_and_only_open_work_runs_again(spine: Spine, undisturbed: str) -> None:
    spine.begin("runner-killed")
    victims, before = [], []
    for records in points("runner-killed"):
        spine.struck_at("runner-killed", records)
        victims.append(spine.a_runner())
        os.kill(_pid(victims[-1]), signal.SIGKILL)
        before.append(await _durable_calls(spine, "runner-killed"))
    end = spine.ingress.finished("runner-killed")
    log = await _check(spine, "runner-killed", end, undisturbed)
    lost = {r.envelope["worker"] for r in log if r.type == "lease_lost"}
    assert lost <= set(victims)
    assert victims[0] in lost
    assert end["attempt"] == 1
    for calls in before:
        _still(spine, calls)


async def test_a_killed_driver_comes_back_each_time_and_the_run_goes_on_where_its_log_ends(
    spine: Spine, undisturbed: str
) -> None:
    reopen = spine.begin("driver-killed")
    before = []
    for records in points("driver-killed"):
        spine.struck_at("driver-killed", records, reopen=reopen)
        os.kill(spine.driver()["pid"], signal.SIGKILL)
        before.append(await _durable_calls(spine, "driver-killed"))
    end = spine.ingress.finished("driver-killed", timeout=90, reopen=reopen)
    await _check(spine, "driver-killed", end, undisturbed)
    assert end["attempt"] == 4
    for calls in before:
        _still(spine, calls)


def _three_leases() -> None:
    begun = time.monotonic()
    wait_until(lambda: time.monotonic() - begun > 3 * LEASE, seconds=4 * LEASE, what="three leases")


async def test_a_runner_that_stops_for_three_leases_is_replaced(spine: Spine, undisturbed: str) -> None:
    spine.begin("runner-stopped")
    spine.struck_at("runner-stopped", points("runner-stopped", 1)[0])
    stopped = spine.a_runner()
    os.kill(_pid(stopped), signal.SIGSTOP)
    before = await _durable_calls(spine, "runner-stopped")
    try:
        end = spine.ingress.finished("runner-stopped")
    finally:
        with suppress(ProcessLookupError):  # whoever gave it up has ended it
            os.kill(_pid(stopped), signal.SIGCONT)
    log = await _check(spine, "runner-stopped", end, undisturbed)
    assert {r.envelope["worker"] for r in log if r.type == "lease_lost"} == {stopped}
    assert end["attempt"] == 1
    assert stopped not in spine.driver()["runners"]
    _still(spine, before)


async def test_a_driver_that_wakes_after_three_leases_goes_on_or_lets_go_but_nothing_runs_twice(
    spine: Spine, undisturbed: str
) -> None:
    reopen = spine.begin("driver-woken")
    pid = spine.driver()["pid"]
    spine.struck_at("driver-woken", points("driver-woken", 1)[0])
    os.kill(pid, signal.SIGSTOP)
    before = await _durable_calls(spine, "driver-woken")
    _three_leases()
    with suppress(ProcessLookupError):  # on a slow machine its replacement may have come first
        os.kill(pid, signal.SIGCONT)
    end = spine.ingress.finished("driver-woken", timeout=120, reopen=reopen)
    await _check(spine, "driver-woken", end, undisturbed)
    _still(spine, before)


async def test_a_stopped_driver_is_replaced(spine: Spine, undisturbed: str) -> None:
    reopen = spine.begin("driver-stopped")
    stopped = spine.driver()
    spine.struck_at("driver-stopped", points("driver-stopped", 1)[0])
    os.kill(stopped["pid"], signal.SIGSTOP)
    before = await _durable_calls(spine, "driver-stopped")
    end = spine.ingress.finished("driver-stopped", timeout=120, reopen=reopen)
    await _check(spine, "driver-stopped", end, undisturbed)
    assert spine.driver()["incarnation"] != stopped["incarnation"]
    _still(spine, before)


async def test_while_the_store_is_away_nothing_is_replaced(spine: Spine, undisturbed: str) -> None:
    spine.begin("store-away")
    runners = spine.driver()["runners"]
    spine.struck_at("store-away", points("store-away", 1)[0])
    spine.s3.server.pause()
    try:
        shown = spine.ingress.follow("store-away", until=lambda p: p["reason"] == "StoreUnavailable", timeout=30)
        assert shown["phase"] == "Running"
        _three_leases()
    finally:
        spine.s3.server.resume()
    before = await _durable_calls(spine, "store-away")
    end = spine.ingress.finished("store-away", timeout=90)
    log = await _check(spine, "store-away", end, undisturbed)
    assert not any(r.type == "lease_lost" for r in log)
    assert spine.driver()["runners"] == runners
    assert end["attempt"] == 1
    _still(spine, before)


async def test_a_store_that_is_killed_and_comes_back_with_its_data_is_waited_for(
    spine: Spine, undisturbed: str
) -> None:
    spine.begin("store-killed")
    runners, before = spine.driver()["runners"], []
    for records in points("store-killed"):
        spine.struck_at("store-killed", records)
        spine.s3.server.kill()
        spine.s3.start()
        before.append(await _durable_calls(spine, "store-killed"))
    end = spine.ingress.finished("store-killed", timeout=90)
    log = await _check(spine, "store-killed", end, undisturbed)
    assert not any(r.type == "lease_lost" for r in log)
    assert spine.driver()["runners"] == runners
    assert end["attempt"] == 1
    for calls in before:
        _still(spine, calls)

"""What things cost: writes to the API server and looks at objects. Counts, never times."""

import asyncio
import json
import time
from itertools import pairwise
from typing import Any

import orjson

from decurion_operator.queue import Key


class Watcher:
    """Versions of one run as a watch of the API server gives them: one for each write that changed it."""

    def __init__(self, cluster: Any, name: str) -> None:
        self._cluster = cluster
        self._name = name
        self.seen: list[tuple[float, dict[str, Any]]] = []

    async def __aenter__(self) -> "Watcher":
        self._task = asyncio.ensure_future(self._watch())
        return self

    async def __aexit__(self, *error: Any) -> None:
        self._task.cancel()

    async def _watch(self) -> None:
        path = self._cluster.path("TaskGraphRun") + f"?watch=true&fieldSelector=metadata.name%3D{self._name}"
        async with self._cluster.stream(path) as lines:
            async for line in lines:
                self.seen.append((time.monotonic(), json.loads(line)["object"]["status"]))


async def test_a_graph_applied_once_costs_few_looks_and_writes(
    cluster: Any, pool: Any, operate: Any, until: Any
) -> None:
    async with operate() as operator:
        await cluster.set_up(pool)
        await cluster.until_status("TaskGraph", "double", Ready="True")
        seen = pool.count("drivers")

        async def looked_at() -> bool:
            return bool(pool.count("drivers") >= seen + 5)

        await until(looked_at, what="some time")
        key = Key("TaskGraph", cluster.namespace, "double")
        assert operator.meter.tally.reconciles[key] <= 20
        assert operator.meter.tally.writes[key] <= 3


async def test_a_busy_run_is_written_at_most_once_a_second_and_thirty_times_in_all(
    cluster: Any, pool: Any, operate: Any
) -> None:
    async with operate() as operator:
        await cluster.set_up(pool)
        await cluster.start("one")
        await cluster.until_status("TaskGraphRun", "one", phase="Running")
        async with Watcher(cluster, "one") as watcher:
            end, n = time.monotonic() + 6.0, 0
            while time.monotonic() < end:
                n += 1
                await pool.project("one", progress=f"{n}/9999", usage={"calls": n})
                await asyncio.sleep(0.01)
            await pool.finish("one", progress="9999/9999")
            ended = await cluster.until_status("TaskGraphRun", "one", phase="Succeeded")
        progress = [(at, s) for at, s in watcher.seen if s.get("phase") == "Running"]
        assert ended["progress"] == "9999/9999"
        assert 3 <= len(progress) <= 8
        gaps = [later - earlier for (earlier, _), (later, _) in pairwise(progress[1:])]
        assert all(gap > 0.7 for gap in gaps), f"written faster than once a second: {gaps}"
        assert operator.meter.tally.writes[Key("TaskGraphRun", cluster.namespace, "one")] <= 30


async def test_nothing_is_written_while_nothing_changes(cluster: Any, pool: Any, operate: Any, until: Any) -> None:
    async with operate(resync_seconds=0.5, status_slow_seconds=1.0) as operator:
        await cluster.set_up(pool)
        await cluster.start("one")
        await cluster.until_status("TaskGraphRun", "one", phase="Running", attempt=1)
        await cluster.until_status("WorkerPool", "default", running=1)
        before = dict(operator.meter.tally.writes)
        seen = pool.count("live")

        async def compared() -> bool:
            return bool(pool.count("live") >= seen + 3)

        await until(compared, what="three comparisons with the cluster")
        assert dict(operator.meter.tally.writes) == before


async def test_a_restart_writes_nothing_where_nothing_has_changed(
    cluster: Any, pool: Any, operate: Any, until: Any
) -> None:
    async with operate(status_slow_seconds=1.0):
        await cluster.set_up(pool)
        await cluster.start("one")
        await cluster.start("two")
        await cluster.until_status("TaskGraphRun", "one", phase="Running", attempt=1)
        await cluster.until_status("TaskGraphRun", "two", phase="Running", attempt=1)
        await pool.finish("two")
        await cluster.until_status("TaskGraphRun", "two", phase="Succeeded")
        await cluster.until_status("WorkerPool", "default", running=1)
    async with operate(resync_seconds=0.5) as operator:
        seen = pool.count("live")

        async def compared() -> bool:
            return bool(pool.count("live") >= seen + 3)

        await until(compared, what="three comparisons with the cluster")
        assert sum(operator.meter.tally.writes.values()) == 0


async def test_thirty_runs_through_a_narrow_pool_stay_within_their_budget(
    cluster: Any, pool: Any, operate: Any
) -> None:
    pool.instant = True
    async with operate() as operator:
        await cluster.set_up(pool, maxRunning=4)
        await asyncio.gather(*(cluster.start(f"run-{n:02}") for n in range(30)))
        for n in range(30):
            await cluster.until_status("TaskGraphRun", f"run-{n:02}", phase="Succeeded", seconds=60)
        assert pool.most_open <= 4
        writes = [count for key, count in operator.meter.tally.writes.items() if key.kind == "TaskGraphRun"]
        assert max(writes) <= 30


async def test_forty_runs_of_90_kb_at_once_cost_few_writes_few_looks_and_little_memory(
    cluster: Any, pool: Any, operate: Any
) -> None:
    """The small form of `hack/bench runs`, by counts."""
    pool.instant = True
    count, text = 40, "x" * 90_000
    async with operate() as operator:
        await cluster.set_up(pool, maxRunning=5)
        names = [f"run-{n:02}" for n in range(count)]
        copy = {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": json.dumps({"x": text})}}
        spec = {"graph": "double", "input": {"n": 1, "text": text}}
        for name in names:
            await cluster.create("TaskGraphRun", name, spec, metadata=copy)
        for name in names:
            await cluster.until_status("TaskGraphRun", name, phase="Succeeded", seconds=60)
            await cluster.until_event(name, "Succeeded")
        assert pool.most_open <= 5
        assert len(pool.runs) == count
        assert all(run.input["text"] == text for run in pool.runs.values())
        keys = [Key("TaskGraphRun", cluster.namespace, name) for name in names]
        tally = operator.meter.tally
        # Queued, a position, Running, Succeeded, and an event for each phase.
        assert max(tally.writes[key] for key in keys) <= 8
        # Created and read (3), 13 places shown at most, 4 phases; each may have to wait for its turn to write once.
        assert max(tally.reconciles[key] for key in keys) <= 2 * (3 + 13 + 4)
        assert pool.count("open") == count
        assert pool.count("bundle") == 1
        kept = [operator.cache.get(key) for key in keys]
        assert max(len(orjson.dumps([run.spec, run.status])) for run in kept if run is not None) <= 1024
        read = _metric(operator, 'decurion_api_requests_total{code="200",kind="TaskGraphRun",verb="GET"}')
        assert count <= read <= count + 5, "the input is read once, when the run is opened"
        sent = _metric(operator, 'decurion_api_bytes_total{direction="sent",kind="TaskGraphRun"}')
        assert sent / count <= 8 * 1024


def _metric(operator: Any, name: str) -> float:
    (value,) = [line.rpartition(" ")[2] for line in operator.meter.text().decode().splitlines() if name + " " in line]
    return float(value)

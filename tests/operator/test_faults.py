"""What dies, hangs or is edited in the middle of a run, against the real API server."""

import copy
from typing import Any

import fake_ingress


async def running(cluster: Any, pool: Any, name: str = "one", **spec: Any) -> dict[str, Any]:
    await cluster.start(name, **spec)
    found: dict[str, Any] = await cluster.until_status("TaskGraphRun", name, phase="Running")
    return found


async def test_an_operator_that_starts_again_goes_on_with_running_runs(cluster: Any, pool: Any, operate: Any) -> None:
    async with operate():
        await cluster.set_up(pool)
        before = await running(cluster, pool)
    await pool.finish("one", output={"n": 42})
    async with operate():
        status = await cluster.until_status("TaskGraphRun", "one", phase="Succeeded")
    assert status["graphDigest"] == before["graphDigest"]
    assert status["output"] == {"n": 42}


async def test_a_run_that_ended_while_neither_operator_nor_driver_was_there_is_reported(
    cluster: Any, pool: Any, operate: Any
) -> None:
    async with operate():
        await cluster.set_up(pool)
        await running(cluster, pool)
    await pool.finish("one", output={"n": 42})
    await pool.restart()
    async with operate():
        status = await cluster.until_status("TaskGraphRun", "one", phase="Succeeded")
    assert status["output"] == {"n": 42}


async def test_a_run_that_no_driver_lists_is_opened_again(cluster: Any, pool: Any, operate: Any) -> None:
    async with operate():
        await cluster.set_up(pool)
        await running(cluster, pool)
        await pool.restart()
        await cluster.until_status("TaskGraphRun", "one", attempt=2)
        await pool.finish("one")
        await cluster.until_status("TaskGraphRun", "one", phase="Succeeded")
    assert len(pool.by_name("one").epochs) == 2


async def test_another_incarnation_of_a_driver_is_noticed_without_waiting_for_the_next_look(
    cluster: Any, pool: Any, operate: Any
) -> None:
    async with operate(drivers_seconds=3600.0):
        await cluster.set_up(pool)
        await running(cluster, pool)
        await pool.restart()
        await cluster.until_status("TaskGraphRun", "one", attempt=2)


async def test_a_run_that_its_drivers_lose_again_is_opened_after_a_growing_pause_only(
    cluster: Any, pool: Any, operate: Any, until: Any
) -> None:
    async with operate(backoff_seconds=3600.0, backoff_cap_seconds=3600.0):
        await cluster.set_up(pool)
        await running(cluster, pool)
        await pool.restart()
        seen = pool.count("drivers")

        async def looked() -> bool:
            return bool(pool.count("drivers") >= seen + 4)

        await until(looked, what="four looks at the drivers")
        assert len(pool.by_name("one").epochs) == 1
        assert (await cluster.status("TaskGraphRun", "one"))["phase"] == "Running"


async def test_an_edited_graph_changes_neither_queued_nor_running_runs_even_when_all_processes_die(
    cluster: Any, pool: Any, operate: Any
) -> None:
    async with operate():
        await cluster.set_up(pool, maxRunning=1)
        first = await running(cluster, pool)
        await cluster.start("two")
        second = await cluster.until_status("TaskGraphRun", "two", phase="Queued")
        graph = copy.deepcopy((await cluster.get("TaskGraph", "double"))["spec"])
        graph["nodes"][0]["code"] = '{"n": n * 3}'
        await cluster.patch("TaskGraph", "double", {"spec": graph})
        edited = await cluster.until_status("TaskGraph", "double", observedGeneration=2)
        assert edited["digest"] != first["graphDigest"]
    await pool.restart()
    await cluster.delete("TaskGraph", "double")
    async with operate():
        await cluster.until_status("TaskGraphRun", "one", attempt=2)
        await pool.finish("one")
        await cluster.until_status("TaskGraphRun", "one", phase="Succeeded")
        await cluster.until_status("TaskGraphRun", "two", phase="Running")
        await pool.finish("two")
        ended = await cluster.until_status("TaskGraphRun", "two", phase="Succeeded")
    assert pool.by_name("one").digest == first["graphDigest"]
    assert pool.by_name("two").digest == second["graphDigest"] == ended["graphDigest"] == first["graphDigest"]


async def test_a_pool_that_hangs_costs_the_runs_of_another_nothing(cluster: Any, pool: Any, operate: Any) -> None:
    async with fake_ingress.serve(fake_ingress.FakePool()) as hung, operate(reconciles=2):
        await cluster.set_up(pool)
        await cluster.create("WorkerPool", "hung", {"mode": "External", "url": hung.url})
        await cluster.until_status("WorkerPool", "hung", Ready="True")
        hung.running.clear()
        for n in range(10):
            await cluster.start(f"stuck-{n}", pool="hung")
        await cluster.until_status("WorkerPool", "hung", Ready="False")
        await cluster.start("free")
        await cluster.until_status("TaskGraphRun", "free", phase="Running", seconds=5)
        await cluster.until_status("TaskGraphRun", "stuck-0", phase="Pending", reason="PoolUnavailable")
        hung.running.set()
        for n in range(10):
            await cluster.until_status("TaskGraphRun", f"stuck-{n}", phase="Running")


async def test_a_silent_pool_is_shown_on_its_running_runs_until_it_answers(
    cluster: Any, pool: Any, operate: Any
) -> None:
    async with operate():
        await cluster.set_up(pool)
        await running(cluster, pool)
        pool.running.clear()
        shown = await cluster.until_status("TaskGraphRun", "one", reason="DriverUnavailable")
        assert shown["phase"] == "Running"
        pool.running.set()
        await cluster.until_status("TaskGraphRun", "one", reason="Running")
        assert len(pool.by_name("one").epochs) == 1


async def test_a_deleted_run_is_cancelled_where_it_runs_and_left_out_of_the_live_list(
    cluster: Any, pool: Any, operate: Any, until: Any
) -> None:
    async with operate():
        await cluster.set_up(pool)
        await running(cluster, pool)
        await running(cluster, pool, "kept")
        deleted, kept = pool.by_name("one"), pool.by_name("kept")
        await cluster.delete("TaskGraphRun", "one")

        async def told() -> bool:
            lists = pool.live.get("driver-0", [])
            return deleted.cancelled and bool(lists) and deleted.uid not in lists[-1]

        await until(told, what="the driver's order to cancel")
        assert kept.uid in pool.live["driver-0"][-1]
        assert not kept.ended


async def test_a_run_deleted_while_no_operator_was_there_is_found_by_the_live_lists(
    cluster: Any, pool: Any, operate: Any, until: Any
) -> None:
    async with operate():
        await cluster.set_up(pool)
        await running(cluster, pool)
        await running(cluster, pool, "kept")
    await cluster.delete("TaskGraphRun", "one")
    async with operate(resync_seconds=0.3):

        async def orphaned() -> bool:
            return bool(pool.by_name("one").projection["reason"] == "Orphaned")

        await until(orphaned, what="the end of the deleted run")
        assert not pool.by_name("kept").ended


async def test_a_run_made_again_under_its_name_is_another_run(cluster: Any, pool: Any, operate: Any) -> None:
    async with operate():
        await cluster.set_up(pool)
        await running(cluster, pool)
        first = pool.by_name("one")
        await cluster.delete("TaskGraphRun", "one")
        await cluster.start("one", input={"n": 5})
        await cluster.until_status("TaskGraphRun", "one", phase="Running")
        again = [run for run in pool.runs.values() if run.name == "one" and run is not first]
        assert [run.input for run in again] == [{"n": 5}]


async def test_a_pool_that_refuses_the_token_says_what_to_check(cluster: Any, pool: Any, operate: Any) -> None:
    pool.token = "right"
    async with operate():
        await cluster.set_up(pool)
        status = await cluster.until_status("WorkerPool", "default", Ready="False")
        message = next(c["message"] for c in status["conditions"] if c["type"] == "Ready")
        assert "401" in message
        assert "spec.auth" in message

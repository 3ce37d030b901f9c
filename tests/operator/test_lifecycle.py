"""The life of a run, against the real API server and a pool that does what the test says."""

import asyncio
from typing import Any


async def test_a_run_goes_from_apply_to_succeeded(cluster: Any, pool: Any, operate: Any) -> None:
    async with operate():
        await cluster.set_up(pool)
        await cluster.until_status("TaskGraph", "double", Ready="True")
        await cluster.start("one")
        running = await cluster.until_status("TaskGraphRun", "one", phase="Running")
        assert pool.by_name("one").input == {"n": 21}
        assert running["graphDigest"] in pool.bundles
        waiting = asyncio.ensure_future(
            cluster.kubectl("wait", "--for=condition=Succeeded", "--timeout=20s", "tgr/one")
        )
        await pool.finish("one", output={"n": 42, "none": None}, progress="1/1")
        await waiting
        status = await cluster.status("TaskGraphRun", "one")
        assert status["output"] == {"n": 42, "none": None}
        assert status["progress"] == "1/1"
        assert {c["type"]: c["status"] for c in status["conditions"]} == {
            "Completed": "True",
            "Succeeded": "True",
            "Reconciling": "False",
            "Stalled": "False",
        }
        await cluster.until_event("one", "Succeeded")
        assert sorted(await cluster.events("one")) == [
            ("Normal", "Queued"),
            ("Normal", "Started"),
            ("Normal", "Succeeded"),
        ]


async def test_runs_follow_one_another_without_waiting_for_a_look_at_the_drivers(
    cluster: Any, pool: Any, operate: Any
) -> None:
    pool.instant = True
    async with operate(drivers_seconds=3600.0):
        await cluster.set_up(pool, maxRunning=1)
        await cluster.until_status("WorkerPool", "default", Ready="True")
        for n in range(8):
            await cluster.start(f"run-{n}")
        for n in range(8):
            await cluster.until_status("TaskGraphRun", f"run-{n}", phase="Succeeded")


async def test_a_folder_applied_in_any_order_comes_to_run(cluster: Any, pool: Any, operate: Any) -> None:
    async with operate():
        await cluster.start("first")
        pending = await cluster.until_status("TaskGraphRun", "first", phase="Pending")
        assert pending["reason"] == "PoolUnavailable"
        await cluster.set_up(pool)
        await cluster.until_status("TaskGraphRun", "first", phase="Running")


async def test_a_failed_run_says_what_failed(cluster: Any, pool: Any, operate: Any) -> None:
    async with operate():
        await cluster.set_up(pool)
        await cluster.start("one")
        await cluster.until_status("TaskGraphRun", "one", phase="Running")
        failure = {"path": "/double", "class": "Expression", "message": "division by zero"}
        await pool.finish("one", "Failed", message="double failed: division by zero", failures=[failure])
        status = await cluster.until_status("TaskGraphRun", "one", phase="Failed", Succeeded="False", Stalled="True")
        assert status["failures"] == [failure]
        assert status["message"] == "double failed: division by zero"
        await cluster.until_event("one", "Failed")


async def test_a_running_run_is_cancelled_at_its_driver(cluster: Any, pool: Any, operate: Any) -> None:
    async with operate():
        await cluster.set_up(pool)
        await cluster.start("one")
        await cluster.until_status("TaskGraphRun", "one", phase="Running")
        await cluster.patch("TaskGraphRun", "one", {"spec": {"cancel": "Cancel"}})
        await cluster.until_status("TaskGraphRun", "one", phase="Cancelled", Completed="True", Succeeded="False")
        assert pool.by_name("one").cancelled
        assert pool.count("control") == 1


async def test_runs_wait_for_a_slot_in_the_order_of_priority(cluster: Any, pool: Any, operate: Any) -> None:
    async with operate(status_slow_seconds=1.0):
        await cluster.set_up(pool, maxRunning=1)
        await cluster.start("first")
        await cluster.until_status("TaskGraphRun", "first", phase="Running")
        await cluster.start("second")
        await cluster.until_status("TaskGraphRun", "second", phase="Queued")
        await cluster.start("urgent", priority=10)
        await cluster.start("unwanted")
        waiting = await cluster.until_status(
            "TaskGraphRun", "unwanted", message="Position 3 in the queue of its pool, which runs 1 at a time."
        )
        assert waiting["graphDigest"] in pool.bundles
        assert len(pool.runs) == 1
        await cluster.until_status("WorkerPool", "default", running=1, queued=3)
        await cluster.patch("TaskGraphRun", "unwanted", {"spec": {"cancel": "Cancel"}})
        await cluster.until_status("TaskGraphRun", "unwanted", phase="Cancelled")
        await pool.finish("first")
        await cluster.until_status("TaskGraphRun", "urgent", phase="Running")
        assert pool.by_name("second") is None
        await pool.finish("urgent")
        await cluster.until_status("TaskGraphRun", "second", phase="Running")
        assert pool.by_name("unwanted") is None


async def test_a_ttl_patch_of_an_ended_run_is_observed_and_deletes_it(cluster: Any, pool: Any, operate: Any) -> None:
    async with operate():
        await cluster.set_up(pool)
        await cluster.start("one")
        await cluster.until_status("TaskGraphRun", "one", phase="Running")
        await pool.finish("one")
        await cluster.until_status("TaskGraphRun", "one", phase="Succeeded")
        await cluster.patch("TaskGraphRun", "one", {"spec": {"ttlSecondsAfterFinished": 315_360_000}})
        await cluster.until_status("TaskGraphRun", "one", observedGeneration=2)
        await cluster.kubectl("wait", "--for=condition=Completed", "--timeout=10s", "tgr/one")
        await cluster.patch("TaskGraphRun", "one", {"spec": {"ttlSecondsAfterFinished": 0}})
        await cluster.kubectl("wait", "--for=delete", "--timeout=10s", "tgr/one")


async def test_the_ttl_of_a_run_that_a_gitops_tool_tracks_is_ignored(cluster: Any, pool: Any, operate: Any) -> None:
    async with operate():
        await cluster.set_up(pool)
        marks = {"labels": {"argocd.argoproj.io/instance": "app"}}
        spec = {"graph": "double", "input": {"n": 1}, "ttlSecondsAfterFinished": 1}
        await cluster.create("TaskGraphRun", "one", spec, metadata=marks)
        await cluster.until_status("TaskGraphRun", "one", phase="Running")
        await pool.finish("one")
        await cluster.until_event("one", "TTLIgnoredManagedByGitOps")
        assert await cluster.exists("TaskGraphRun", "one")


async def test_a_run_whose_end_is_on_its_way_is_not_opened_again(
    cluster: Any, pool: Any, operate: Any, until: Any
) -> None:
    async with operate(poll_seconds=30.0, pool_seconds=30.0):
        await cluster.set_up(pool)
        await cluster.start("one")
        await cluster.until_status("TaskGraphRun", "one", phase="Running")
        pool.telling.clear()
        await pool.finish("one")
        looks = pool.count("drivers")

        async def looked() -> bool:
            return bool(pool.count("drivers") >= looks + 4)

        await until(looked, what="four looks at the drivers, on whose lists the run is no more")
        assert pool.count("open") == 1
        pool.telling.set()
        await cluster.until_status("TaskGraphRun", "one", phase="Succeeded")
        assert pool.count("open") == 1


async def test_a_refused_input_fails_the_run_with_the_finding(cluster: Any, pool: Any, operate: Any) -> None:
    finding = {"code": "FIELD-MISSING", "path": "input.n", "message": "n is missing; add it."}
    pool.refuse_open = (400, {"error": "BadInput", "message": "The input does not fit.", "findings": [finding]})
    async with operate():
        await cluster.set_up(pool)
        await cluster.start("one", input={})
        status = await cluster.until_status("TaskGraphRun", "one", phase="Failed")
        assert status["reason"] == "BadInput"
        assert "input.n [FIELD-MISSING] n is missing; add it." in status["message"]


async def test_a_run_waits_for_a_store_that_is_away(cluster: Any, pool: Any, operate: Any) -> None:
    pool.store_down = True
    async with operate():
        await cluster.set_up(pool)
        await cluster.start("one")
        await cluster.until_status("TaskGraphRun", "one", phase="Pending", reason="StoreUnavailable")
        pool.store_down = False
        await cluster.until_status("TaskGraphRun", "one", phase="Running")


async def test_a_leader_whose_clock_is_behind_raises_its_epoch(cluster: Any, pool: Any, operate: Any) -> None:
    pool.highest_epoch = 4_000_000_000
    async with operate():
        await cluster.set_up(pool)
        await cluster.start("one")
        await cluster.until_status("TaskGraphRun", "one", phase="Running")
        assert pool.by_name("one").epochs == [4_000_000_001]


async def test_an_input_from_a_file_is_passed_on_as_it_is(cluster: Any, pool: Any, operate: Any) -> None:
    async with operate():
        await cluster.set_up(pool)
        source = {"uri": "s3://bucket/input.json"}
        await cluster.create("TaskGraphRun", "one", {"graph": "double", "inputFrom": source})
        await cluster.until_status("TaskGraphRun", "one", phase="Running")
        assert pool.by_name("one").input_from == source


async def test_a_run_beyond_the_size_limit_fails_and_can_still_be_closed(cluster: Any, pool: Any, operate: Any) -> None:
    async with operate():
        await cluster.set_up(pool)
        await cluster.start("huge", input={"text": "x" * 1_400_000})
        status = await cluster.until_status("TaskGraphRun", "huge", phase="Failed", reason="SpecTooLarge")
        assert "SPEC-TOO-LARGE" in status["message"]
        assert pool.count("open") == 0


async def test_a_run_that_goes_on_after_a_decision_waits_for_a_slot_as_others_do(
    cluster: Any, pool: Any, operate: Any
) -> None:
    async with operate(status_slow_seconds=1.0):
        await cluster.set_up(pool, maxRunning=1)
        await cluster.start("first")
        await cluster.until_status("TaskGraphRun", "first", phase="Running")
        await pool.project("first", reason="AwaitingApproval")
        await cluster.start("second")
        await cluster.until_status("TaskGraphRun", "second", phase="Running")
        await pool.project("first", reason="")
        waiting = await cluster.until_status("TaskGraphRun", "first", phase="Suspended", reason="Queued")
        assert waiting["message"] == "Position 1 in the queue of its pool, which runs 1 at a time."
        assert (pool.by_name("first").suspended, pool.by_name("second").suspended) == (True, False)
        await pool.finish("second")
        await cluster.until_status("TaskGraphRun", "first", phase="Running")
        assert not pool.by_name("first").suspended

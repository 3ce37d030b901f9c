"""Secrets: only those that are labelled, read when they are used, and never seen anywhere else."""

import base64
from typing import Any

VALUE = "planted-7f3a9c51e2"
GRAPH = {
    "input": {"text": {"type": "string"}},
    "nodes": [{"name": "read", "with": {"text": "input.text"}, "llm": {"ref": "fast", "prompt": "Read {{ text }}"}}],
    "output": {"text": "nodes.read.output.text"},
}
LLM = {
    "protocol": "openai",
    "model": "m",
    "endpoint": "http://127.0.0.1:9/v1",
    "auth": {"secretKeyRef": {"name": "token", "key": "api-key"}},
}
USE = {"labels": {"decurion.dev/use": "true"}}


def data(value: str) -> dict[str, str]:
    return {"api-key": base64.b64encode(value.encode()).decode()}


async def secret(cluster: Any, *, labelled: bool, value: str = VALUE) -> None:
    await cluster.create("Secret", "token", data=data(value), metadata=USE if labelled else {})


async def definitions(cluster: Any, pool: Any) -> None:
    await cluster.create("WorkerPool", "default", {"mode": "External", "url": pool.url})
    await cluster.create("LLM", "fast", LLM)
    await cluster.create("TaskGraph", "reader", GRAPH)


async def run(cluster: Any, name: str = "one") -> None:
    await cluster.create("TaskGraphRun", name, {"graph": "reader", "input": {"text": "t"}})


async def test_an_unlabelled_secret_is_not_used_and_every_condition_says_what_to_do(
    cluster: Any, pool: Any, operate: Any
) -> None:
    await secret(cluster, labelled=False)
    async with operate():
        await definitions(cluster, pool)
        await run(cluster)
        llm = await cluster.until_status("LLM", "fast", Ready="False", ReferencesResolved="False")
        graph = await cluster.until_status("TaskGraph", "reader", Ready="False", ReferencesResolved="False")
        waiting = await cluster.until_status("TaskGraphRun", "one", phase="Pending", reason="GraphNotReady")
        told = [
            c["message"] for s in (llm, graph, waiting) for c in s["conditions"] if c["type"] in ("Ready", "Succeeded")
        ]
        assert len(told) == 3
        assert all("decurion.dev/use=true" in message for message in told)
        await cluster.patch("Secret", "token", {"metadata": USE})
        await cluster.until_status("LLM", "fast", Ready="True")
        await cluster.until_status("TaskGraph", "reader", Ready="True")
        await cluster.until_status("TaskGraphRun", "one", phase="Running")


async def test_missing_and_unlabelled_secrets_are_told_in_the_same_words(cluster: Any, pool: Any, operate: Any) -> None:
    async with operate():
        await cluster.create("LLM", "fast", LLM)
        missing = await cluster.until_status("LLM", "fast", Ready="False")
        await secret(cluster, labelled=False)
        await cluster.create("LLM", "again", LLM)
        unlabelled = await cluster.until_status("LLM", "again", Ready="False")
        assert [c["message"] for c in missing["conditions"]] == [c["message"] for c in unlabelled["conditions"]]


async def test_a_key_that_a_usable_secret_lacks_is_named(cluster: Any, pool: Any, operate: Any) -> None:
    await cluster.create("Secret", "token", data={"other": "eA=="}, metadata=USE)
    async with operate():
        await cluster.create("LLM", "fast", LLM)
        status = await cluster.until_status("LLM", "fast", Ready="False")
        assert any('"api-key"' in c["message"] for c in status["conditions"])


async def test_a_value_reaches_the_driver_and_nothing_else(
    cluster: Any, pool: Any, operate: Any, until: Any, caplog: Any
) -> None:
    caplog.set_level("DEBUG")
    await secret(cluster, labelled=True)
    async with operate() as operator:
        await definitions(cluster, pool)
        await run(cluster)
        await cluster.until_status("TaskGraphRun", "one", phase="Running")

        async def delivered() -> bool:
            return bool(pool.by_name("one").secrets == {"token/api-key": VALUE})

        await until(delivered, what="the secret at the driver")
        await pool.finish("one")
        await cluster.until_status("TaskGraphRun", "one", phase="Succeeded")
        metrics = operator.meter.text().decode()
    encoded = base64.b64encode(VALUE.encode()).decode()
    shown = await cluster.kubectl("get", "decurion,decurion-runs,events", "--output=yaml")
    assert "taskgraphruns" in shown or "TaskGraphRun" in shown
    for place in (shown, caplog.text, metrics, str(pool.bundles)):
        assert VALUE not in place
        assert encoded not in place


async def test_a_rotated_secret_reaches_running_drivers(cluster: Any, pool: Any, operate: Any, until: Any) -> None:
    await secret(cluster, labelled=True)
    async with operate():
        await definitions(cluster, pool)
        await run(cluster)
        await cluster.until_status("TaskGraphRun", "one", phase="Running")
        await cluster.patch("Secret", "token", {"data": data("rotated")})

        async def rotated() -> bool:
            return bool(pool.by_name("one").secrets == {"token/api-key": "rotated"})

        await until(rotated, what="the new value at the driver")


async def test_a_driver_that_lost_its_memory_is_given_the_secrets_again(
    cluster: Any, pool: Any, operate: Any, until: Any
) -> None:
    """Also by an operator that never compiled the closure, of a pool that does not say what it needs."""
    pool.tells_secrets = False
    await secret(cluster, labelled=True)
    async with operate():
        await definitions(cluster, pool)
        await run(cluster)
        await cluster.until_status("TaskGraphRun", "one", phase="Running")
    await pool.restart()
    async with operate():

        async def delivered() -> bool:
            return bool(pool.by_name("one").secrets)

        await until(delivered, what="the secret at the new driver")


async def test_secrets_are_sent_once_and_not_with_every_look(cluster: Any, pool: Any, operate: Any, until: Any) -> None:
    await secret(cluster, labelled=True)
    async with operate():
        await definitions(cluster, pool)
        await run(cluster)
        await cluster.until_status("TaskGraphRun", "one", phase="Running")
        seen = pool.count("drivers")
        for n in range(5):
            await pool.project("one", progress=f"{n}/5")

        async def looked_at() -> bool:
            return bool(pool.count("drivers") >= seen + 4)

        await until(looked_at, what="four looks at the drivers")
        assert pool.count("secrets") == 1


async def test_the_token_of_a_pool_comes_from_a_labelled_secret(cluster: Any, pool: Any, operate: Any) -> None:
    pool.token = "right"
    await cluster.create("Secret", "token", data=data("right"))
    auth = {"secretKeyRef": {"name": "token", "key": "api-key"}}
    async with operate():
        await cluster.create("WorkerPool", "default", {"mode": "External", "url": pool.url, "auth": auth})
        await cluster.until_status("WorkerPool", "default", Ready="False", ReferencesResolved="False")
        assert pool.calls == []
        await cluster.patch("Secret", "token", {"metadata": USE})
        await cluster.until_status("WorkerPool", "default", Ready="True")
        pool.token = "newer"
        await cluster.until_status("WorkerPool", "default", Ready="False")
        await cluster.patch("Secret", "token", {"data": data("newer")})
        await cluster.until_status("WorkerPool", "default", Ready="True")


async def test_a_secret_deleted_under_a_run_whose_driver_dies_is_asked_for_and_the_run_is_opened_once(
    cluster: Any, pool: Any, operate: Any, until: Any
) -> None:
    await secret(cluster, labelled=True)
    async with operate():
        await definitions(cluster, pool)
        await run(cluster)
        await cluster.until_status("TaskGraphRun", "one", phase="Running")
        await cluster.delete("Secret", "token")
        await pool.restart()
        shown = await cluster.until_status("TaskGraphRun", "one", attempt=2, reason="SecretNotUsable")
        assert shown["phase"] == "Running"
        assert len(pool.by_name("one").epochs) == 2
        await secret(cluster, labelled=True, value="new")

        async def delivered() -> bool:
            return bool(pool.by_name("one").secrets == {"token/api-key": "new"})

        await until(delivered, what="the new secret at the new driver")
        assert len(pool.by_name("one").epochs) == 2, "it was opened again and again"

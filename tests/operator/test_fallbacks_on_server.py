"""LLMs that are asked when another cannot answer, on the real API server: waited for, pinned, with their Secrets."""

from typing import Any

GRAPH = {
    "nodes": [{"name": "ask", "llm": {"ref": "fast", "prompt": "hi"}}],
    "output": {"text": "nodes.ask.output.text"},
}


def llm(name: str, fallback: str = "") -> dict[str, Any]:
    auth = {"secretKeyRef": {"name": f"token-{name}", "key": "token"}}
    spec = {"protocol": "openai", "model": name, "endpoint": f"https://{name}.example.com/v1", "auth": auth}
    return spec | ({"fallback": fallback} if fallback else {})


def message(status: dict[str, Any]) -> str:
    return next(str(c["message"]) for c in status["conditions"] if c["type"] == "Ready")


async def secret(cluster: Any, name: str) -> None:
    marks = {"labels": {"decurion.dev/use": "true"}}
    await cluster.create("Secret", f"token-{name}", stringData={"token": name}, metadata=marks)


async def test_a_graph_waits_for_a_fallback_and_its_run_takes_the_secret(
    cluster: Any, pool: Any, operate: Any, until: Any
) -> None:
    async with operate():
        await cluster.create("WorkerPool", "default", {"mode": "External", "url": pool.url})
        for name in ("fast", "spare", "other", "last"):
            await secret(cluster, name)
        await cluster.create("LLM", "fast", llm("fast", "spare"))
        await cluster.create("TaskGraph", "ask", GRAPH)
        waits = await cluster.until_status("TaskGraph", "ask", Ready="False", ReferencesResolved="False")
        assert 'the LLM fast falls back on "spare", and there is no LLM of that name' in message(waits)
        await cluster.create("TaskGraphRun", "one", {"graph": "ask"})
        await cluster.until_status("TaskGraphRun", "one", phase="Pending", reason="GraphNotReady")
        await cluster.create("LLM", "spare", llm("spare"))
        first = await cluster.until_status("TaskGraph", "ask", Ready="True")
        run = await cluster.until_status("TaskGraphRun", "one", phase="Running")
        assert run["graphDigest"] == first["digest"]
        assert sorted(pool.bundles[first["digest"]]["llms"]) == ["fast", "spare"]

        async def has_secrets() -> Any:
            return bool(pool.by_name("one").secrets == {"token-fast/token": "fast", "token-spare/token": "spare"})

        await until(has_secrets, what="the tokens of both at the driver")

        # A run's override holds for a fallback, and what it puts there may fall back itself.
        await cluster.create("LLM", "other", llm("other", "last"))
        spec = {"graph": "ask", "overrides": {"llms": {"spare": "other"}}}
        await cluster.create("TaskGraphRun", "two", spec)
        await cluster.until_status("TaskGraphRun", "two", phase="Pending", reason="GraphNotReady")
        await cluster.create("LLM", "last", llm("last"))
        run = await cluster.until_status("TaskGraphRun", "two", phase="Running")
        models = {name: one["model"] for name, one in pool.bundles[run["graphDigest"]]["llms"].items()}
        assert models == {"fast": "fast", "spare": "other", "last": "last"}

        await cluster.patch("LLM", "spare", {"spec": llm("spare", "fast")})
        circle = await cluster.until_status("TaskGraph", "ask", Ready="False")
        assert "[CYCLE] LLMs fall back on one another (fast → spare → fast)" in message(circle)

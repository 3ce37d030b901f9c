"""Another MCPServer for one run, on the real API server."""

from typing import Any

GRAPH = {
    "nodes": [{"name": "find", "tool": {"server": "desk", "name": "find", "arguments": {}}}],
    "output": {"count": "nodes.find.output.count"},
}


def server(name: str, field: str = "count") -> dict[str, Any]:
    tool = {"name": "find", "input": {}, "output": {field: {"type": "integer"}}}
    auth = {"secretKeyRef": {"name": f"token-{name}", "key": "token"}}
    return {"url": f"https://{name}.example.com/mcp", "tools": [tool], "auth": auth}


async def test_a_run_waits_for_a_server_that_fits_and_takes_its_secret(cluster: Any, pool: Any, operate: Any) -> None:
    async with operate():
        await cluster.create("WorkerPool", "default", {"mode": "External", "url": pool.url})
        for name in ("desk", "other"):
            marks = {"labels": {"decurion.dev/use": "true"}}
            await cluster.create("Secret", f"token-{name}", stringData={"token": name}, metadata=marks)
        await cluster.create("TaskGraph", "orders", GRAPH)
        await cluster.create("MCPServer", "desk", server("desk"))
        graph = await cluster.until_status("TaskGraph", "orders", Ready="True")
        spec = {"graph": "orders", "overrides": {"servers": {"desk": "other"}}}
        await cluster.create("TaskGraphRun", "one", spec)
        await cluster.until_status("TaskGraphRun", "one", phase="Pending", reason="GraphNotReady")
        await cluster.create("MCPServer", "other", server("other", "number"))
        await cluster.until_status("MCPServer", "other", Ready="True")
        await cluster.until_status("TaskGraphRun", "one", phase="Pending", reason="GraphNotReady")
        await cluster.patch("MCPServer", "other", {"spec": server("other")})
        run = await cluster.until_status("TaskGraphRun", "one", phase="Running")
        assert run["graphDigest"] != graph["digest"]
        assert pool.bundles[run["graphDigest"]]["servers"]["desk"]["url"] == "https://other.example.com/mcp"

        wrong = {"graph": "orders", "overrides": {"servers": {"dsk": "other"}}}
        await cluster.create("TaskGraphRun", "wrong", wrong)
        said = await cluster.until_status("TaskGraphRun", "wrong", phase="Pending", reason="GraphNotReady")
        assert said["message"] == 'overrides.servers names "dsk", and graph "orders" uses no MCPServer of that name.'

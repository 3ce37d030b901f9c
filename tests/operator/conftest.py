"""An operator against the real API server and a pool that does what the test says."""

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import hypothesis
import pytest

from cluster.api_server import ApiServer
from decurion_operator import Operator, OperatorSettings

# The fake is a module of this folder alone; with the import mode of this project it is found by its path.
sys.path.insert(0, str(Path(__file__).parent))

from fake_ingress import FakePool, serve

# How long an example takes says nothing about the code: other tests and servers share the machine.
hypothesis.settings.register_profile(
    "unhurried", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("unhurried")

PLURALS = {
    "LLM": "llms",
    "Agent": "agents",
    "MCPServer": "mcpservers",
    "TaskGraph": "taskgraphs",
    "TaskGraphRun": "taskgraphruns",
    "WorkerPool": "workerpools",
    "Approval": "approvals",
}
DEADLINE = 20.0


async def until(ready: Callable[[], Awaitable[Any]], *, what: str, seconds: float = DEADLINE) -> Any:
    """The first true value of `ready`, asked for every 50 ms. Fails after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        found = await ready()
        if found:
            return found
        assert time.monotonic() < end, f"{what} did not come within {seconds:g} s"
        await asyncio.sleep(0.05)


GRAPH = {
    "input": {"n": {"type": "integer"}},
    "nodes": [
        {
            "name": "double",
            "with": {"n": "input.n"},
            "code": '{"n": n * 2}',
            "output": {"n": {"type": "integer"}},
        }
    ],
    "output": {"n": "nodes.double.output.n"},
}


class Cluster:
    """One namespace of the API server, as its users see it."""

    def __init__(self, server: ApiServer, namespace: str, client: httpx.AsyncClient) -> None:
        self.server = server
        self.namespace = namespace
        self._client = client

    def path(self, kind: str, name: str = "") -> str:
        if kind in PLURALS:
            return f"/apis/decurion.dev/v1alpha1/namespaces/{self.namespace}/{PLURALS[kind]}/{name}".rstrip("/")
        return f"/api/v1/namespaces/{self.namespace}/{kind.lower()}s/{name}".rstrip("/")

    async def call(self, method: str, path: str, body: Any = None, *, kind: str = "application/json") -> Any:
        content = None if body is None else json.dumps(body)
        answer = await self._client.request(method, path, content=content, headers={"Content-Type": kind})
        answer.raise_for_status()
        return answer.json()

    @contextlib.asynccontextmanager
    async def stream(self, path: str) -> AsyncIterator[AsyncIterator[str]]:
        """The lines of an answer that goes on."""
        async with self._client.stream("GET", path) as answer:
            answer.raise_for_status()
            yield answer.aiter_lines()

    async def create(self, kind: str, name: str, spec: Any = None, **more: Any) -> dict[str, Any]:
        version = "decurion.dev/v1alpha1" if kind in PLURALS else "v1"
        metadata = {"name": name} | more.pop("metadata", {})
        body = {"apiVersion": version, "kind": kind, "metadata": metadata} | more
        if spec is not None:
            body["spec"] = spec
        found: dict[str, Any] = await self.call("POST", self.path(kind), body)
        return found

    async def get(self, kind: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = await self.call("GET", self.path(kind, name))
        return found

    async def patch(self, kind: str, name: str, patch: dict[str, Any]) -> dict[str, Any]:
        path, merge = self.path(kind, name), "application/merge-patch+json"
        found: dict[str, Any] = await self.call("PATCH", path, patch, kind=merge)
        return found

    async def delete(self, kind: str, name: str) -> None:
        await self.call("DELETE", self.path(kind, name))

    async def exists(self, kind: str, name: str) -> bool:
        answer = await self._client.get(self.path(kind, name))
        return answer.status_code == 200

    async def status(self, kind: str, name: str) -> dict[str, Any]:
        return (await self.get(kind, name)).get("status") or {}

    async def until_status(self, kind: str, name: str, seconds: float = DEADLINE, **fields: Any) -> dict[str, Any]:
        """The status once its `fields` have these values; `Ready="False"` stands for the condition of that name."""
        seen: dict[str, Any] = {}

        async def reached() -> dict[str, Any] | None:
            nonlocal seen
            seen = await self.status(kind, name)
            conditions = {c["type"]: c["status"] for c in seen.get("conditions", [])}
            there = all((conditions if f[0].isupper() else seen).get(f) == value for f, value in fields.items())
            return seen if there else None

        try:
            found: dict[str, Any] = await until(reached, what=f"{kind} {name} with {fields}", seconds=seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}; its status is {json.dumps(seen, indent=1)}") from None
        return found

    async def set_up(self, pool: FakePool, **spec: Any) -> None:
        """A WorkerPool named default and a graph named double."""
        await self.create("WorkerPool", "default", {"mode": "External", "url": pool.url} | spec)
        await self.set_up_graph()

    async def set_up_graph(self) -> None:
        await self.create("TaskGraph", "double", GRAPH)

    async def start(self, name: str, **spec: Any) -> None:
        """A run of that graph."""
        await self.create("TaskGraphRun", name, {"graph": "double", "input": {"n": 21}} | spec)

    async def events(self, about: str) -> list[tuple[str, str]]:
        found = await self.call("GET", self.path("Event"))
        mine = [e for e in found["items"] if e["involvedObject"]["name"] == about]
        return [(e["type"], e["reason"]) for e in mine]

    async def until_event(self, about: str, reason: str) -> None:
        async def told() -> bool:
            return reason in {told for _, told in await self.events(about)}

        await until(told, what=f"event {reason} of {about}")

    async def kubectl(self, *arguments: str, stdin: str | None = None, seconds: float = 60) -> str:
        return await asyncio.to_thread(
            self.server.kubectl, f"--namespace={self.namespace}", *arguments, stdin=stdin, seconds=seconds
        )

    async def apply(self, manifest: str, *flags: str) -> None:
        """`kubectl apply` of a manifest as text."""
        await self.kubectl("apply", *flags, "--filename", "-", stdin=manifest)


@pytest.fixture
async def cluster(api_server: ApiServer, namespace: str) -> AsyncIterator[Cluster]:
    """The test's own namespace."""
    headers = {"Authorization": f"Bearer {api_server.token}"}
    async with httpx.AsyncClient(
        base_url=api_server.url, verify=api_server.ssl_context(), headers=headers, timeout=30, trust_env=False
    ) as client:
        yield Cluster(api_server, namespace, client)


@pytest.fixture
async def pool() -> AsyncIterator[FakePool]:
    """A served pool; the WorkerPool that names it is up to the test."""
    async with serve(FakePool()) as served:
        yield served


@pytest.fixture
def settings(cluster: Cluster) -> OperatorSettings:
    """Settings of an operator of this namespace, with the waits of a test and the rates of production."""
    return OperatorSettings(
        kubeconfig=str(cluster.server.kubeconfig),
        namespaces=(cluster.namespace,),
        health_port=0,
        drivers_seconds=0.3,
        poll_seconds=2.0,
        pool_seconds=1.0,
        pool_grace_seconds=1.0,
        resync_seconds=3600.0,
        backoff_seconds=0.1,
        backoff_cap_seconds=1.0,
        stop_seconds=2.0,
    )


@contextlib.asynccontextmanager
async def operating(settings: OperatorSettings, **changes: Any) -> AsyncIterator[Operator]:
    """An operator of this process that works until the end of the block."""
    operator = await Operator.start(replace(settings, **changes))
    stop = asyncio.Event()
    work = asyncio.ensure_future(operator.run(stop))
    try:
        yield operator
    finally:
        stop.set()
        try:
            await work
        finally:
            await operator.aclose()


@pytest.fixture
def operate(settings: OperatorSettings) -> Callable[..., contextlib.AbstractAsyncContextManager[Operator]]:
    """`async with operate(field=value) as operator` with these settings of the test changed."""
    return lambda **changes: operating(settings, **changes)


@pytest.fixture(name="until")
def until_fixture() -> Callable[..., Awaitable[Any]]:
    """`await until(ready, what=…)`: the first true value of the coroutine function `ready`."""
    return until

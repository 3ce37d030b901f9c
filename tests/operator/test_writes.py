"""Writing status where the API server does not take it, or keeps something else."""

import time
from collections.abc import Mapping
from typing import Any

from decurion_operator.cache import Cache, Resource, trim
from decurion_operator.errors import Conflict, NotFound, Refused, TooLarge
from decurion_operator.pacing import Pacer
from decurion_operator.queue import Key
from decurion_operator.settings import OperatorSettings
from decurion_operator.writes import StatusWriter

KEY = Key("TaskGraphRun", "ns", "r")
NODES = [{"name": f"n{k}", "phase": "Running"} for k in range(100)]


class Server:
    """One run as an API server would hold it. `refusal` is raised for nodes, `prunes` is a field that it drops."""

    def __init__(self, *, refusal: type[Exception] | None = None, prunes: str = "", version: int = 1) -> None:
        self.refusal = refusal
        self.prunes = prunes
        self.version = version
        self.status: dict[str, Any] = {"observedGeneration": -1}
        self.patches: list[list[Mapping[str, Any]]] = []

    def raw(self) -> dict[str, Any]:
        meta = {"name": "r", "namespace": "ns", "uid": "u", "resourceVersion": str(self.version), "generation": 1}
        return {"metadata": meta, "spec": {"graph": "g"}, "status": dict(self.status)}

    async def get(self, key: Key) -> dict[str, Any]:
        return self.raw()

    async def patch_status(self, key: Key, *, version: str, patch: list[Mapping[str, Any]]) -> dict[str, Any]:
        self.patches.append(patch)
        if version != str(self.version):
            raise Conflict("another version", status=409)
        if self.refusal is not None and any(step["path"] == "/status/nodes" for step in patch):
            raise self.refusal("no", status=422)  # type: ignore[call-arg]
        for step in patch:
            name = step["path"].removeprefix("/status/")
            if step["op"] == "remove":
                del self.status[name]
            elif name != self.prunes:
                self.status[name] = step["value"]
        self.version += 1
        return self.raw()


class Bench:
    def __init__(self, server: Server) -> None:
        self.cache = Cache()
        self.changed: list[Key] = []
        self.server = server
        self.writer = StatusWriter(
            server,
            self.cache,
            Pacer(OperatorSettings()),
            changed=self.changed.append,
            now=time.time,
        )
        self.cache.put(trim("TaskGraphRun", server.raw()))

    @property
    def run(self) -> Resource:
        found = self.cache.get(KEY)
        assert found is not None
        return found

    async def write(self, **fields: Any) -> float | None:
        return await self.writer.run(self.run, dict(self.run.status or {}) | fields)


async def test_a_difference_is_written_once_and_its_echo_is_known() -> None:
    bench = Bench(Server())
    assert await bench.write(phase="Running", nodes=NODES) is None
    assert await bench.write(phase="Running", nodes=NODES) is None
    assert len(bench.server.patches) == 1
    assert bench.run.version == "2"
    assert bench.changed == [KEY]


async def test_a_status_that_is_refused_for_its_detail_is_written_in_its_smallest_form() -> None:
    for refusal in (TooLarge, Refused):
        bench = Bench(Server(refusal=refusal))
        await bench.write(phase="Succeeded", nodes=NODES, conditions=[])
        assert bench.server.status["phase"] == "Succeeded"
        assert "nodes" not in bench.server.status
        assert [c["type"] for c in bench.server.status["conditions"]] == ["StatusTruncated"]


async def test_a_field_that_the_server_drops_is_not_written_for_ever() -> None:
    bench = Bench(Server(prunes="stateHash"))
    for _ in range(4):
        await bench.write(phase="Running", stateHash="ab")
    assert len(bench.server.patches) == 1
    await bench.write(phase="Running", stateHash="cd")
    assert len(bench.server.patches) == 1, "progress waits for its second"
    await bench.write(phase="Queued", stateHash="cd")
    assert len(bench.server.patches) == 2


async def test_after_a_conflict_the_newer_object_is_looked_at() -> None:
    bench = Bench(Server())
    bench.server.version = 7
    await bench.write(phase="Running")
    assert bench.run.version == "7"
    assert bench.changed[0] == KEY
    await bench.write(phase="Running")
    assert bench.server.status["phase"] == "Running"


async def test_a_run_that_was_deleted_meanwhile_is_no_error() -> None:
    class Gone(Server):
        async def patch_status(self, key: Key, *, version: str, patch: list[Mapping[str, Any]]) -> dict[str, Any]:
            raise NotFound("gone", status=404)

    assert await Bench(Gone()).write(phase="Running") is None


async def test_progress_that_may_not_be_written_yet_is_told_when() -> None:
    bench = Bench(Server())
    await bench.write(phase="Running")
    wait = await bench.write(progress="1/9")
    assert wait is not None
    assert 0 < wait <= OperatorSettings().status_slow_seconds
    assert len(bench.server.patches) == 1

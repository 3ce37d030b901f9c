"""Lists of a server that is too busy to answer some pages."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from decurion_operator import OperatorSettings
from decurion_operator.errors import ClusterUnavailable
from decurion_operator.gateway import PAGE_TRIES, Gateway
from decurion_operator.metrics import Meter

COUNT = 20


@dataclass
class Busy:
    """An API server of `COUNT` runs. `answers` says what it answers call by call, then all is well: a status, or 0 for
    a connection that breaks."""

    answers: list[int]
    asked: list[tuple[int, int]] = field(default_factory=list)
    """From which run on it was asked for how many."""
    versions: list[str | None] = field(default_factory=list)

    async def list(self, request: web.Request) -> web.Response:
        start, limit = int(request.query.get("continue") or 0), int(request.query["limit"])
        self.asked.append((start, limit))
        self.versions.append(request.query.get("resourceVersion"))
        status = self.answers.pop(0) if self.answers else 200
        if not status and request.transport is not None:
            request.transport.abort()
        if status != 200:
            return web.json_response({"message": "too busy"}, status=status or 500)
        names = [f"run-{n:02}" for n in range(start, min(COUNT, start + limit))]
        items = [{"metadata": {"name": n, "namespace": "ns", "uid": n, "resourceVersion": "1"}} for n in names]
        more = str(start + limit) if start + limit < COUNT else ""
        return web.json_response({"items": items, "metadata": {"continue": more}})


async def names(busy: Busy, folder: Path) -> AsyncIterator[str]:
    application = web.Application()
    application.router.add_get("/apis/decurion.dev/v1alpha1/taskgraphruns", busy.list)
    async with TestServer(application) as server:
        context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
        cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.port}"}}
        config = {"apiVersion": "v1", "kind": "Config", "current-context": "c", "contexts": [context]}
        config |= {"clusters": [cluster], "users": [{"name": "u", "user": {}}]}
        (folder / "config").write_text(json.dumps(config))
        settings = OperatorSettings(kubeconfig=str(folder / "config"), page_size=8, backoff_seconds=0.01)
        gateway = await Gateway.connect(settings, Meter())
        try:
            async for version in gateway.list_versions("TaskGraphRun"):
                yield version.key.name
        finally:
            await gateway.aclose()


@pytest.mark.parametrize("trouble", [504, 500, 429])
async def test_a_page_that_does_not_come_is_asked_for_again_smaller_and_the_list_goes_on(
    tmp_path: Path, trouble: int
) -> None:
    busy = Busy([200, trouble, trouble, 200])
    assert [name async for name in names(busy, tmp_path)] == [f"run-{n:02}" for n in range(COUNT)]
    assert busy.asked[:4] == [(0, 8), (8, 8), (8, 4), (8, 2)]
    assert {limit for _, limit in busy.asked[4:]} == {2}, "the size that went well is kept"
    assert set(busy.versions) == {None}, "no list may be older than what is known"


async def test_a_list_survives_a_connection_that_breaks(tmp_path: Path) -> None:
    # The HTTP client asks once more by itself on a connection that it kept.
    busy = Busy([200, 0, 0, 0])
    assert [name async for name in names(busy, tmp_path)] == [f"run-{n:02}" for n in range(COUNT)]
    assert busy.asked[-1][1] < 8


async def test_a_list_fails_when_a_page_never_comes(tmp_path: Path) -> None:
    busy = Busy([200, *[504] * 100])
    with pytest.raises(ClusterUnavailable):
        _ = [name async for name in names(busy, tmp_path)]
    assert len(busy.asked) == 1 + PAGE_TRIES


async def test_a_server_that_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    busy = Busy([0] * 100)
    with pytest.raises(ClusterUnavailable):
        _ = [name async for name in names(busy, tmp_path)]
    assert len({start for start, _ in busy.asked}) == 1
    assert {limit for _, limit in busy.asked} == {8}

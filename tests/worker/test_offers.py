"""Who gets work: even shares, and what was not started is taken back for a runner that joins later."""

from __future__ import annotations

import asyncio
from collections import Counter

from decurion_worker.opening import OpenRequest
from graphs import code, fan_out, graph, path, scope
from test_runs import Bench

COUNT = 1_500


def spin() -> object:
    one = scope(
        code("work", "return sum(range(item % 7 + 20_000))", item="input.item"),
        output={"$value": path("nodes.work.output")},
        inputs=("item",),
    )
    each = fan_out("each", "input.items", "one")
    return graph(scope(each, output={"n": path("nodes.each.output.total")}, inputs=("items",), leaf=False), one=one)


async def test_a_runner_that_joins_late_gets_what_the_first_has_not_started() -> None:
    async with Bench(branches=COUNT) as bench:
        request = OpenRequest(run="run-1", name="g", graph=spin(), input={"items": list(range(COUNT))})
        session = await bench.driver.open_run(request)
        async with asyncio.timeout(60):
            while session.engine.root.opened.get("each") is None or not session.engine.root.opened["each"].ok:
                await asyncio.sleep(0.005)
            await bench.executor.scale(2)
            await session.ended.wait()
        log = await bench.log()
    workers = Counter(r.envelope["worker"] for r in log if r.path.endswith("]!output"))
    assert len(workers) == 2
    assert min(workers.values()) > COUNT / 10
    paths = Counter(r.path for r in log if r.core is not None)
    assert max(paths.values()) == 1

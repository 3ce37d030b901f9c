"""What is asked of a run while its last record is on its way comes too late, and changes nothing."""

from __future__ import annotations

from typing import Any

from decurion_ledger import open_store
from decurion_worker.opening import OpenRequest
from graphs import map_reduce
from test_runs import Bench, _stores


class _Told:
    """A store that says when the log is sealed."""

    def __init__(self) -> None:
        self._store = open_store(f"memory://late-{next(_stores)}")
        self.sealing: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def put_new(self, key: str, data: Any, **more: Any) -> Any:
        if key.endswith("final"):
            self.sealing()
        return await self._store.put_new(key, data, **more)


async def test_a_cancel_while_the_close_is_written_leaves_the_run_as_it_ended() -> None:
    store, told = _Told(), []
    async with Bench(store=store) as bench:
        request = OpenRequest(
            run="run-1", name="g", graph=map_reduce(), input={"n": 2}, scheduled_at="2026-01-01T00:00:00+00:00"
        )
        session = await bench.driver.open_run(request)

        def sealing() -> None:
            told.append(session.engine.closed)
            session.cancel("Cancel")

        store.sealing = sealing
        await session.ended.wait()
        log = await bench.log()
    assert told == [None]
    assert session.why == ""
    assert session.projection()["phase"] == "Succeeded"
    assert log[-1].type == "close"

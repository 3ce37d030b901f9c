"""Collecting on each kind of store: their clocks, their lists, their deletions."""

from __future__ import annotations

import asyncio
import time

from decurion_ledger.layout import BLOBS, run_prefix, tomb_key
from decurion_ledger.retention import collect
from decurion_ledger.stores import Store
from logs import RUN
from test_copying import content, with_blobs


async def test_a_run_whose_time_is_over_goes_from_every_kind_of_store(store: Store) -> None:
    await with_blobs(store, values=(["b" * 9000],))
    await with_blobs(store, "kept", values=(["b" * 9000],))
    began = time.time()
    dates = [info.modified async for info in store.list(run_prefix(RUN))]
    assert all(abs(at - began) < 60 for at in dates)
    done = await collect(store, older_than=3600, hold=0)
    assert {one.run: one.fate for one in done.runs} == {RUN: "kept", "kept": "kept"}
    deadline = time.monotonic() + 20
    while await content(store, BLOBS) or await content(store, run_prefix("kept")):
        assert time.monotonic() < deadline
        await collect(store, older_than=0, hold=0)
        await asyncio.sleep(0.2)
    assert sorted(await content(store)) == sorted([tomb_key(RUN), tomb_key("kept")])

"""Random graphs on the real interpreter: one state, however the work is spread and wherever the run was cut.

Thousands of seeds are soaked with this Python in the interpreter's place (`hack/soak`, `tests/system/test_soak.py`):
these few show that it makes no difference.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from decurion_crds.compiled import CompiledGraph
from decurion_ledger import Record, open_store, verify
from manifests import compiled
from soak.draw import Writer
from soak.plain_python import PlainPython
from test_runs import Bench, _begin, _stores, put_all


async def _states(graph: CompiledGraph, k: int, rng: random.Random) -> None:
    async with Bench() as bench:
        whole, log = await bench.run(graph, {"k": k}), await bench.log()
        blobs = await bench.blobs()
        assert whole.projection()["phase"] == "Succeeded", whole.facts.message
        assert await verify(bench.store, "run-1") == []
    async with Bench(runners=3, branches=rng.choice([1, 2, 5])) as bench:
        spread = await bench.run(graph, {"k": k})
        assert (spread.engine.output, spread.facts.state_hash) == (whole.engine.output, whole.facts.state_hash)
    async with Bench(evaluator=PlainPython) as bench:
        plain = await bench.run(graph, {"k": k})
        assert (plain.engine.output, plain.facts.state_hash) == (whole.engine.output, whole.facts.state_hash)
    body = [r for r in log if r.type not in ("genesis", "fence", "close")]
    for cut in rng.sample(range(len(body) + 1), min(2, len(body) + 1)):
        await _resumed(log[0], body[:cut], blobs, whole.engine.output, whole.facts.state_hash)


async def _resumed(
    genesis: Record, body: list[Record], blobs: dict[str, bytes], output: Any, state: str | None
) -> None:
    store = open_store(f"memory://random-{next(_stores)}")
    await put_all(store, blobs)
    await _begin(store, genesis, body)
    async with Bench(store=store, branches=3) as bench:
        session, log = await bench.run(None, epoch=1), await bench.log()
    where = f"cut after {len(body)} records, at {body[-1].path if body else 'genesis'}"
    assert (session.engine.output, session.facts.state_hash) == (output, state), where
    assert await verify(store, "run-1") == [], where
    paths = Counter(r.path for r in log if r.core is not None and r.type != "genesis")
    assert not paths or max(paths.values()) == 1, where


@pytest.mark.parametrize("seed", range(20))
def test_the_state_of_a_graph_depends_on_neither_runners_nor_crashes_nor_the_interpreter(seed: int) -> None:
    asyncio.run(_states(compiled(Writer(seed).spec()), seed % 6, random.Random(seed)))

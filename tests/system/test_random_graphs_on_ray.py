"""Random graphs on real Ray, with the real interpreter: they come to what they come to in one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from crashes import Process, new_store
from decurion_crds.compile import Checker
from decurion_ledger import open_store, verify
from decurion_worker.runner import RunnerSettings
from pool import Pool
from soak.graphs import drawn
from test_agent_graphs import to_its_end

if TYPE_CHECKING:
    from cluster.ray_runtime import RayRuntime

SEEDS = (5, 7, 10, 11, 13, 17, 20, 26, 28, 31, 35, 37)
"""Graphs in which time decides nothing: with agents (10, 11, 26, 35), with files (5, 13, 37), and others."""


@pytest.fixture
def pool(ray_runtime: RayRuntime, tmp_path: Path) -> Iterator[Pool]:
    more = ("--ray-address", ray_runtime.address, "--runner-cpus", "0.25")
    ledger = str(tmp_path / "ledger")
    with (
        ray_runtime.driver() as name,
        Pool(tmp_path, ledger=ledger, executor="ray", branches=3, driver=name, more=more) as pool,
    ):
        yield pool


async def test_random_graphs_come_to_the_same_on_ray_as_in_one_process(pool: Pool) -> None:
    with Checker() as checker:
        graphs = {f"seed-{seed}": drawn(seed, checker, deepest=3) for seed in SEEDS}
    client = pool.client()
    for run, graph in graphs.items():
        client.put_bundle(graph)
        client.open(graph, run, {"k": 3}).raise_for_status()
    for run, graph in graphs.items():
        on_ray = client.finished(run, timeout=180)
        async with Process(new_store(), runner=RunnerSettings(branches=64, processes=1)) as process:
            here = await to_its_end(await process.open(graph, {"k": 3}))
        assert on_ray["phase"] == "Succeeded", (run, on_ray)
        assert (on_ray["output"], on_ray["stateHash"]) == (here.engine.output, here.facts.state_hash), run
        assert await verify(open_store(pool.ledger), run) == []

"""Agents whose tools are graphs with maps, on real Ray: one runner with one slot, and maps of one item at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from decurion_ledger import open_store, read_log, verify
from pool import Pool
from test_agent_graphs import ONCE, SIDE_BY_SIDE, agents, ended

if TYPE_CHECKING:
    from cluster.ray_runtime import RayRuntime


@pytest.fixture
def pool(ray_runtime: RayRuntime, tmp_path: Path) -> Iterator[Pool]:
    more = ("--ray-address", ray_runtime.address, "--runner-cpus", "0.25")
    ledger = str(tmp_path / "ledger")
    with (
        ray_runtime.driver() as name,
        Pool(tmp_path, ledger=ledger, executor="ray", branches=1, driver=name, more=more) as pool,
    ):
        yield pool


async def test_an_agent_whose_tool_is_a_graph_with_a_map_ends_on_one_slot(pool: Pool) -> None:
    graph = agents(SIDE_BY_SIDE, ONCE)
    client = pool.client()
    client.put_bundle(graph)
    client.open(graph, "one", {}).raise_for_status()
    end = client.finished("one")
    assert end["phase"] == "Succeeded", end
    assert end["output"] == {"texts": ["three", "three"]}
    assert end["stateHash"] == (await ended(graph)).facts.state_hash
    store = open_store(pool.ledger)
    assert await verify(store, "one") == []
    log = [record async for _, record in read_log(store, "one")]
    assert "/many[00001]/ask#turn-0001.01/each!join" in {record.path for record in log}

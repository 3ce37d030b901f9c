"""Files of a run on Ray with its ledger on S3: branches write side by side, and the result is that of one process."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cluster.s3 import S3Server
from crashes import Process, new_store
from decurion_ledger import Credentials, find, open_store, verify
from decurion_ledger.workspace import Objects, Version, files_of
from manifests import compiled
from pool import Pool

if TYPE_CHECKING:
    from cluster.ray_runtime import RayRuntime

GRAPH = """
  input: {numbers: {type: array, items: {type: integer}}}
  nodes:
    - name: begin
      workspace: {write: [shared]}
      tool: {server: workspace, name: write, arguments: {path: shared, text: begun}}
    - name: each
      after: [begin]
      map: {items: input.numbers, as: number, template: one, workspace: {merge: prefer}}
    - name: all
      after: [each]
      tool: {server: workspace, name: glob, arguments: {pattern: "**"}}
  output: {paths: nodes.all.output.paths}
  templates:
    - name: one
      input: {number: {type: integer}}
      nodes:
        - name: text
          with: {number: input.number}
          transform: {text: "'.'.join([str(number * i * i) for i in range(4000)])"}
        - name: put
          with: {number: input.number, text: nodes.text.output.text}
          workspace: {write: [shared, "out/*"]}
          tool:
            server: workspace
            name: write_files
            arguments:
              files: [{path: "out/{{ number }}", text: "{{ text }}"}, {path: shared, text: "item {{ number }}"}]
      output: {count: nodes.put.output.count}
"""
INPUT = {"numbers": list(range(1, 25))}


@pytest.fixture
def pool(ray_runtime: RayRuntime, s3_server: S3Server, tmp_path: Path) -> Iterator[Pool]:
    import ray
    from ray.util import list_named_actors

    name = f"driver-{secrets.token_hex(4)}"
    with Pool(
        tmp_path,
        ledger=s3_server.uri(f"files-{secrets.token_hex(4)}"),
        executor="ray",
        env=s3_server.env,
        branches=8,
        driver=name,
        more=("--ray-address", ray_runtime.address, "--runner-cpus", "0.25"),
    ) as pool:
        yield pool
    for one in list_named_actors(all_namespaces=True):
        if one["name"].startswith(f"{name}@"):
            ray.kill(ray.get_actor(one["name"], namespace=one["namespace"]))


async def test_branches_on_ray_write_files_that_are_merged_as_in_one_process(pool: Pool, s3_server: S3Server) -> None:
    graph = compiled(GRAPH)
    async with Process(new_store()) as process:
        here = await process.run(graph, INPUT)
    client = pool.client()
    client.put_bundle(graph)
    client.open(graph, "files", INPUT).raise_for_status()
    end = client.finished("files")
    assert end["phase"] == "Succeeded"
    access = Credentials(s3_server.access_key, s3_server.secret_key)
    store = open_store(pool.ledger, endpoint_url=s3_server.endpoint_url, region=s3_server.region, credentials=access)
    assert await verify(store, "files") == []
    record = await find(store, "files", "/!output")
    assert record is not None
    version, kept = Version.from_json(record.envelope["workspace"]), Objects(store, "files")
    assert version.root == here.engine.root.files["each"]["root"]
    await kept.learn(version)
    files = await files_of(kept, version.root)
    assert len(files) == 25
    assert await kept.read(files["shared"]) == b"item 1"
    assert (await kept.read(files["out/24"])).startswith(b"0.24.96.")
    assert version.packs
    packs = [info async for info in store.list("runs/") if "/packs/" in info.key]
    assert len(packs) <= 24
    await store.aclose()

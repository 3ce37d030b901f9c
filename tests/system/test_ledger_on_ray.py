"""Runs on Ray with their ledger on S3: files of branches, signatures, and effects whose driver falls asleep.

One pool for all of them, on the Ray of the session. What they come to is compared with the same in one process.
"""

from __future__ import annotations

import asyncio
import base64
import os
import secrets
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from cluster.process import wait_until
from cluster.s3 import S3Server
from crashes import Process, new_store, sound
from decurion_cli.main import app
from decurion_ledger import (
    Credentials,
    SealKey,
    SigningKey,
    Store,
    Values,
    erase,
    find,
    key_of,
    open_store,
    public_pem,
    read_log,
    verify,
)
from decurion_ledger.copying import copy_run
from decurion_ledger.errors import KeyErased
from decurion_ledger.layout import pack_prefix, run_prefix
from decurion_ledger.workspace import Objects, Version, checkout
from manifests import compiled
from pool import Ingress, Pool
from tool_server import ToolServer, resource

if TYPE_CHECKING:
    from cluster.ray_runtime import RayRuntime

LEASE = 3.0
ROOT = SigningKey.generate()
FILES = """
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
SECRET = "Quillfeather"
BY = SealKey.generate()
SENSITIVE = """
  sensitive: [patients]
  input: {patients: {type: array, items: {type: string}}}
  nodes:
    - name: each
      map: {items: input.patients, as: who, template: letter}
    - name: broken
      with: {all: nodes.each.output.items}
      onFailure: skip
      code: |
        if len(all) > 0:
            raise ValueError("no such person: " + all[0]["text"])
        {"x": 1}
      output: {x: {type: integer}}
    - name: count
      sensitive: false
      with: {all: nodes.each.output.items}
      transform: {letters: "sum([len(one.text) for one in all])"}
  output: {letters: nodes.count.output.letters}
  templates:
    - name: letter
      input: {who: {type: string}}
      nodes:
        - name: greet
          with: {who: input.who}
          code: |
            {"text": "Dear " + who * 40}
          output: {text: {type: string}}
      output: {text: nodes.greet.output.text}
"""
PATIENTS = {"patients": [f"{SECRET}{i:04}" for i in range(400)]}
EFFECT = """
  nodes:
    - name: act
      tool: {server: tools, name: note, arguments: {text: t}}
  output: {given: nodes.act.output}
"""


@pytest.fixture(scope="module")
def pool(ray_runtime: RayRuntime, s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    ray_runtime.give_keys(s3_server)
    with (
        ray_runtime.driver() as name,
        Pool(
            tmp_path_factory.mktemp("pool"),
            ledger=s3_server.uri(f"ray-{secrets.token_hex(4)}"),
            executor="ray",
            branches=8,
            lease=LEASE,
            driver=name,
            more=("--ray-address", ray_runtime.address, "--runner-cpus", "0.25"),
        ) as pool,
    ):
        yield pool


@pytest.fixture
async def store(pool: Pool, s3_server: S3Server) -> AsyncIterator[Store]:
    access = Credentials(s3_server.access_key, s3_server.secret_key)
    store = open_store(pool.ledger, endpoint_url=s3_server.endpoint_url, region=s3_server.region, credentials=access)
    yield store
    await store.aclose()


@pytest.fixture(scope="module")
def client(pool: Pool) -> Ingress:
    return pool.client()


def signed(client: Ingress, run: str) -> dict[str, Any]:
    """What appoints the driver to write the log of `run`."""
    [driver] = client.drivers()
    certificate = ROOT.certify(driver["key"], cluster="test", run=run, leader_epoch=1)
    return {"certificates": [certificate.to_json()]}


@pytest.fixture(scope="module")
def files_run(client: Ingress) -> dict[str, Any]:
    """The run `files`, signed, at its end."""
    graph = compiled(FILES)
    client.put_bundle(graph)
    client.open(graph, "files", INPUT, **signed(client, "files")).raise_for_status()
    return client.finished("files")


def on_disk(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def test_branches_write_files_that_are_merged_as_in_one_process(
    files_run: dict[str, Any], store: Store, tmp_path: Path
) -> None:
    local = new_store()
    async with Process(local) as process:
        here = await process.run(compiled(FILES), INPUT)
    assert files_run["phase"] == "Succeeded", files_run
    assert files_run["stateHash"] == here.facts.state_hash
    assert await verify(store, "files") == []
    trees = {}
    for name, place, run in (("ray", store, "files"), ("here", local, here.run)):
        record = await find(place, run, "/!output")
        assert record is not None
        version = Version.from_json(record.envelope["workspace"])
        await checkout(Objects(place, run), version, tmp_path / name)
        trees[name] = (version.root, on_disk(tmp_path / name))
    assert trees["ray"] == trees["here"]
    files = trees["ray"][1]
    assert files.keys() == {"shared", *(f"out/{number}" for number in INPUT["numbers"])}
    assert files["shared"] == b"item 1"
    assert files["out/24"].startswith(b"0.24.96.")
    packs = [info async for info in store.list(pack_prefix("files"))]
    assert 0 < len(packs) <= len(INPUT["numbers"]), "what branches of one runner write stands in packs together"


async def test_a_signed_run_is_verified_away_from_its_store_with_nothing_but_the_root_key(
    files_run: dict[str, Any], store: Store, tmp_path: Path
) -> None:
    away = open_store(str(tmp_path / "away"))
    copied = await copy_run(store, "files", away)
    assert copied.problems == []
    (tmp_path / "root.pem").write_text(public_pem(ROOT.public))
    (tmp_path / "other.pem").write_text(public_pem(SigningKey.generate().public))

    def verified(key: str) -> tuple[int, str]:
        command = ["ledger", "verify", str(tmp_path / "away"), "files", "--root-key", str(tmp_path / key)]
        done = CliRunner().invoke(app, command)
        return done.exit_code, done.output

    code, said = await asyncio.to_thread(verified, "root.pem")
    by = f"signed by drivers that {ROOT.public} appointed; compared with --root-key"
    assert (code, said) == (0, f"files: ok ({by})\n")
    code, said = await asyncio.to_thread(verified, "other.pem")
    assert code == 1, said


async def test_an_effect_whose_driver_falls_asleep_is_settled_by_the_receipt_that_its_runner_left(
    client: Ingress, store: Store
) -> None:
    with ToolServer() as server:
        server.hang = True
        graph = compiled(EFFECT + resource(server.url).replace("timeoutSeconds: 5", "timeoutSeconds: 60"))
        client.put_bundle(graph)
        client.open(graph, "act", {}, **signed(client, "act")).raise_for_status()
        wait_until(lambda: server.calls["note"] == 1, seconds=180, what="the call of the tool")
        asleep = client.drivers()[0]["pid"]
        os.kill(asleep, signal.SIGSTOP)
        try:
            server.hang = False
            receipts = f"{run_prefix('act')}receipts/"

            async def left() -> list[str]:
                return [info.key async for info in store.list(receipts)]

            async with asyncio.timeout(30):
                while not await left():
                    await asyncio.sleep(0.05)
            async with Process(store) as process:
                session = await process.run(None, run="act", epoch=2)
        finally:
            os.kill(asleep, signal.SIGCONT)
        assert session.engine.output == {"given": {"text": "noted t"}}
        assert server.calls["note"] == 1
    wait_until(lambda: "act" not in client.drivers()[0]["runs"], seconds=30, what="the end of the run for the sleeper")
    log = await sound(store, "act")
    told = [(r.type, r.envelope["worker"][:4]) for r in log if r.type.startswith("effect_")]
    assert told == [("effect_intended", "ray-"), ("effect_settled", "loca")]


def _lies_in(folders: list[Path], texts: list[bytes]) -> list[str]:
    """The files that hold one of these."""
    found = []
    for path in (path for folder in folders for path in folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            raw = path.read_bytes()
            found += [str(path) for text in texts if text in raw]
    return found


async def _in_ledger(store: Store, texts: list[bytes]) -> list[str]:
    """The objects that hold one of these, as they are or unpacked; the input was given in the request alone."""
    found = []
    async for info in store.list(""):
        if info.key.startswith((run_prefix("sealed"), "blobs/", "keys/")):
            raw = await store.get(info.key)
            found += [info.key for text in texts if text in raw]
    log = [str([record.core, record.envelope]).encode() async for _, record in read_log(store, "sealed")]
    return found + ["the log" for line in log for text in texts if text in line]


async def test_sensitive_values_reach_runners_and_lie_nowhere_in_clear(
    pool: Pool, client: Ingress, store: Store
) -> None:
    """The key goes through the driver to its runners: the work is done there, and neither value nor key is in the
    ledger, in what Ray writes or in what the pool logs.
    """
    import ray

    graph = compiled(SENSITIVE)
    client.put_bundle(graph)
    assert client.open(graph, "sealed", PATIENTS).status_code == 422, "nothing begins without a seal key"
    client.open(graph, "sealed", PATIENTS, sealKey=BY.to_text()).raise_for_status()
    ended = client.finished("sealed")
    assert (ended["phase"], ended["output"]) == ("Succeeded", {"letters": 400 * (5 + 40 * 16)}), ended
    assert await verify(store, "sealed") == []
    log = [record async for _, record in read_log(store, "sealed")]
    workers = {str(r.envelope["worker"])[:4] for r in log if r.path.endswith("/greet")}
    assert workers == {"ray-"}
    seal = await key_of(store, "sealed", BY)
    record = await find(store, "sealed", "/each[00007]/greet")
    assert record is not None
    assert record.core is not None
    read = await Values(store, "sealed", seal=seal).unpack(record.envelope, record.core["delta"])
    assert read == {"text": "Dear " + f"{SECRET}0007" * 40}
    keys = [BY.key, BY.to_text().encode(), seal.key, seal.key.hex().encode(), base64.b64encode(seal.key)]
    values = [SECRET.encode(), base64.b64encode(SECRET.encode() * 3)[4:12]]
    assert await _in_ledger(store, [*keys, *values]) == []
    session = Path(ray._private.worker._global_node.get_session_dir_path())  # type: ignore[attr-defined]
    assert _lies_in([session], [b"RunnerActor"]), "this is where Ray writes"
    assert _lies_in([session, pool._folder], [*keys, *values]) == []
    await erase(store, "sealed", at="2026-12-03T07:00:00Z")
    with pytest.raises(KeyErased):
        await key_of(store, "sealed", BY)
    assert await verify(store, "sealed") == []

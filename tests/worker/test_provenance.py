"""The statement about a run: what it names, that it is checked, and that other tools can check it."""

import base64
from pathlib import Path
from typing import Any

import orjson
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from decurion_crds.canonical import canonical
from decurion_crds.compiled import MapBlock
from decurion_ledger import SigningKey, Store, verify
from decurion_ledger.layout import final_key, provenance_key, slot_key
from decurion_ledger.reader import read_log
from decurion_ledger.segment import build, parse, prepare
from decurion_worker.opening import OpenRequest
from graphs import code, graph, llm, node, path, scope
from test_runs import Bench

ROOT = SigningKey.generate()
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


def compiled() -> Any:
    return graph(
        scope(
            llm("say", "voice", output=TEXT, text="input.text"),
            output={"said": path("nodes.say.output.text")},
            inputs=("text",),
            leaf=False,
        ),
        llms={"voice": {"protocol": "scripted", "model": "m-1", "scripted": {"replies": [{"reply": "yes"}]}}},
    )


async def finished(bench: Bench, *, signed: bool = True) -> dict[str, Any]:
    """The envelope of a run that has ended."""
    request = OpenRequest(
        run="run-1", name="g", graph=compiled(), input={"text": "t"}, appointed=ROOT if signed else None
    )
    session = await bench.driver.open_run(request)
    await session.ended.wait()
    assert session.projection()["phase"] == "Succeeded"
    found: dict[str, Any] = orjson.loads(await bench.store.get(provenance_key("run-1")))
    return found


async def codes(store: Store, *roots: str) -> set[str]:
    return {problem.code for problem in await verify(store, "run-1", roots=roots)}


async def test_it_names_what_came_out_and_what_it_was_made_of() -> None:
    async with Bench() as bench:
        envelope = await finished(bench)
        log = await bench.log()
    said = orjson.loads(base64.b64decode(envelope["payload"]))
    genesis, close = log[0], log[-1]
    assert said["_type"] == "https://in-toto.io/Statement/v1"
    assert said["predicateType"] == "https://slsa.dev/provenance/v1"
    assert said["subject"] == [
        {"name": "state", "digest": {"decurion-state-v0": close.envelope["state"]}},
        {"name": "output", "digest": {"decurion-value-v1": close.envelope["output"]}},
    ]
    definition, details = said["predicate"]["buildDefinition"], said["predicate"]["runDetails"]
    assert definition["externalParameters"]["input"] == {"decurion-value-v1": genesis.core["input"]}
    made_of = definition["resolvedDependencies"]
    assert [one["name"] for one in made_of] == ["TaskGraph/g", "LLM/voice"]
    assert made_of[0]["digest"] == {"decurion-graph": genesis.core["node"]}
    assert made_of[1]["annotations"] == {"protocol": "scripted", "model": "m-1"}
    assert details["builder"]["id"] == "urn:decurion:cluster:local"
    assert details["metadata"]["invocationId"] == "run-1"


async def test_its_signature_is_that_of_dsse_by_the_key_of_the_driver() -> None:
    async with Bench() as bench:
        envelope = await finished(bench)
        [signature] = envelope["signatures"]
        assert signature["keyid"] == bench.driver.key.public
    payload, kind = base64.b64decode(envelope["payload"]), "application/vnd.in-toto+json"
    assert envelope["payloadType"] == kind
    signed = f"DSSEv1 {len(kind)} {kind} {len(payload)} ".encode() + payload
    Ed25519PublicKey.from_public_bytes(bytes.fromhex(signature["keyid"])).verify(
        base64.b64decode(signature["sig"]), signed
    )


@pytest.mark.parametrize("signed", [False, True])
async def test_the_object_is_compared_with_the_log_and_completed_by_whoever_opens_the_run(signed: bool) -> None:
    async with Bench() as bench:
        envelope = await finished(bench, signed=signed)
        assert len(envelope["signatures"]) == signed
        assert await codes(bench.store) == set()
        key, data = provenance_key("run-1"), await bench.store.get(provenance_key("run-1"))
        for bit in range(0, len(data) * 8, 101):
            changed = bytearray(data)
            changed[bit // 8] ^= 1 << bit % 8
            await bench.store.put(key, bytes(changed))
            assert await codes(bench.store) == {"PROVENANCE"}
        await bench.store.delete(key)
        assert await codes(bench.store) == {"PROVENANCE-MISSING"}
        await bench.store.delete(final_key("run-1"))
        assert await codes(bench.store) == {"FINAL-MISSING"}
    async with Bench(store=bench.store) as other:
        session = await other.driver.open_run(OpenRequest(run="run-1", name="g"))
        assert session.ended.is_set()
        assert await bench.store.get(key) == data
        assert await codes(bench.store) == set()


def changed_in(record: Any, how: str, key: SigningKey) -> Any:
    envelope = record.envelope["provenance"]
    said = orjson.loads(base64.b64decode(envelope["payload"]))
    if how == "subject":
        said["subject"][0]["digest"] = {"decurion-state-v0": "0" * 64}
    elif how == "graph":
        said["predicate"]["buildDefinition"]["resolvedDependencies"][0]["digest"] = {"decurion-graph": "0" * 64}
    elif how == "run":
        said["predicate"]["runDetails"]["metadata"]["invocationId"] = "another"
    elif how == "unsigned":
        envelope["signatures"] = []
    payload = canonical(said)
    envelope["payload"] = base64.b64encode(payload).decode()
    kind = envelope["payloadType"]
    for one in envelope["signatures"]:
        by = SigningKey.generate() if how == "key" else key
        one["sig"] = base64.b64encode(
            by.sign_raw(f"DSSEv1 {len(kind)} {kind} {len(payload)} ".encode() + payload)
        ).decode()
    return record


@pytest.mark.parametrize("how", ["subject", "graph", "run", "unsigned", "key"])
async def test_a_statement_that_says_something_else_than_its_log_is_told(how: str) -> None:
    async with Bench() as bench:
        await finished(bench)
        store = bench.store
        last = max(slot for slot in [slot async for slot, _ in read_log(store, "run-1")])
        segment = parse(await store.get(slot_key("run-1", last)), "x")
        records = [*segment.records[:-1], changed_in(segment.records[-1], how, bench.driver.key)]
        head = segment.header
        _, data = build(
            [prepare(record) for record in records],
            run="run-1",
            slot=last,
            epoch=head.epoch,
            driver=head.driver,
            nonce=head.nonce,
            previous=head.previous,
            key=bench.driver.key,
        )
        await store.put(slot_key("run-1", last), data)
        await store.put(provenance_key("run-1"), canonical(records[-1].envelope["provenance"]))
        problems = [p for p in await verify(store, "run-1") if p.code != "FINAL"]
        assert [p.code for p in problems] == ["PROVENANCE"]


async def test_what_maps_read_from_files_is_among_the_materials(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"n": 1}\n{"n": 2}\n')
    one = scope(code("same", "return {'n': row['n']}", row="input.item"), output={}, inputs=("item",))
    block = MapBlock(jsonl=path("input.file"), template="one", as_="item", item_schema={"type": "object"})
    read = node("read", "map", map=block)
    whole = graph(scope(read, output={}, inputs=("file",), leaf=False), one=one)
    async with Bench() as bench:
        session = await bench.run(whole, {"file": str(tmp_path / "rows.jsonl")})
        assert session.projection()["phase"] == "Succeeded", session.projection()
        log = await bench.log()
    said = orjson.loads(base64.b64decode(log[-1].envelope["provenance"]["payload"]))
    opened = next(record for record in log if record.path == "/read!open")
    dependency = said["predicate"]["buildDefinition"]["resolvedDependencies"][-1]
    assert dependency == {"name": "/read!open", "digest": {"decurion-value-v1": opened.core["delta"]}}

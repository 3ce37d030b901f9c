"""The seal key of a cluster: made once and kept; with it a run with sensitive values runs, and is erased."""

import base64
from pathlib import Path
from typing import Any

import pytest
from test_real_pool import apply_pool, real_pool

from decurion_ledger import Values, erase, find, key_of, open_store, verify
from decurion_ledger.sealing import SealKey
from decurion_operator import Operator, StartError
from decurion_operator.sealing import ENTRY, SECRET

NAME = "Quillfeather"
GRAPH = {
    "sensitive": ["who"],
    "input": {"who": {"type": "string"}},
    "nodes": [{"name": "write", "with": {"who": "input.who"}, "transform": {"text": "'Dear ' + who"}}],
    "output": {"text": "nodes.write.output.text"},
}


async def held(cluster: Any) -> SealKey:
    found = await cluster.get("Secret", SECRET)
    return SealKey.of_text(base64.b64decode(found["data"][ENTRY]).decode(), "f")


async def test_a_run_with_sensitive_values_leaves_nothing_in_clear_but_its_input(
    cluster: Any, operate: Any, tmp_path: Path
) -> None:
    async with real_pool(tmp_path / "ledger") as url, operate():
        await cluster.create("TaskGraph", "letter", spec=GRAPH)
        await apply_pool(cluster, url)
        await cluster.create("TaskGraphRun", "one", spec={"graph": "letter", "input": {"who": NAME}})
        await cluster.until_status("TaskGraphRun", "one", phase="Succeeded", seconds=40)
        run = await cluster.get("TaskGraphRun", "one")
        by = await held(cluster)
        events = await cluster.kubectl("get", "events", "-o", "jsonpath={range .items[*]}{.reason} {.message}{end}")
        again = await held(cluster)
    assert again == by
    assert NAME not in str(run["status"])
    assert "output" not in run["status"]
    assert "SensitiveInput input.who is sensitive" in events
    assert NAME not in events
    uid, store = run["metadata"]["uid"], open_store(str(tmp_path / "ledger"))
    files = [path for path in (tmp_path / "ledger").rglob("*") if path.is_file()]
    assert files
    assert all(NAME.encode() not in path.read_bytes() for path in files)
    record = await find(store, uid, "/write")
    assert record is not None
    assert record.core is not None
    values = Values(store, uid, seal=await key_of(store, uid, by))
    assert await values.unpack(record.envelope, record.core["delta"]) == {"text": f"Dear {NAME}"}
    await erase(store, uid, at="now")
    assert await verify(store, uid) == []


async def test_what_is_no_seal_key_ends_the_start(cluster: Any, settings: Any) -> None:
    await cluster.create("Secret", SECRET, data={ENTRY: base64.b64encode(b"abc").decode()})
    with pytest.raises(StartError, match="holds no seal key"):
        await Operator.start(settings)

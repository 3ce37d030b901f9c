"""A pool whose store fails under a run: the run waits with the reason, is let go, and is opened again later."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from buckets import Bucket, own_bucket
from cluster.process import wait_until
from cluster.s3 import Identity, S3Server
from decurion_ledger import Credentials, open_store, read_log, verify
from dropping import DroppingGateway
from graphs import expr, fan_out, graph, llm, path, scope
from model_server import start_model_server
from pool import Pool

pytestmark = pytest.mark.s3


@pytest.fixture
def bucket(s3_server: S3Server) -> Iterator[Bucket]:
    with own_bucket(s3_server) as made:
        yield made


def asking(endpoint: str) -> Any:
    """A branch for each item, with one call of the model in it."""
    out = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    one = scope(
        llm("ask", "m", q="input.item", output=out), output={"t": path("nodes.ask.output.text")}, inputs=("item",)
    )
    root = scope(
        fan_out("each", "input.items", "one"),
        output={"n": expr('len(nodes["each"]["output"]["items"])', "nodes.each.output.items")},
        inputs=("items",),
        leaf=False,
    )
    return graph(root, llms={"m": {"protocol": "openai", "model": "test", "endpoint": endpoint}}, one=one)


async def test_a_run_whose_credentials_are_revoked_waits_with_the_reason_and_goes_on_later(
    bucket: Bucket, tmp_path: Path
) -> None:
    items = {"items": [f"item {i}" for i in range(60)]}
    pool = Pool(tmp_path, ledger=bucket.uri, env=bucket.env, branches=4)
    with start_model_server(delay=0.2) as model, pool:
        ingress, found = pool.client(), asking(model.endpoint)
        ingress.put_bundle(found)
        ingress.open(found, "r1", items).raise_for_status()
        ingress.follow("r1", until=lambda p: p["committed"] >= 30, timeout=60)
        bucket.grant(Identity(bucket.who.access_key, "another-secret"), works=False)
        shown = ingress.follow("r1", until=lambda p: p["reason"] == "StoreUnavailable", timeout=60)
        wait_until(lambda: ingress.drivers()[0]["runs"] == [], seconds=60, what="the run to be let go")
        waiting = ingress.changes()["runs"]["r1"]
        assert (waiting["phase"], waiting["reason"]) == ("Running", "StoreUnavailable"), shown
        assert "the secret key is not that of the access key" in waiting["message"]
        again = ingress.open(found, "r1", items, epoch=2)
        assert (again.status_code, again.json()["error"]) == (503, "StoreUnavailable")
        log = [record async for _, record in read_log(bucket.opened(), "r1")]
        durable = [record.path for record in log if record.envelope.get("usage")]
        bucket.grant(bucket.who, works=True)
        ingress.open(found, "r1", items, epoch=3).raise_for_status()
        end = ingress.finished("r1")
        ingress.open(found, "r2", items).raise_for_status()
        undisturbed = ingress.finished("r2")
        assert (end["phase"], end["reason"], end["stateHash"]) == ("Succeeded", "", undisturbed["stateHash"])
        assert len(durable) > 0
        log = [record async for _, record in read_log(bucket.opened(), "r1")]
        assert max(Counter(record.path for record in log if record.type == "commit").values()) == 1
        assert await verify(bucket.opened(), "r1") == []


async def test_a_pool_behind_a_gateway_that_drops_conditions_refuses_graphs_and_runs(
    s3_server: S3Server, tmp_path: Path
) -> None:
    uri = s3_server.uri(f"refused-{secrets.token_hex(4)}")
    found = asking("http://127.0.0.1:9/v1")
    with DroppingGateway(s3_server) as gateway:
        env = {**s3_server.env, "AWS_ENDPOINT_URL_S3": gateway.endpoint_url}
        with Pool(tmp_path, ledger=uri, env=env) as pool:
            ingress = pool.client()
            bundle = ingress.call("PUT", f"/bundles/{found.digest}", found.to_json())
            opened = ingress.open(found, "r1", {"items": []})
            for answer in (bundle, opened):
                assert (answer.status_code, answer.json()["error"]) == (503, "StoreRefused")
                assert "If-None-Match is ignored" in answer.json()["message"]
    keys = Credentials(s3_server.access_key, s3_server.secret_key)
    store = open_store(uri, endpoint_url=s3_server.endpoint_url, credentials=keys)
    assert [info.key async for info in store.list("runs/")] == []
    await asyncio.gather(store.aclose())

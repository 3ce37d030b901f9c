"""The root key: made once, published, kept, changed on purpose; drivers are appointed with it."""

import base64
from pathlib import Path
from typing import Any

import httpx
import pytest
from test_real_pool import apply_pool, real_pool

from decurion_ledger import Certificate, SigningKey, examine, open_store, public_keys
from decurion_operator import Operator, StartError
from decurion_operator.appointing import PUBLISHED, SECRET


async def published(cluster: Any) -> tuple[str, ...]:
    found = await cluster.get("ConfigMap", PUBLISHED)
    return public_keys(found["data"]["root.pem"].encode(), "f")


async def held(cluster: Any) -> str:
    found = await cluster.get("Secret", SECRET)
    return SigningKey.from_pem(base64.b64decode(found["data"]["root.key"]), "f").public


async def test_a_run_of_a_cluster_is_signed_and_verified_with_what_the_cluster_publishes(
    cluster: Any, operate: Any, tmp_path: Path
) -> None:
    async with real_pool(tmp_path / "ledger") as url, operate():
        await cluster.set_up_graph()
        await apply_pool(cluster, url)
        await cluster.start("one")
        await cluster.until_status("TaskGraphRun", "one", phase="Succeeded", seconds=40)
        uid = (await cluster.get("TaskGraphRun", "one"))["metadata"]["uid"]
    roots = await published(cluster)
    report = await examine(open_store(str(tmp_path / "ledger")), uid, roots=roots)
    assert (report.problems, report.signature, report.issuers) == ([], "signed", roots)
    other = await examine(open_store(str(tmp_path / "ledger")), uid, roots=[SigningKey.generate().public])
    assert {problem.code for problem in other.problems} == {"CERTIFICATE"}


async def test_the_key_stays_until_its_secret_is_deleted_and_its_public_part_for_ever(
    cluster: Any, operate: Any
) -> None:
    async with operate():
        first = await held(cluster)
        assert await published(cluster) == (first,)
    async with operate():
        assert await held(cluster) == first
    await cluster.delete("Secret", SECRET)
    async with operate():
        second = await held(cluster)
    assert second != first
    assert await published(cluster) == (first, second)
    with pytest.raises(httpx.HTTPStatusError, match="422"):
        await cluster.patch("Secret", SECRET, {"data": {"root.key": "AA=="}})


async def test_a_driver_is_certified_when_it_tells_its_key_and_when_it_is_asked_for_one(
    cluster: Any, pool: Any, operate: Any
) -> None:
    pool.keys = {"driver-0": SigningKey.generate().public}
    async with operate():
        await cluster.set_up(pool)
        await cluster.start("one")
        await cluster.until_status("TaskGraphRun", "one", phase="Running")
        assert pool.count("open") == 2
        pool.shown_keys = pool.keys
        await cluster.start("two")
        await cluster.until_status("TaskGraphRun", "two", phase="Running")
    run = pool.by_name("one")
    [certificate] = map(Certificate.from_json, run.certificates)
    assert certificate.holds()
    assert (certificate.issuer,) == await published(cluster)
    assert (certificate.run, certificate.key, certificate.cluster) == (run.uid, pool.keys["driver-0"], run.cluster)
    assert certificate.leader_epoch == run.epochs[-1]


@pytest.mark.parametrize(
    ("kind", "name", "data", "says"),
    [
        ("Secret", SECRET, {"root.key": base64.b64encode(b"x").decode()}, "holds no Ed25519 private key"),
        ("Secret", SECRET, {"other": ""}, "holds no Ed25519 private key"),
        ("ConfigMap", PUBLISHED, {"root.pem": "x"}, "must hold public keys"),
    ],
)
async def test_what_is_no_key_ends_the_start(
    cluster: Any, settings: Any, kind: str, name: str, data: dict[str, str], says: str
) -> None:
    await cluster.create(kind, name, data=data)
    with pytest.raises(StartError, match=says):
        await Operator.start(settings)

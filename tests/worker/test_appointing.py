"""A driver signs with its key where it was appointed, and writes nothing where it should be and is not."""

import pickle
from dataclasses import replace
from typing import Any

import pytest

from decurion_ledger import Certificate, SigningKey, examine
from decurion_worker.drivers import DriverCalls, open_request
from decurion_worker.errors import BadInput, NotCertified
from decurion_worker.opening import OpenRequest
from graphs import map_reduce
from test_runs import Bench

ROOT = SigningKey.generate()
ITEMS = {"words": ["one", "two"]}


def certificate(bench: Bench, **changes: Any) -> Certificate:
    said: dict[str, Any] = {"cluster": "c", "run": "run-1", "leader_epoch": 3} | changes
    return ROOT.certify(bench.driver.key.public, **said)


def request(appointed: Any, **changes: Any) -> OpenRequest:
    return OpenRequest(
        **{"run": "run-1", "name": "g", "graph": map_reduce(), "input": ITEMS, "leader_epoch": 3} | changes,
        appointed=appointed,
    )


async def signature(bench: Bench) -> tuple[list[Any], str]:
    report = await examine(bench.store, "run-1", roots=[ROOT.public])
    return report.problems, report.signature


@pytest.mark.parametrize("how", ["certificates", "key"])
async def test_a_run_of_an_appointed_driver_is_signed_to_its_end_and_taken_up_by_another_one(how: str) -> None:
    async with Bench() as bench:
        await bench.driver.open_run(request([certificate(bench)] if how == "certificates" else ROOT))
    async with Bench(store=bench.store) as other:
        mine = [bench.driver.key.public, other.driver.key.public]
        both = [ROOT.certify(key, cluster="c", run="run-1", leader_epoch=3) for key in mine]
        session = await other.driver.open_run(request(both if how == "certificates" else ROOT))
        await session.ended.wait()
        assert await signature(other) == ([], "signed")
        assert mine[0] != mine[1]


async def test_without_being_appointed_a_log_is_unsigned() -> None:
    async with Bench() as bench:
        await (await bench.driver.open_run(request(None))).ended.wait()
        assert (await examine(bench.store, "run-1")).signature == "unsigned"


async def test_a_driver_without_its_certificate_writes_nothing_and_names_its_key() -> None:
    async with Bench() as bench:
        other = ROOT.certify(ROOT.public, cluster="c", run="run-1", leader_epoch=3)
        for given in ([], [other]):
            with pytest.raises(NotCertified) as refused:
                await bench.driver.open_run(request(given))
            assert refused.value.key == bench.driver.key.public
            assert pickle.loads(pickle.dumps(refused.value)).key == refused.value.key
        assert [info.key async for info in bench.store.list("runs/")] == []


@pytest.mark.parametrize("change", [{"run": "run-2"}, {"leader_epoch": 4}, {"forged": True}])
async def test_a_certificate_for_something_else_is_refused(change: dict[str, Any]) -> None:
    async with Bench() as bench:
        given = certificate(bench, **{k: v for k, v in change.items() if k != "forged"})
        if "forged" in change:
            given = replace(given, cluster="d")
        with pytest.raises(BadInput, match="certificates"):
            await bench.driver.open_run(request([given]))


async def test_the_key_is_told_and_certificates_are_read_from_a_body() -> None:
    async with Bench() as bench:
        [who] = await DriverCalls(bench.driver).list()
        assert who["key"] == bench.driver.key.public
        mine = certificate(bench)
        body = {"uid": "run-1", "name": "g", "certificates": [mine.to_json()]}
        assert open_request(body).appointed == (mine,)
        assert open_request({"uid": "run-1", "name": "g"}).appointed is None
        with pytest.raises(BadInput, match="not a certificate"):
            open_request({**body, "certificates": [{"run": "run-1"}]})

"""The modes of a WorkerPool: what the model refuses, the API server refuses with the same sentence."""

import json
from typing import Any

import pytest

from cluster.api_server import ApiServer
from cluster.errors import KubectlFailed
from decurion_crds.v1alpha1 import WorkerPool, parse_resource

FOLDER = {"uri": "file:///var/lib/decurion"}
AUTH = {"secretKeyRef": {"name": "pool", "key": "token"}}
LOCAL = {"mode": "Local", "ledger": FOLDER}
BROKEN = {
    "an External pool without its address": ({"mode": "External"}, "needs url"),
    "a Local pool with an address": (LOCAL | {"url": "http://127.0.0.1:1"}, "neither url nor auth"),
    "a Local pool with a token": (LOCAL | {"auth": AUTH}, "neither url nor auth"),
    "a Local pool without a ledger": ({"mode": "Local"}, "needs a ledger that outlives its process"),
    "a Local pool that forgets": ({"mode": "Local", "ledger": {"uri": "memory://x"}}, "outlives its process"),
    "an External pool with keys": (
        {"mode": "External", "url": "http://a", "ledger": {"uri": "s3://b", "region": "eu"}},
        "are for Local pools",
    ),
    "an External pool with certificates": (
        {"mode": "External", "url": "http://a", "ledger": {"uri": "s3://b", "checksum": "md5"}},
        "caBundle of the ledger are for Local",
    ),
}


def pool(spec: Any, name: str = "p") -> dict[str, Any]:
    return {"apiVersion": "decurion.dev/v1alpha1", "kind": "WorkerPool", "metadata": {"name": name}, "spec": spec}


def test_a_local_pool_with_a_store_and_its_keys_round_trips() -> None:
    where = {
        "uri": "s3://b/p",
        "endpointURL": "https://s3",
        "region": "eu",
        "addressing": "virtual",
        "checksum": "none",
        "caBundle": "-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n",
        "credentials": {"secretRef": {"name": "k"}},
    }
    spec = {"mode": "Local", "ledger": where, "runners": {"min": 1, "max": 2}, "maxRunning": 3}
    parsed, findings = parse_resource(pool(spec))
    assert findings == []
    assert isinstance(parsed, WorkerPool)
    assert parsed.spec.to_json() == spec


@pytest.mark.parametrize("name", BROKEN)
def test_the_model_refuses(name: str) -> None:
    spec, sentence = BROKEN[name]
    findings = parse_resource(pool(spec))[1]
    assert [f.path for f in findings] == ["spec"]
    assert sentence in findings[0].message


def test_the_api_server_refuses_with_the_same_sentences(api_server: ApiServer, namespace: str) -> None:
    for spec, sentence in BROKEN.values():
        with pytest.raises(KubectlFailed, match=sentence):
            api_server.kubectl("--namespace", namespace, "apply", "--filename", "-", stdin=json.dumps(pool(spec)))


def test_neither_mode_nor_a_local_ledger_can_be_changed(api_server: ApiServer, namespace: str) -> None:
    def apply(spec: Any) -> str:
        return api_server.kubectl("--namespace", namespace, "apply", "--filename", "-", stdin=json.dumps(pool(spec)))

    apply(LOCAL)
    apply(LOCAL | {"maxRunning": 2})
    with pytest.raises(KubectlFailed, match="mode cannot be changed"):
        apply({"mode": "External", "url": "http://a"})
    with pytest.raises(KubectlFailed, match="cannot be moved"):
        apply(LOCAL | {"ledger": {"uri": "file:///elsewhere"}})

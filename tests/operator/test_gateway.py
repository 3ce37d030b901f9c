"""The calls to the API server, on the real one."""

import base64
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from decurion_operator.errors import Conflict, NotFound, Refused, SecretNotUsable, TooLarge
from decurion_operator.gateway import Gateway
from decurion_operator.metrics import Meter
from decurion_operator.queue import Key


@pytest.fixture
async def gateway(settings: Any) -> AsyncIterator[Gateway]:
    made = await Gateway.connect(replace(settings, page_size=2), Meter())
    yield made
    await made.aclose()


async def run(cluster: Any, name: str, **spec: Any) -> tuple[Key, dict[str, Any]]:
    made = await cluster.create("TaskGraphRun", name, {"graph": "g"} | spec)
    return Key("TaskGraphRun", cluster.namespace, name), made


def phase(value: str) -> list[dict[str, Any]]:
    return [{"op": "add", "path": "/status/phase", "value": value}]


async def test_a_status_is_written_only_on_the_version_that_was_seen(cluster: Any, gateway: Gateway) -> None:
    key, seen = await run(cluster, "one")
    version = seen["metadata"]["resourceVersion"]
    stored = await gateway.patch_status(key, version=version, patch=phase("Queued"))
    assert stored["status"]["phase"] == "Queued"
    with pytest.raises(Conflict):
        await gateway.patch_status(key, version=version, patch=phase("Pending"))
    assert (await gateway.get(key))["status"]["phase"] == "Queued"


async def test_what_the_schema_forbids_is_refused_and_no_conflict(cluster: Any, gateway: Gateway) -> None:
    key, seen = await run(cluster, "one")
    with pytest.raises(Refused, match="phase"):
        await gateway.patch_status(key, version=seen["metadata"]["resourceVersion"], patch=phase("Dreaming"))


async def test_nulls_in_an_output_are_kept_as_they_are(cluster: Any, gateway: Gateway) -> None:
    key, seen = await run(cluster, "one")
    output = {"a": None, "b": [None, {"c": None}]}
    patch = [{"op": "add", "path": "/status/output", "value": output}]
    stored = await gateway.patch_status(key, version=seen["metadata"]["resourceVersion"], patch=patch)
    assert stored["status"]["output"] == output


async def test_a_status_that_the_store_cannot_hold_is_told_as_too_large(cluster: Any, gateway: Gateway) -> None:
    key, seen = await run(cluster, "one", input={"text": "x" * 1_480_000})
    patch = [{"op": "add", "path": "/status/output", "value": "y" * 200_000}]
    with pytest.raises(TooLarge):
        await gateway.patch_status(key, version=seen["metadata"]["resourceVersion"], patch=patch)
    small = await gateway.patch_status(key, version=seen["metadata"]["resourceVersion"], patch=phase("Failed"))
    assert small["status"]["phase"] == "Failed"


async def test_only_the_object_that_was_meant_is_deleted(cluster: Any, gateway: Gateway) -> None:
    key, made = await run(cluster, "one")
    with pytest.raises(Conflict):
        await gateway.delete(key, uid="00000000-0000-0000-0000-000000000000")
    await gateway.delete(key, uid=made["metadata"]["uid"])
    await gateway.delete(key, uid=made["metadata"]["uid"])
    with pytest.raises(NotFound):
        await gateway.get(key)


async def test_lists_are_read_to_their_end_page_by_page(cluster: Any, gateway: Gateway) -> None:
    for n in range(5):
        await run(cluster, f"run-{n}")
    names = [
        item["metadata"]["name"] async for item in gateway.list_objects("TaskGraphRun", namespace=cluster.namespace)
    ]
    versions = [v async for v in gateway.list_versions("TaskGraphRun", namespace=cluster.namespace)]
    assert sorted(names) == sorted(v.key.name for v in versions) == [f"run-{n}" for n in range(5)]
    assert all(v.uid and v.version for v in versions)


async def test_an_empty_list_is_empty(cluster: Any, gateway: Gateway) -> None:
    assert [v async for v in gateway.list_versions("LLM", namespace=cluster.namespace)] == []


async def test_an_event_of_one_name_is_made_once(cluster: Any, gateway: Gateway) -> None:
    key, _ = await run(cluster, "one")
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "one.queued", "namespace": cluster.namespace},
        "involvedObject": {"kind": "TaskGraphRun", "name": "one", "namespace": cluster.namespace},
        "reason": "Queued",
        "type": "Normal",
        "message": "m",
    }
    assert await gateway.create_event(key, event)
    assert not await gateway.create_event(key, event)


async def test_a_secret_without_the_label_is_not_read_and_not_told_from_a_missing_one(
    cluster: Any, gateway: Gateway
) -> None:
    data = {"k": base64.b64encode(b"v").decode(), "binary": base64.b64encode(b"\xff\xfe").decode()}
    await cluster.create("Secret", "plain", data=data)
    await cluster.create("Secret", "usable", data=data, metadata={"labels": {"decurion.dev/use": "true"}})
    assert await gateway.read_secret(cluster.namespace, "usable") == {"k": "v"}
    messages = []
    for name in ("plain", "missing"):
        with pytest.raises(SecretNotUsable) as refused:
            await gateway.read_secret(cluster.namespace, name)
        messages.append(str(refused.value).replace(name, "NAME"))
    assert messages[0] == messages[1]


async def test_no_record_of_a_connection_shows_its_token(cluster: Any, gateway: Gateway) -> None:
    connection = await gateway.connection()
    assert connection.token == cluster.server.token
    assert cluster.server.token not in repr(connection)

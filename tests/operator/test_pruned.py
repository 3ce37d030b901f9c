"""Fields that a client lost without a word: told from the copy that client-side apply leaves."""

import json
from typing import Any

from decurion_operator.pruned import LAST_APPLIED, pruned_fields

NODE = {"name": "a", "code": '{"n": 1}', "output": {"n": {"type": "integer"}}}


def raw(applied: Any, live: Any) -> dict[str, Any]:
    text = json.dumps({"kind": "TaskGraph", "spec": applied})
    return {"metadata": {"name": "g", "annotations": {LAST_APPLIED: text}}, "spec": live}


def test_a_misspelt_field_that_was_dropped_is_named_with_its_remedy() -> None:
    (told,) = pruned_fields("TaskGraph", raw({"nodes": [NODE | {"aftr": ["b"]}]}, {"nodes": [NODE]}))
    assert told.startswith("nodes.a.aftr: ")
    assert 'did you mean "after"?' in told


def test_what_somebody_changed_or_took_out_since_is_not_told() -> None:
    assert pruned_fields("TaskGraph", raw({"nodes": [NODE | {"after": ["b"]}]}, {"nodes": [NODE]})) == ()
    assert pruned_fields("TaskGraph", raw({"nodes": [NODE, NODE]}, {"nodes": [NODE]})) == ()
    assert pruned_fields("TaskGraph", raw({"nodes": [NODE]}, {"nodes": [NODE | {"code": "{}"}]})) == ()


def test_members_that_are_null_and_annotations_that_are_no_objects_say_nothing() -> None:
    assert pruned_fields("TaskGraph", raw({"nodes": [NODE | {"aftr": None}]}, {"nodes": [NODE]})) == ()
    for text in ("", "null", "[]", "{", '{"spec": []}'):
        obj = {"metadata": {"name": "g", "annotations": {LAST_APPLIED: text}}, "spec": {"nodes": [NODE]}}
        assert pruned_fields("TaskGraph", obj) == ()


async def test_a_field_that_kubectl_was_told_not_to_check_becomes_a_warning_until_it_is_mended(
    cluster: Any, pool: Any, operate: Any
) -> None:
    def graph(*more: dict[str, Any]) -> str:
        spec = {
            "nodes": [NODE, {"name": "b", "code": '{"n": 2}', "output": NODE["output"]} | (more[0] if more else {})]
        }
        spec["output"] = {"n": "nodes.b.output.n"}
        kind = {"apiVersion": "decurion.dev/v1alpha1", "kind": "TaskGraph", "metadata": {"name": "g"}}
        return json.dumps({**kind, "spec": spec})

    async with operate():
        await cluster.apply(graph({"aftr": ["a"]}), "--validate=false")
        status = await cluster.until_status("TaskGraph", "g", Warning="True", Ready="True")
        (warning,) = [c for c in status["conditions"] if c["type"] == "Warning"]
        assert warning["reason"] == "UnknownFieldsDropped"
        assert 'nodes.b.aftr: there is no field "aftr" here; did you mean "after"?' in warning["message"]
        await cluster.apply(graph({"after": ["a"]}))
        await cluster.until_status("TaskGraph", "g", Warning="False", Ready="True", observedGeneration=2)

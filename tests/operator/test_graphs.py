"""Graphs and models on the real API server: what is refused is said as `decurion validate` says it, and never runs."""

import copy
import json
from typing import Any

import pytest

from decurion_crds.compile import Checker, compile_graph
from decurion_crds.v1alpha1 import LLM, TaskGraph, parse_resource

INTEGER = {"type": "integer"}


def code(name: str, source: str = '{"n": 1}', **more: Any) -> dict[str, Any]:
    return {"name": name, "code": source, "output": {"n": INTEGER}} | more


def graph(*nodes: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"nodes": list(nodes), "output": {"n": f"nodes.{nodes[-1]['name']}.output.n"}} | more


NOTE = {"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}, "note": {"type": "string"}}}
CHANNEL = {"name": "best", "schema": INTEGER, "initial": 0}

BROKEN: dict[str, tuple[str, dict[str, Any]]] = {
    "cycle": (
        "CYCLE",
        graph(
            code("a", "{'n': x}", **{"with": {"x": "nodes.b.output.n"}}),
            code("b", "{'n': x}", **{"with": {"x": "nodes.a.output.n"}}),
        ),
    ),
    "two-writers": (
        "WRITE-RACE",
        graph(code("a", writes={"best": "output.n"}), code("b", writes={"best": "output.n"}), state=[CHANNEL]),
    ),
    "read-write-race": (
        "READ-RACE",
        graph(
            code("a", writes={"best": "output.n"}),
            code("b", after=["a"], writes={"best": "output.n"}),
            code("c", "{'n': x}", **{"with": {"x": "state.best"}}),
            state=[CHANNEL],
        ),
    ),
    "unknown-field": (
        "EXPR-FIELD",
        graph(code("a", "{'n': len(x)}", **{"with": {"x": "input.doc.idd"}}), input={"doc": NOTE}),
    ),
    "unguarded": (
        "EXPR-NONE",
        graph(code("a", "{'n': len(x)}", **{"with": {"x": "input.doc.note.upper()"}}), input={"doc": NOTE}),
    ),
    "breaks-output": ("OUTPUT-TYPE", graph(code("a", "{'n': 'one'}"))),
}
LLM_SPEC = {"protocol": "scripted", "scripted": {"default": "hello"}}
READER = {
    "input": {"text": {"type": "string"}},
    "nodes": [{"name": "read", "with": {"text": "input.text"}, "llm": {"ref": "fast", "prompt": "Read {{ text }}"}}],
    "output": {"text": "nodes.read.output.text"},
}


def findings(spec: dict[str, Any], **llms: dict[str, Any]) -> list[Any]:
    """What the compiler says of a graph, called as `decurion validate` calls it."""
    base = {"apiVersion": "decurion.dev/v1alpha1", "metadata": {"name": "g", "namespace": "n"}}
    parsed, found = parse_resource(base | {"kind": "TaskGraph", "spec": spec})
    assert isinstance(parsed, TaskGraph), found
    models = {}
    for name, llm in llms.items():
        model, _ = parse_resource(base | {"kind": "LLM", "metadata": {"name": name}, "spec": llm})
        assert isinstance(model, LLM)
        models[name] = model
    with Checker() as checker:
        return list(compile_graph(parsed, llms=models, checker=checker).findings)


def message(status: dict[str, Any], kind: str) -> str:
    return next(str(c["message"]) for c in status["conditions"] if c["type"] == kind)


async def test_what_validate_refuses_gets_a_condition_with_the_same_words_and_never_runs(
    cluster: Any, pool: Any, operate: Any
) -> None:
    async with operate():
        await cluster.create("WorkerPool", "default", {"mode": "External", "url": pool.url})
        for name, (_, spec) in BROKEN.items():
            await cluster.create("TaskGraph", name, spec)
            await cluster.create("TaskGraphRun", name, {"graph": name, "input": {}})
        for name, (expected, spec) in BROKEN.items():
            status = await cluster.until_status("TaskGraph", name, Ready="False", Compiled="False", Stalled="True")
            said = sorted(findings(spec), key=lambda f: f.severity != "error")
            assert said[0].code == expected
            assert message(status, "Ready").startswith(said[0].text())
            assert [(f["code"], f["path"], f["message"]) for f in status["findings"]] == [
                (f.code, f.path, f.message) for f in said
            ]
            run = await cluster.until_status("TaskGraphRun", name, phase="Pending", reason="GraphNotReady")
            assert run["message"] == message(status, "Ready")
        assert pool.count("bundle") == pool.count("open") == 0


async def test_a_graph_whose_llm_is_missing_becomes_ready_when_it_is_applied(
    cluster: Any, pool: Any, operate: Any
) -> None:
    async with operate():
        await cluster.create("WorkerPool", "default", {"mode": "External", "url": pool.url})
        await cluster.create("TaskGraph", "reader", READER)
        await cluster.create("TaskGraphRun", "one", {"graph": "reader", "input": {"text": "t"}})
        status = await cluster.until_status(
            "TaskGraph", "reader", Ready="False", ReferencesResolved="False", Stalled="False"
        )
        missing = findings(READER)[0]
        assert missing.code == "REF-MISSING"
        assert message(status, "Ready") == missing.text()
        await cluster.until_status("TaskGraphRun", "one", phase="Pending", reason="GraphNotReady")
        await cluster.create("LLM", "fast", LLM_SPEC)
        await cluster.until_status("TaskGraph", "reader", Ready="True")
        await cluster.until_status("TaskGraphRun", "one", phase="Running")


async def test_a_graph_waits_for_its_tool_server_and_that_for_its_secret(cluster: Any, pool: Any, operate: Any) -> None:
    secret = {"name": "desk", "key": "token"}
    server = {
        "url": "http://127.0.0.1:9/mcp",
        "headers": [{"name": "X-Key", "valueFrom": {"secretKeyRef": secret}}],
        "tools": [{"name": "look", "policy": {"readOnly": True}}],
    }
    caller = {
        "nodes": [{"name": "act", "tool": {"server": "desk", "name": "look"}}],
        "output": {"said": "nodes.act.output.text"},
    }
    async with operate():
        await cluster.create("WorkerPool", "default", {"mode": "External", "url": pool.url})
        await cluster.create("TaskGraph", "caller", caller)
        status = await cluster.until_status("TaskGraph", "caller", Ready="False", ReferencesResolved="False")
        assert 'there is no MCPServer "desk"' in message(status, "Ready")
        await cluster.create("MCPServer", "desk", server)
        status = await cluster.until_status("MCPServer", "desk", Ready="False", ReferencesResolved="False")
        assert 'Secret "desk"' in message(status, "Ready")
        metadata = {"name": "desk", "labels": {"decurion.dev/use": "true"}}
        await cluster.create("Secret", "desk", metadata=metadata, stringData={"token": "planted-11f0"})
        await cluster.until_status("MCPServer", "desk", Ready="True")
        ready = await cluster.until_status("TaskGraph", "caller", Ready="True")
        await cluster.create("TaskGraphRun", "one", {"graph": "caller"})
        await cluster.until_status("TaskGraphRun", "one", phase="Running")
        assert pool.bundles[ready["digest"]]["servers"]["desk"]["url"] == server["url"]
        assert "planted-11f0" not in json.dumps(pool.bundles)


async def test_a_graph_waits_for_its_agent_and_what_that_names(cluster: Any, operate: Any, until: Any) -> None:
    asker = {
        "nodes": [{"name": "ask", "agent": {"ref": "clerk", "prompt": "Go"}}],
        "output": {"x": "nodes.ask.output.text"},
    }
    server = {"url": "http://127.0.0.1:9/mcp", "tools": [{"name": "look"}]}
    async with operate():
        await cluster.create("TaskGraph", "asker", asker)
        status = await cluster.until_status("TaskGraph", "asker", Ready="False", ReferencesResolved="False")
        assert 'there is no Agent "clerk"' in message(status, "Ready")
        await cluster.create("Agent", "clerk", {"model": "fast", "tools": [{"server": "desk"}]})
        await cluster.until_status("Agent", "clerk", Ready="True")
        await cluster.create("LLM", "fast", LLM_SPEC)
        await cluster.create("MCPServer", "desk", server)
        first = await cluster.until_status("TaskGraph", "asker", Ready="True")
        await cluster.patch("MCPServer", "desk", {"spec": {"tools": [{"name": "look", "description": "Look."}]}})

        async def planned_again() -> bool:
            return bool((await cluster.status("TaskGraph", "asker"))["digest"] != first["digest"])

        await until(planned_again, what="the closure with the changed tool")


async def test_a_changed_llm_makes_another_closure_and_a_deleted_one_is_missed(
    cluster: Any, operate: Any, until: Any
) -> None:
    async with operate():
        await cluster.create("LLM", "fast", LLM_SPEC)
        await cluster.create("TaskGraph", "reader", READER)
        first = await cluster.until_status("TaskGraph", "reader", Ready="True")
        await cluster.patch("LLM", "fast", {"spec": {"parameters": {"temperature": 0.5}}})

        async def planned_again() -> bool:
            return bool((await cluster.status("TaskGraph", "reader"))["digest"] != first["digest"])

        await until(planned_again, what="the closure with the changed LLM")
        await cluster.delete("LLM", "fast")
        await cluster.until_status("TaskGraph", "reader", Ready="False", ReferencesResolved="False")


async def test_a_broken_graph_that_is_mended_becomes_ready(cluster: Any, operate: Any) -> None:
    async with operate():
        await cluster.create("TaskGraph", "g", BROKEN["breaks-output"][1])
        await cluster.until_status("TaskGraph", "g", Ready="False")
        await cluster.patch("TaskGraph", "g", {"spec": graph(code("a"))})
        status = await cluster.until_status("TaskGraph", "g", Ready="True", Stalled="False", observedGeneration=2)
        assert "findings" not in status


async def test_an_override_pins_the_other_llm(cluster: Any, pool: Any, operate: Any) -> None:
    async with operate():
        await cluster.create("WorkerPool", "default", {"mode": "External", "url": pool.url})
        await cluster.create("LLM", "fast", LLM_SPEC)
        await cluster.create("LLM", "other", {"protocol": "scripted", "scripted": {"default": "other"}})
        await cluster.create("TaskGraph", "reader", READER)
        spec = {"graph": "reader", "input": {"text": "t"}, "overrides": {"llms": {"fast": "other"}}}
        await cluster.create("TaskGraphRun", "one", spec)
        status = await cluster.until_status("TaskGraphRun", "one", phase="Running")
        plain = await cluster.until_status("TaskGraph", "reader", Ready="True")
        assert status["graphDigest"] != plain["digest"]
        assert '"other"' in json.dumps(pool.bundles[status["graphDigest"]]["llms"])
        wrong = copy.deepcopy(spec) | {"overrides": {"llms": {"fasst": "other"}}}
        await cluster.create("TaskGraphRun", "typo", wrong)
        waiting = await cluster.until_status("TaskGraphRun", "typo", phase="Pending", reason="GraphNotReady")
        assert '"fasst"' in waiting["message"]


@pytest.mark.parametrize("kind", ["TaskGraph", "LLM"])
async def test_a_spec_beyond_the_limit_is_refused_before_it_is_read(cluster: Any, operate: Any, kind: str) -> None:
    async with operate():
        if kind == "TaskGraph":
            nodes = [code(f"n{k}", f'{{"n": 1}}\n# {"x" * 20_000}') for k in range(6)]
            await cluster.create(kind, "big", graph(*nodes))
        else:
            await cluster.create(kind, "big", LLM_SPEC | {"parameters": {"x": "y" * 120_000}})
        status = await cluster.until_status(kind, "big", Ready="False", Stalled="True")
        assert message(status, "Ready").startswith("[SPEC-TOO-LARGE]")


async def test_a_graph_handed_from_one_manager_to_another_is_the_second_file(cluster: Any, operate: Any) -> None:
    async with operate():
        first = graph(code("a"), code("b", "{'n': x}", **{"with": {"x": "nodes.a.output.n"}}))
        second = graph(code("a2"), code("b", "{'n': x}", **{"with": {"x": "nodes.a2.output.n"}}))
        for manager, spec in (("helm", first), ("argocd", second)):
            body = {
                "apiVersion": "decurion.dev/v1alpha1",
                "kind": "TaskGraph",
                "metadata": {"name": "g", "namespace": cluster.namespace},
                "spec": spec,
            }
            path = cluster.path("TaskGraph", "g") + f"?fieldManager={manager}&force=true"
            await cluster.call("PATCH", path, body, kind="application/apply-patch+yaml")
            await cluster.until_status("TaskGraph", "g", Ready="True")
        assert (await cluster.get("TaskGraph", "g"))["spec"] == second

"""Nodes of kind `tool` against a real MCP server: what they give, what goes wrong, and what never happens twice."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from crashes import Process, cut, new_store, read, sound, until
from decurion_crds.compiled import CompiledGraph
from decurion_ledger.stores import Store
from decurion_worker.session import RunSession
from manifests import compiled
from tool_server import ToolServer, resource

GRAPH = """  input: {query: {type: string}}
  nodes:
    - name: look
      with: {query: input.query}
      tool: {server: tools, name: lookup, arguments: {query: "about {{ query }}", limit: 2}}
    - name: keep
      with: {title: "nodes.look.output.hits[0].title"}
      tool: {server: tools, name: note, arguments: {text: "{{ title }}"}}
    - name: text
      after: [keep]
      tool: {server: tools, name: plain, result: "{'first': raw.value.hits[0].title, 'size': len(raw.text)}"}
      output: {first: {type: string}, size: {type: integer}}
  output: {hits: nodes.look.output.hits, noted: nodes.keep.output.text, text: nodes.text.output}
"""
GIVEN = {"query": "ships"}
OUTPUT = {
    "hits": [{"title": "about ships 0"}, {"title": "about ships 1"}],
    "noted": "noted about ships 0",
    "text": {"first": "from a text", "size": 36},
}


@pytest.fixture
def server() -> Iterator[ToolServer]:
    with ToolServer() as server:
        yield server


def one(block: str, server: ToolServer, *, extra: str = "", spec: str = "") -> CompiledGraph:
    """A graph of one node that calls a tool of `server`."""
    text = f"""  nodes:
    - name: act
      retry: {{transient: 0}}
      tool: {{server: tools, {block}}}
{extra}  output: {{given: nodes.act.output}}
"""
    return compiled(text + resource(server.url).replace("  timeoutSeconds: 5\n", spec or "  timeoutSeconds: 5\n"))


async def ended(graph: CompiledGraph, given: Any = None, *, store: Store | None = None) -> RunSession:
    async with Process(store or new_store()) as process:
        return await process.run(graph, given or {}, seconds=30)


def failure(session: RunSession) -> tuple[str, str, str]:
    found = session.facts.failures[0]
    return found.klass, found.code, found.message


async def test_tools_are_called_and_what_they_give_is_typed(server: ToolServer) -> None:
    store = new_store()
    session = await ended(compiled(GRAPH + resource(server.url)), GIVEN, store=store)
    assert session.engine.output == OUTPUT
    assert session.facts.usage == {"toolCalls": 3}
    assert server.seen[0] == {"query": "about ships", "limit": 2}
    effects = [(r.type, r.path) for r in await sound(store) if r.type.startswith("effect")]
    assert effects == [("effect_intended", "/keep"), ("effect_settled", "/keep")]
    assert len(set(server.keys)) == 3
    assert "" not in server.keys


async def test_the_same_run_has_the_same_state_whoever_serves_the_tools() -> None:
    states = []
    for legacy in (False, True):
        with ToolServer(legacy=legacy) as server:
            session = await ended(compiled(GRAPH + resource(server.url)), GIVEN)
            states.append(session.facts.state_hash)
            assert any("mcp-session-id" in headers for headers in server.headers) is legacy
    assert states[0] == states[1]


@pytest.mark.parametrize("legacy", [False, True])
async def test_a_server_that_was_redeployed_is_connected_to_anew(legacy: bool) -> None:
    with ToolServer(legacy=legacy) as server:
        graph = one("name: note, arguments: {text: t}", server)
        async with Process(new_store()) as process:
            await process.run(graph, {}, run="before")
            server.stop()
            server.start()
            session = await process.run(graph, {}, run="after")
            assert session.engine.output == {"given": {"text": "noted t"}}
        assert server.calls["note"] == 2


async def test_a_server_that_is_away_is_a_transient_failure_and_no_effect_in_doubt(server: ToolServer) -> None:
    graph = one("name: note, arguments: {text: t}", server)
    server.stop()
    store = new_store()
    klass, code, message = failure(await ended(graph, store=store))
    assert (klass, code) == ("Transient", "ToolUnavailable")
    assert server.url in message
    settled = [r for r in await sound(store) if r.type == "effect_settled"]
    assert len(settled) == 1
    assert "answer" not in settled[0].envelope


async def test_a_call_is_repeated_under_its_key_once_the_server_is_back(server: ToolServer) -> None:
    graph = compiled(GRAPH + resource(server.url))
    server.status = 503
    store = new_store()
    async with Process(store) as process:
        session = await process.open(graph, GIVEN)
        await until(lambda: len(server.headers) >= 2, what="the first call")
        server.status = 0
        await asyncio.wait_for(session.ended.wait(), 30)
    assert session.engine.output == OUTPUT
    failed = [r for r in await sound(store) if r.type == "attempt_failed"]
    assert [(r.path, r.envelope["code"], r.envelope["tool"]) for r in failed] == [
        ("/look", "ToolUnavailable", "lookup")
    ]
    assert server.calls["lookup"] == 1


async def test_a_slow_tool_has_its_own_deadline(server: ToolServer) -> None:
    server.lookup_seconds = 30.0
    graph = one("name: lookup, arguments: {query: t}", server, spec="  timeoutSeconds: 0.2\n")
    klass, code, message = failure(await ended(graph))
    assert (klass, code) == ("Transient", "ToolTimeout")
    assert "0.2 s" in message


async def test_an_effect_without_an_answer_is_in_doubt_and_not_repeated(server: ToolServer) -> None:
    server.hang = True
    graph = one("name: note, arguments: {text: t}", server, spec="  timeoutSeconds: 0.5\n")
    klass, code, message = failure(await ended(graph))
    server.hang = False
    assert (klass, code) == ("Terminal", "EffectInDoubt")
    assert "readOnly or idempotent" in message
    assert server.calls["note"] == 1


async def test_a_failure_that_the_tool_reports_can_be_handled(server: ToolServer) -> None:
    klass, code, message = failure(await ended(one("name: fail", server)))
    assert (klass, code) == ("Replannable", "ToolFailed")
    assert "the index is being rebuilt" in message
    extra = "      onFailure: otherwise\n      otherwise: {text: \"'nothing'\"}\n"
    session = await ended(one("name: fail", server, extra=extra))
    assert session.engine.output == {"given": {"text": "nothing"}}


async def test_a_result_that_breaks_the_declared_schema_is_a_violation(server: ToolServer) -> None:
    klass, code, message = failure(await ended(one("name: odd", server)))
    assert (klass, code) == ("Violation", "ToolResultInvalid")
    assert "correct the output in the MCPServer tools" in message


async def test_arguments_that_break_the_schema_are_not_sent(server: ToolServer) -> None:
    extra = '      with: {limit: "parse_json(\'\\"many\\"\')"}\n'
    graph = one('name: lookup, arguments: {query: t, limit: "{{ limit }}"}', server, extra=extra)
    _, code, message = failure(await ended(graph))
    assert code == "ToolArgumentsInvalid"
    assert "limit" in message
    assert not server.calls


async def test_secrets_reach_the_server_and_nothing_else() -> None:
    planted = "s3cret-Token-7f3a"
    with ToolServer(token=planted) as server:
        spec = (
            "  auth: {secretKeyRef: {name: tools, key: token}}\n"
            "  headers: [{name: X-Tenant, value: acme}, "
            "{name: X-Key, valueFrom: {secretKeyRef: {name: tools, key: key}}}]\n"
        )
        graph = one("name: note, arguments: {text: t}", server, spec=spec)
        store = new_store()
        async with Process(store) as process:
            session = await process.open(graph, {})
            process.driver.give_secrets("run-1", {("tools", "token"): planted, ("tools", "key"): "key-91c2"})
            await asyncio.wait_for(session.ended.wait(), 30)
            assert session.engine.output == {"given": {"text": "noted t"}}
            wrong = await process.open(graph, {}, run="wrong")
            process.driver.give_secrets("wrong", {("tools", "token"): "bad-5d1e", ("tools", "key"): "key-91c2"})
            await asyncio.wait_for(wrong.ended.wait(), 30)
        assert server.headers[-1]["x-tenant"] == "acme"
        assert server.headers[-1]["x-key"] == "key-91c2"
        assert failure(wrong)[:2] == ("Terminal", "ToolRefused")
        assert "***" in failure(wrong)[2]
    found = [await store.get(info.key) async for info in store.list("")]
    assert found
    for secret in (planted, "key-91c2", "bad-5d1e"):
        assert not [raw for raw in found if secret.encode() in raw]
        assert secret not in str([await read(store, run) for run in ("run-1", "wrong")])


async def test_a_run_cut_after_any_record_goes_on_without_a_second_effect(server: ToolServer) -> None:
    graph = compiled(GRAPH + resource(server.url))
    store = new_store()
    whole = await ended(graph, GIVEN, store=store)
    log = await read(store)
    kinds = [r.type for r in log if r.type not in ("genesis", "fence", "close")]
    assert kinds.count("effect_intended") == 1
    for records in range(len(kinds) + 1):
        server.calls.clear()
        again = await cut(log, records)
        async for blob in store.list("blobs/"):
            await again.put_new(blob.key, await store.get(blob.key))
        session = await ended(None, store=again)  # type: ignore[arg-type]
        await sound(again)
        before = kinds[:records]
        if before[-1:] == ["effect_intended"]:
            assert failure(session)[1] == "EffectInDoubt"
            assert not server.calls["note"]
        else:
            assert session.facts.state_hash == whole.facts.state_hash
            assert server.calls["note"] == (0 if "effect_intended" in before else 1)

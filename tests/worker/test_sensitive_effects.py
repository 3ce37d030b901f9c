"""Sensitive values in calls of tools, questions to people and `finally`: what the log holds of them."""

import asyncio
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from crashes import body, cut, new_store, sound
from decurion_ledger import Seal, Values
from decurion_worker.approving import Answer
from decurion_worker.link import Alive, Key, Outbox, Secrets
from decurion_worker.rehearsal import rehearse
from manifests import compiled
from test_sensitive import BY, SECRET, copy_keys, in_clear, process
from tool_server import ToolServer, resource

SPEC = """  sensitive: [patient]
  input: {patient: {type: string}}
  nodes:
    - name: keep
      with: {who: input.patient}
      tool: {server: tools, name: note, arguments: {text: "{{ who }}"}}
    - name: more
      with: {who: input.patient}
      tool: {server: tools, name: note, arguments: {text: "{{ who }}"}}
    - name: ok
      sensitive: false
      with: {text: nodes.keep.output.text}
      approval: {message: "Shall we go on?"}
    - name: after
      with: {ok: nodes.ok.output.approved, text: nodes.keep.output.text}
      transform: {text: text if ok else ''}
  output: {ok: nodes.ok.output.approved, size: "len(input.patient)"}
  finally:
    - name: clean
      with: {text: nodes.after.output}
      transform: {text: "str(text)"}
"""


@pytest.fixture(scope="module")
def server() -> Iterator[ToolServer]:
    with ToolServer() as server:
        yield server


async def seen_through(store: Any, compiled_graph: Any, given: Any, *, epoch: int = 0) -> Any:
    async with process(store) as one:
        session = await one.open(compiled_graph, given, epoch=epoch)
        async with asyncio.timeout(60):
            while not session.ended.is_set():
                for asked in list(session.engine.approvals.pending()):
                    answer = Answer(f"a-{epoch}", asked.request, asked.digest, "Approve", by="ada")
                    await session.answer(answer)
                await asyncio.sleep(0.005)
        return session


async def test_calls_questions_and_finally_leave_nothing_in_clear_and_nothing_is_called_twice(
    server: ToolServer,
) -> None:
    graph = compiled(SPEC + resource(server.url))
    store = new_store()
    session = await seen_through(store, graph, {"patient": SECRET})
    assert session.engine.closed == "succeeded", session.facts.failures
    assert await in_clear(store) == []
    assert "output" not in session.projection()
    log = await sound(store)
    effects = [r for r in log if r.type.startswith("effect_")]
    assert {r.path for r in effects} == {"/keep", "/more"}
    assert all("sealed" in held for r in effects for held in r.envelope["values"].values())
    values = Values(store, "run-1", seal=session.seal)
    intended = next(r for r in effects if r.path == "/keep")
    assert await values.unpack(intended.envelope, intended.envelope["arguments"]) == {"text": SECRET}
    called = len(server.keys)
    done = next(i for i, r in enumerate(body(log)) if r.type == "effect_settled" and r.path == "/keep")
    other = await cut(log, done + 1, blobs=store)
    await copy_keys(store, other)
    again = await seen_through(other, None, None, epoch=1)
    assert again.engine.closed == "succeeded"
    assert again.facts.state_hash
    assert await in_clear(other) == []
    assert len(server.keys) - called <= 1


async def test_a_node_with_something_sensitive_is_tested_alone(server: ToolServer) -> None:
    graph = compiled(SPEC + resource(server.url))
    outcome = await rehearse(graph, "after", {"ok": True, "text": "x"})
    assert (outcome.status, outcome.output) == ("ok", {"text": "x"})


def test_the_key_travels_to_runners_and_is_in_no_repr() -> None:
    key = Key("r", Seal(b"k" * 32))
    assert pickle.loads(pickle.dumps(key)) == key
    assert "kkk" not in repr(key)
    assert BY.to_text()[:16] not in repr(BY)


async def test_keys_and_secrets_go_to_runners_in_calls_of_their_own() -> None:
    """A large call between processes is kept as an object, which may be written to a disk."""
    calls: list[list[Any]] = []

    async def send(seq: int, messages: list[Any]) -> bool:
        assert seq == len(calls) + 1
        calls.append(messages)
        return True

    outbox = Outbox(send, on_broken=lambda why: None)
    key, secrets, alive = Key("r", Seal(b"k" * 32)), Secrets("r", {("a", "b"): "c"}), Alive()
    outbox.put(alive, key, alive, alive, secrets, key, alive)
    await outbox.flush()
    assert calls == [[alive], [key], [alive, alive], [secrets], [key], [alive]]

"""Agents whose tools are graphs that are handed out, when something breaks them off: a race, a failure beside, a time
that is up, a cancel, a lost runner, an effect in doubt; and what a retry and a fork take of them.
"""

from __future__ import annotations

from typing import Any

import pytest

from crashes import RUN, Fragile, Process, body, cut, new_store, results, sound, until
from decurion_crds.compiled import CompiledGraph
from decurion_ledger import Record
from decurion_ledger.patience import Patience
from decurion_ledger.stores import Store
from decurion_worker.earlier import Earlier, read_earlier
from decurion_worker.link import WorkItem
from decurion_worker.runner import RunnerSettings
from decurion_worker.session import RunSession
from manifests import compiled
from test_agent_graphs import ALONE, ASK, GRAPH, MAP, MIND, ONCE, OUT, agents, to_its_end, yes
from test_earlier import AGAIN, again, taken
from tool_server import ToolServer, resource

LATE = """  nodes:
    - name: ask
      agent: {model: mind, tools: [{graph: spread}], prompt: Ask}
    - name: go
      approval: {message: "Go on without?"}
    - name: bad
      with: {ok: nodes.go.output.approved}
      code: "1 // (0 if ok else 1)"
      output: {type: integer}
  output: {text: nodes.ask.output.text, count: nodes.bad.output}
"""
RACE = """  nodes:
    - name: ask
      agent: {model: mind, tools: [{graph: spread}], prompt: Ask}
    - name: go
      approval: {message: "Go on without?"}
    - name: first
      join: {mode: any}
      after: [ask, go]
      transform: {text: "'first'"}
  output: {text: nodes.first.output.text}
"""
WITHIN = """  nodes:
    - name: all
      timeoutSeconds: 0.3
      onFailure: otherwise
      otherwise: {text: "'too late'"}
      graph: {template: asking}
  output: {text: nodes.all.output.text}
  templates:
    - name: asking
      nodes:
        - name: ask
          agent: {model: mind, tools: [{graph: spread}], prompt: Ask}
      output: {text: nodes.ask.output.text}
"""
FIRST_MAP = MAP + ASK.replace("with: {words: input.words}", "after: [each]\n      with: {words: input.words}")
"""A map, and then people are asked: there are branches and a join below the call when it is broken off."""


def by_hand(graph: str, *, nodes: str = FIRST_MAP, script: str = ONCE) -> CompiledGraph:
    return agents(graph, script, nodes=nodes)


async def asked_all(session: RunSession, *paths: str) -> None:
    def pending() -> bool:
        return {one.path for one in session.engine.approvals.pending()} == set(paths)

    await until(lambda: pending() or session.ended.is_set(), what=f"requests at {paths}")
    assert not session.ended.is_set(), session.projection()


async def only(session: RunSession, path: str) -> None:
    """Answer the request at `path` alone."""
    pending = [one.path for one in session.engine.approvals.pending()]
    verdict = await session.answer(yes(session)[pending.index(path)])
    assert verdict.accepted, verdict


async def run_over(graph: CompiledGraph | None, store: Store) -> RunSession:
    """A run whose people decide at `/go` alone, and only once the agent's tool asks too."""
    async with Process(store) as process:
        session = await process.open(graph, {})
        if session.engine.approvals.at("/go") is not None or graph is not None:
            await asked_all(session, "/ask#turn-0001.01/ok", "/go")
            await only(session, "/go")
        await until(session.ended.is_set, what="the end of the run")
    return session


async def cuts_of(log: list[Record], blobs: Store, *, first: str) -> None:
    """Every run of the log, cut behind the record at `first` or later, comes to the same end."""
    begin = next(i for i, record in enumerate(body(log), 1) if record.path == first and record.type == "approval_given")
    for records in range(begin, len(body(log)) + 1):
        again = await cut(log, records, blobs=blobs)
        async with Process(again) as process:
            session = await process.run(None)
        after = await sound(again)
        assert set(results(after)) == set(results(log)), body(log)[records - 1]
        assert session.engine.closed == ("failed" if log[-1].envelope["outcome"] == "failed" else "succeeded")


@pytest.mark.parametrize(("graph", "outcome"), [(RACE, "succeeded"), (LATE, "failed")])
async def test_an_agent_that_waits_for_a_tool_is_given_up_with_all_that_the_tool_did(graph: str, outcome: str) -> None:
    store = new_store()
    session = await run_over(by_hand(graph), store)
    log = await sound(store)
    assert session.engine.closed == outcome
    assert any(r.path == "/ask#turn-0001.01/each!join" for r in log)
    kept = [path for path, _ in session.engine.leaves() if path.startswith("/ask")]
    if outcome == "succeeded":
        assert session.engine.output == {"text": "first"}
        assert kept == ["/ask"]
        assert next(r.type for r in log if r.path == "/ask") == "skip"
    else:
        # What the call did is as it was; its end says that it was given up.
        assert "/ask#turn-0001.01!output" in kept
        assert session.facts.failures[0].path == "/bad"
    await cuts_of(log, store, first="/go")


async def test_the_time_of_what_an_agent_is_in_ends_the_graphs_that_are_its_tools() -> None:
    store = new_store()
    async with Process(store) as process:
        session = await process.run(by_hand(WITHIN), {})
    assert session.engine.output == {"text": "too late"}
    log = await sound(store)
    assert [r.path for r in log if r.type == "timer_fired"] == ["/all"]
    assert [path for path, _ in session.engine.leaves() if "#" in path] == []


async def test_a_failure_waits_for_nobody_whom_a_tool_asks() -> None:
    graph = """  nodes:
    - name: all
      onFailure: otherwise
      otherwise: {text: "'rescued'"}
      graph: {template: both}
  output: {text: nodes.all.output.text}
  templates:
    - name: both
      nodes:
        - name: ask
          agent: {model: mind, tools: [{graph: spread}], prompt: Ask}
        - name: bad
          code: "1 // 0"
          output: {type: integer}
      output: {text: nodes.ask.output.text}
"""
    store = new_store()
    async with Process(store) as process:
        session = await process.run(by_hand(graph), {})
    assert session.engine.output == {"text": "rescued"}
    await sound(store)


@pytest.mark.parametrize("form", ["Cancel", "Stop"])
async def test_a_run_that_waits_inside_a_tool_is_cancelled(form: Any) -> None:
    store = new_store()
    async with Process(store) as process:
        session = await process.open(by_hand(ALONE), {})
        await asked_all(session, "/ask#turn-0001.01/ok")
        session.cancel(form)
        await until(session.ended.is_set, what="the end of the run")
    assert session.engine.closed == "cancelled"
    (row,) = session.projection()["nodes"]
    assert row["phase"] == "Cancelled"
    await sound(store)


async def test_a_suspended_run_goes_on_inside_a_tool_when_it_is_resumed() -> None:
    store = new_store()
    async with Process(store) as process:
        session = await process.open(by_hand(ALONE), {})
        await asked_all(session, "/ask#turn-0001.01/ok")
        session.suspend(True)
        await until(lambda: session.engine.suspended, what="a suspended run")
        await only(session, "/ask#turn-0001.01/ok")
        assert process.driver.load == 0
        session.suspend(False)
        await until(session.ended.is_set, what="the end of the run")
    assert session.engine.output == {"text": "three"}
    await sound(store)


async def test_an_agent_that_loses_its_runners_while_a_tool_works_fails_with_what_that_did() -> None:
    """Twice when it is offered, then while another call of the turn has no answer and the first graph asks people."""
    slow = """---
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: quick}
spec:
  input: {word: {type: string}}
  nodes: [{name: read, llm: {ref: never, prompt: Say}, timeoutSeconds: 3000}]
  output: {said: nodes.read.output.text}
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: never}
spec: {protocol: scripted, scripted: {replies: [{match: Say, reply: x, delaySeconds: 1800}]}}
"""
    script = "      - calls: [{tool: spread, arguments: {words: [a, b]}}, {tool: quick, arguments: {word: b}}]\n"
    ask = """        - name: ok
          when: input.word == "b"
          approval: {message: "{{ 'b' }}?"}
"""
    out = OUT.replace("        - name: count\n", ask + "        - name: count\n")
    nodes = MAP.replace("concurrency: 1", "concurrency: 2")
    graph = compiled(ALONE + GRAPH + nodes + out + slow + MIND + script)

    def kills(item: WorkItem) -> bool:
        return item.node == "ask" and fragile.deaths < 2

    fragile = Fragile(RunnerSettings(branches=4, processes=1), kills=kills)
    store = new_store()
    # What is under suspicion stands alone on its runner: another one works on the graph.
    async with Process(store, executor=fragile, runners=2) as process:
        session = await process.open(graph, {})
        await asked_all(session, "/ask#turn-0001.01/each[00001]/ok")
        fragile.kill(next(lease.runner for lease in session.leases.values() if lease.key == "/ask"))
        await until(session.ended.is_set, what="the end of the run")
    assert session.engine.closed == "failed"
    assert session.facts.failures[0].code == "RunnerLost"
    assert [path for path, _ in session.engine.leaves()] == ["/ask"]
    log = await sound(store)
    assert {"/ask#turn-0001.01/each[00000]!output", "/ask#turn-0001.01/each[00001]/ok!open"} < results(log).keys()
    again = await cut(log, len(body(log)), blobs=store)
    async with Process(again) as process:
        after = await process.run(None)
    assert after.facts.state_hash == session.facts.state_hash


async def test_an_effect_in_doubt_beside_a_graph_fails_the_agent_when_that_has_ended() -> None:
    with ToolServer() as server:
        graph = compiled(
            ALONE.replace("{graph: quick}", "{server: tools, allow: [note]}")
            + GRAPH
            + MAP
            + OUT
            + resource(server.url)
            + MIND
            + "      - calls: [{tool: note, arguments: {text: b}}, {tool: spread, arguments: {words: [a]}}]\n"
        )
        store = new_store()
        async with Process(store) as process:
            session = await process.open(graph, {})
            await until(lambda: bool(server.calls), what="the call of the tool")
        log = await sound(store)
        intended = next(i for i, r in enumerate(body(log), 1) if r.type == "effect_intended")
        again = await cut(log, intended, blobs=store)
        async with Process(again) as process:
            session = await process.run(None)
        assert session.facts.failures[0].code == "EffectInDoubt"
        assert "/ask#turn-0001.02!output" in results(await sound(again))
        assert [path for path, _ in session.engine.leaves()] == ["/ask"]


async def test_a_retry_takes_an_agent_with_its_calls_and_a_fork_inside_one_runs_the_agent_again() -> None:
    graph = agents(LATE, ONCE)
    store = new_store()
    async with Process(store) as process:
        session = await to_its_end(await process.open(graph, {}))
    assert session.engine.closed == "failed"
    log = await sound(store)
    below = {p for p in results(log) if p.startswith("/ask")}
    earlier = await read_earlier(store, Earlier(RUN, "retry"), patience=Patience())
    assert earlier.taking(graph, {}).paths >= below
    fork = await read_earlier(store, Earlier(RUN, "fork", "/ask#turn-0001.01/each[00000]"), patience=Patience())
    assert not {p for p in fork.taking(graph, {}).paths if p.startswith("/ask")}
    session = await again(store, Earlier(RUN, "retry"))
    after = await sound(store, AGAIN)
    assert taken(after).keys() >= below
    assert session.engine.closed == "failed"
    assert {p: r for p, r in session.engine.leaves() if p in below} == {
        p: r.core_hash for r in log if (p := r.path) in below and r.core is not None and "]" not in p
    }

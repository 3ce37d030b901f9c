"""Graphs with maps, approvals and joins as tools of agents: handed out by the driver, while the agent is nobody's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from crashes import Fragile, Process, body, cut, new_store, results, sound, until
from decurion_crds.compiled import CompiledGraph
from decurion_ledger import Record
from decurion_ledger.stores import Store
from decurion_worker.approving import Answer
from decurion_worker.link import WorkItem
from decurion_worker.runner import RunnerSettings
from decurion_worker.session import RunSession
from manifests import compiled

MIND = """---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: mind}
spec:
  protocol: scripted
  scripted:
    replies:
"""
GRAPH = """---
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: spread}
spec:
  input: {words: {type: array, items: {type: string}}}
  nodes:
"""
MAP = """    - name: each
      map: {items: input.words, as: word, template: one, concurrency: 1}
"""
ASK = """    - name: ok
      with: {words: input.words}
      approval: {message: "Spread {{ words }}?"}
"""
OUT = """  output: {letters: "sum([one.letters for one in nodes.each.output.items])"}
  templates:
    - name: one
      input: {word: {type: string}}
      nodes:
        - name: count
          with: {word: input.word}
          transform: {letters: len(word)}
      output: {letters: nodes.count.output.letters}
"""
QUICK = """---
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: quick}
spec:
  input: {word: {type: string}}
  nodes:
    - name: loud
      with: {word: input.word}
      transform: {said: word.upper()}
  output: {said: nodes.loud.output.said}
"""
ONCE = """      - match: Ask
        calls: [{tool: spread, arguments: {words: [a, bc]}}]
      - match: '"letters":3'
        calls: [{tool: finish, arguments: {text: three}}]
"""
TWO_TURNS = """      - match: Ask
        calls:
          - {tool: spread, arguments: {words: [a, bc]}}
          - {tool: quick, arguments: {word: hey}}
          - {tool: spread, arguments: {words: [abcd]}}
      - match: '"letters":4'
        calls: [{tool: spread, arguments: {words: []}}]
      - match: '"letters":0'
        calls: [{tool: finish, arguments: {text: done}}]
"""
ALONE = """  nodes:
    - name: ask
      agent: {model: mind, tools: [{graph: spread}, {graph: quick}], prompt: Ask}
  output: {text: nodes.ask.output.text}
"""
SIDE_BY_SIDE = """  nodes:
    - name: many
      map: {items: "[1, 2]", as: nth, template: asking, concurrency: 1}
  output: {texts: "[one.text for one in nodes.many.output.items]"}
  templates:
    - name: asking
      input: {nth: {type: integer}}
      nodes:
        - name: ask
          agent: {model: mind, tools: [{graph: spread}, {graph: quick}], prompt: Ask}
      output: {text: nodes.ask.output.text}
"""


def agents(graph: str = ALONE, script: str = TWO_TURNS, *, nodes: str = MAP, out: str = OUT) -> CompiledGraph:
    """A graph around an agent whose tools are a graph of these nodes, and one that is leaf."""
    return compiled(graph + GRAPH + nodes + out + QUICK + MIND + script)


def yes(session: RunSession, by: str = "alice") -> list[Answer]:
    pending = list(session.engine.approvals.pending())
    return [Answer(f"{one.request}-{by}", one.request, one.digest, "Approve", by) for one in pending]


async def to_its_end(session: RunSession, answers: Callable[[RunSession], list[Answer]] = yes) -> RunSession:
    """See a run to its end, and answer all that it asks when it waits for nothing else."""
    async with asyncio.timeout(60):
        while not session.ended.is_set():
            await until(lambda: session.engine.awaiting or session.ended.is_set(), what="a run that waits, or its end")
            for answer in () if session.ended.is_set() else answers(session):
                await session.answer(answer)
    return session


async def ended(graph: CompiledGraph | None, *, store: Store | None = None, branches: int = 1) -> RunSession:
    """A run on one runner that holds so many items at once."""
    runner = RunnerSettings(branches=branches, processes=1)
    async with Process(store or new_store(), runner=runner) as process:
        return await to_its_end(await process.open(graph, {}))


async def every_cut(graph: CompiledGraph, *, step: int = 1, same: bool = True) -> tuple[RunSession, list[Record]]:
    """The whole run and its log; runs of that log, cut after every `step` records, come to the same end and do nothing
    durable again. (`hack/soak` cuts such graphs after every record.) What people decided has a time: then the states
    differ.
    """
    store = new_store()
    whole = await ended(graph, store=store)
    log = await sound(store)
    for records in range(0, len(body(log)) + 1, step):
        again = await cut(log, records, blobs=store)
        session = await ended(None, store=again, branches=(1, 64)[records // step % 2])
        assert session.engine.output == whole.engine.output, body(log)[records - 1 :][:1]
        after = await sound(again)
        assert not same or session.facts.state_hash == whole.facts.state_hash, body(log)[:records]
        assert set(results(after)) == set(results(log))
        turns = [r.path for r in after if r.type == "turn"]
        assert len(turns) == len(set(turns))
    return whole, log


async def test_an_agent_whose_tool_is_a_graph_with_a_map_ends_under_concurrency_one() -> None:
    store = new_store()
    graph = agents(SIDE_BY_SIDE, ONCE)
    assert not graph.root.leaf
    offered: list[str] = []

    def note(item: WorkItem) -> bool:
        offered.append(item.node)
        return False

    executor = Fragile(RunnerSettings(branches=1, processes=1), kills=note)
    async with Process(store, executor=executor) as process:
        session = await process.run(graph, {})
    assert session.engine.output == {"texts": ["three", "three"]}
    assert offered.count("ask") == 4  # each of the two until its call, and from the end of that
    log = await sound(store)
    for branch in ("00000", "00001"):
        call = f"/many[{branch}]/ask#turn-0001.01"
        inside = {p.removeprefix(call) for p in results(log) if p.startswith(call)}
        arms = {f"/each[{i:05d}]{end}" for i in range(2) for end in ("/count", "!output")}
        assert inside == {"!open", "/each!open", "/each!join", "!output"} | arms
    end = next(r for r in log if r.path == "/many[00000]/ask")
    assert end.core is not None
    assert [p for p, _ in end.core["parents"] if "#" in p] == ["/many[00000]/ask#turn-0001.01!output"]


async def test_calls_of_a_turn_are_handed_out_side_by_side_and_told_in_their_order_at_every_cut() -> None:
    whole, log = await every_cut(agents(), step=3)
    assert whole.engine.output == {"text": "done"}
    assert [r.path for r in log if r.type == "turn"] == [f"/ask#turn-000{i}" for i in (1, 2, 3)]
    opened = [(r.path, r.core["tool"]) for r in log if r.core is not None and "tool" in r.core]
    assert opened == [
        ("/ask#turn-0001.01!open", "spread"),
        ("/ask#turn-0001.02!open", "quick"),
        ("/ask#turn-0001.03!open", "spread"),
        ("/ask#turn-0002.01!open", "spread"),
    ]
    # With one slot nothing of the graphs runs before the agent is given back: it opens all that it wants first.
    paths = [r.path for r in log]
    assert paths.index("/ask#turn-0001.03!open") < paths.index("/ask#turn-0001.01/each!open")


async def test_people_are_asked_inside_a_tool_while_the_agent_holds_nothing() -> None:
    store = new_store()
    graph = agents(SIDE_BY_SIDE, ONCE, nodes=ASK + MAP)
    async with Process(store, runner=RunnerSettings(branches=1, processes=1)) as process:
        session = await process.open(graph, {})
        await until(lambda: session.engine.awaiting, what="a run that waits for people")
        assert process.driver.load == 0
        shown = session.projection()
        # Both: what waits for people leaves its place in the map to another.
        assert [one["node"] for one in shown["approvals"]] == [f"/many[{i:05d}]/ask#turn-0001.01/ok" for i in range(2)]
        assert (shown["nodes"][0]["phase"], shown["nodes"][0]["waiting"]) == ("Waiting", 2)
        await to_its_end(session)
    assert session.engine.output == {"texts": ["three", "three"]}
    # The graph has no time of its own, and least of all that of one call of the model.
    assert [r.path for r in await sound(store) if r.type == "timer_set"] == []


async def test_a_run_that_asks_inside_a_tool_is_resumed_at_every_record() -> None:
    whole, _ = await every_cut(agents(ALONE, ONCE, nodes=ASK + MAP), step=3, same=False)
    assert whole.engine.output == {"text": "three"}


async def test_a_rejection_is_told_to_the_agent_and_fails_nothing() -> None:
    script = (
        ONCE
        + """      - match: Rejected
        calls: [{tool: finish, arguments: {text: they said no}}]
"""
    )

    def no(session: RunSession) -> list[Answer]:
        return [replace(one, decision="Reject") for one in yes(session)]

    store = new_store()
    async with Process(store) as process:
        session = await to_its_end(await process.open(agents(ALONE, script, nodes=ASK + MAP), {}), no)
    assert session.engine.output == {"text": "they said no"}
    assert session.projection()["failures"] == []
    await sound(store)


NESTED = """  nodes:
    - name: ask
      agent: {model: mind, tools: [{graph: crowd}], prompt: Ask}
  output: {text: nodes.ask.output.text}
---
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: crowd}
spec:
  input: {topic: {type: string}}
  nodes:
    - name: lead
      with: {topic: input.topic}
      agent: {model: mind, tools: [{graph: spread}, {graph: quick}], prompt: "Lead {{ topic }}"}
    - name: each
      map: {items: "['x', 'y']", as: word, template: helper, concurrency: 1}
  output: {texts: "[nodes.lead.output.text] + [one.text for one in nodes.each.output.items]"}
  templates:
    - name: helper
      input: {word: {type: string}}
      nodes:
        - name: ask
          with: {word: input.word}
          agent: {model: mind, tools: [{graph: quick}], prompt: "Help {{ word }}"}
      output: {text: nodes.ask.output.text}
"""
HELP = """      - match: Ask
        calls: [{tool: crowd, arguments: {topic: ships}}]
      - match: Lead
        calls: [{tool: spread, arguments: {words: [a, bc]}}, {tool: quick, arguments: {word: lead}}]
      - match: Help
        calls: [{tool: quick, arguments: {word: hey}}]
      - match: HEY
        calls: [{tool: finish, arguments: {text: helped}}]
      - match: LEAD
        calls: [{tool: finish, arguments: {text: led}}]
      - match: helped
        calls: [{tool: finish, arguments: {text: all done}}]
"""


async def test_agents_inside_the_tools_of_agents_go_on_where_they_were_at_every_cut() -> None:
    whole, log = await every_cut(agents(NESTED, HELP), step=5)
    assert whole.engine.output == {"text": "all done"}
    turns = [r.path for r in log if r.type == "turn"]
    inner = "/ask#turn-0001.01"
    assert sorted(turns) == sorted(
        [f"{at}#turn-000{i}" for at in ("/ask", f"{inner}/lead") for i in (1, 2)]
        + [f"{inner}/each[0000{n}]/ask#turn-000{i}" for n in (0, 1) for i in (1, 2)]
    )


async def test_of_what_fails_in_a_tool_the_first_in_the_file_is_told() -> None:
    nodes = """    - name: first
      after: [each]
      code: "1 // 0"
      output: {type: integer}
    - name: second
      code: "1 // 0"
      output: {type: integer}
"""
    script = """      - match: Ask
        calls: [{tool: spread, arguments: {words: [a, bc]}}]
      - match: "01/first "
        calls: [{tool: finish, arguments: {text: first}}]
"""
    session = await ended(agents(ALONE, script, nodes=nodes + MAP), branches=64)
    assert session.engine.output == {"text": "first"}

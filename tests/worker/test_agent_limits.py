"""Limits of agents: each ends the agent with a reason of its own, after one more turn in which it may finish."""

from __future__ import annotations

from typing import Any

import pytest

from crashes import body, cut, new_store, sound
from decurion_crds.compiled import CompiledGraph
from decurion_ledger import Record
from decurion_worker.session import RunSession
from manifests import compiled
from test_limits_used_up import ended, every_cut, stops

SPEC = """  nodes:
    - name: ask
      agent: {model: mind, tools: [{template: spell}], prompt: Ask, limits: LIMITS}
NODE  output: {text: nodes.ask.output.text}
  templates:
    - name: spell
      input: {word: {type: string}}
      nodes:
        - name: read
          with: {word: input.word}
          llm: {ref: reader, prompt: "{{ word }}"}
MORE      output: {text: "OUT"}
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: reader}
spec: {protocol: scripted, price: {inputPerMillion: 1, outputPerMillion: 1}, scripted: {default: {text: LONG}}}
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: mind}
spec:
  protocol: scripted
  price: {inputPerMillion: 1, outputPerMillion: 1}
  scripted:
    replies:
      LANDS- {match: /^Ask/, calls: [{tool: spell, arguments: {word: a}}, {tool: spell, arguments: {word: b}}]}
      - {calls: [{tool: spell, arguments: {word: c}}]}
"""
LANDS = """- {match: last turn, calls: [{tool: finish, arguments: {text: landed}}]}
      """
WALLS = """        - name: shape
          with: {texts: "[nodes.read.output.text]"}
          transform: {rows: texts}
          output: {rows: {type: array, items: {type: string}}}
        - name: each
          map: {items: nodes.shape.output.rows, as: one, template: cut}
"""
CUT = """    - name: cut
      input: {one: {type: string}}
      nodes: [{name: short, with: {one: input.one}, transform: {text: "one[:3]"}}]
      output: {text: nodes.short.output.text}
"""


def agent(limits: str, *, lands: bool = True, node: str = "", long: str = "ok", walls: bool = False) -> CompiledGraph:
    text = SPEC.replace("LIMITS", limits).replace("LANDS", LANDS if lands else "").replace("NODE", node)
    text = text.replace("LONG", long).replace("MORE", WALLS if walls else "")
    text = text.replace("OUT", "nodes.each.output.items[0].text" if walls else "nodes.read.output.text")
    return compiled(text.replace("---\n", CUT + "---\n", 1) if walls else text)


@pytest.mark.parametrize(
    ("limits", "code", "turns"),
    [
        ("{tokens: 40}", "TokenLimit", 2),
        ('{costUSD: "0.00004"}', "CostLimit", 2),
        ("{toolCalls: 2}", "ToolCallLimit", 2),
        ("{steps: 2}", "StepLimit", 3),
        ("{seconds: 0.000001}", "SecondsLimit", 2),
    ],
)
async def test_each_limit_gives_one_more_turn_and_is_a_reason_of_its_own(limits: str, code: str, turns: int) -> None:
    store = new_store()
    session = await ended(agent(limits, lands=False), store=store)
    assert (session.facts.failures[0].klass, session.facts.reason) == ("BudgetExceeded", code)
    asked = [r.path for r in await sound(store) if r.type == "turn"]
    assert asked == [f"/ask#turn-{i:04d}" for i in range(1, turns + 1)]
    landed = await ended(agent(limits))
    assert landed.engine.output == {"text": "landed"}


async def ending_at_every_cut(found: CompiledGraph) -> tuple[RunSession, list[Record]]:
    """A run, and again from each of its records: with the same end, whatever its tools did before that."""
    store = new_store()
    whole = await ended(found, store=store)
    log = await sound(store)
    for records in range(len(body(log)) + 1):
        there = await cut(log, records, blobs=store)
        again = await ended(None, store=there)
        await sound(there)
        assert (again.engine.output, again.facts.state_hash) == (whole.engine.output, whole.facts.state_hash), records
    return whole, log


async def test_calls_beyond_the_limit_are_not_made_at_any_cut() -> None:
    whole, log = await every_cut(agent("{toolCalls: 1}"), step=2)
    assert whole.engine.output == {"text": "landed"}
    assert whole.facts.usage["toolCalls"] == 1
    assert [r.path for r in log if r.type == "scope_opened"] == ["/ask#turn-0001.01!open"]


async def test_limits_of_its_node_hold_for_an_agent_too() -> None:
    session = await ended(agent("{steps: 9}", lands=False, node="      limits: {tokens: 40}\n"))
    assert session.facts.reason == "TokenLimit"


@pytest.mark.parametrize("walls", [False, True], ids=["on its runner", "handed out"])
async def test_an_agent_whose_tools_use_up_its_limit_is_broken_off_at_every_cut(walls: bool) -> None:
    """Its own turns stay far below it."""
    found = agent(
        "{tokens: 500}",
        long="word " * 500,
        walls=walls,
        node="      onFailure: otherwise\n      otherwise: {text: \"'none'\"}\n",
    )
    assert not found.root.leaf
    session, log = await ending_at_every_cut(found)
    assert [stop[:3] for stop in stops(log)] == [("/ask", "node", "tokens")]
    assert session.engine.output == {"text": "none"}
    (end,) = [r for r in log if r.path == "/ask" and r.core is not None]
    outcome: Any = end.core and end.core["outcome"]
    assert outcome == {"failed": {"class": "BudgetExceeded", "code": "TokenLimit"}}
    assert [r.path for r in log if r.type == "turn"] == ["/ask#turn-0001"]

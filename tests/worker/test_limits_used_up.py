"""Limits of runs, templates and nodes: what is used counts for all around it, and what uses them up is broken off."""

from __future__ import annotations

from typing import Any

import pytest

from crashes import Process, body, cut, new_store, results, sound
from decurion_crds.compiled import CompiledGraph
from decurion_ledger import Record, Store, read_log
from decurion_ledger.stores.memory import MemoryStore
from decurion_worker.session import RunSession
from decurion_worker.spending import counted
from manifests import compiled
from test_times_of_leaves import cut as part
from test_times_of_leaves import ended as driven
from test_times_of_leaves import request
from virtual_time import in_virtual_time

MODEL = """---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: m}
spec:
  protocol: scripted
  price: {inputPerMillion: 1, outputPerMillion: "2.5"}
  scripted:
    replies:
      - {match: /^long/, reply: LONG}
    default: {text: ok}
""".replace("LONG", repr({"text": "word " * 400}))
CHAIN = """  limits: {steps: 2}
  nodes:
    - name: first
      llm: {ref: m, prompt: first}
    - name: second
      after: [first]
      llm: {ref: m, prompt: second}
    - name: third
      after: [second]
      llm: {ref: m, prompt: third}
  output: {text: nodes.third.output.text}
  finally:
    - name: tell
      with: {why: "run.failure.code if run.failure else ''"}
      transform: {why: why}
      output: {why: {type: string}}
    - name: ask
      after: [tell]
      llm: {ref: m, prompt: again}
"""
ITEMS = """  input: {words: {type: array, items: {type: string}}}
  limits: {tokens: 100k, costUSD: 1}
  nodes:
    - name: each
      limits: {steps: 9}
      map: {items: input.words, as: word, template: one, tolerate: {count: 9}}
    - name: count
      with: {bad: nodes.each.output.failures}
      transform: {failed: len(bad)}
  output: {items: nodes.each.output.items, failures: nodes.each.output.failures, failed: nodes.count.output.failed}
  templates:
    - name: one
      limits: {tokens: 300}
      input: {word: {type: string}}
      nodes:
        - name: read
          with: {word: input.word}
          llm: {ref: m, prompt: "{{ word }}"}
        - name: again
          with: {word: nodes.read.output.text}
          llm: {ref: m, prompt: "then {{ word }}"}
      output: {text: nodes.again.output.text}
      finally:
        - name: tell
          with: {why: "run.failure.code if run.failure else ''"}
          transform: {why: why}
          output: {why: {type: string}}
"""
WORDS = {"words": ["short", "long", "other"]}


async def ended(found: CompiledGraph | None, given: Any = None, *, store: Store | None = None) -> RunSession:
    async with Process(store or new_store()) as process:
        return await process.run(found, given, epoch=1 if found is None else 0)


async def every_cut(found: CompiledGraph, given: Any = None, *, step: int = 1) -> tuple[RunSession, list[Record]]:
    """A run to its end, and again from each of its records: the same results and the same state."""
    store = new_store()
    whole = await ended(found, given, store=store)
    log = await sound(store)
    for records in range(0, len(body(log)) + 1, step):
        there = await cut(log, records, blobs=store)
        again = await ended(None, store=there)
        at = f"cut after {records} records"
        assert again.facts.state_hash == whole.facts.state_hash, at
        assert again.facts.reason == whole.facts.reason, at
        assert results(await sound(there)) == results(log), at
    return whole, log


def value(log: list[Record], path: str) -> Any:
    record = next(r for r in log if r.path == path and r.core is not None)
    assert record.core is not None
    return record.envelope["values"][record.core["delta"]]["inline"]


def stops(log: list[Record]) -> list[tuple[str, str, str, int]]:
    return [(r.path, r.envelope["of"], r.envelope["limit"], r.envelope["most"]) for r in log if r.type == "budget"]


async def test_what_nothing_is_left_for_does_not_begin_and_the_run_fails_with_its_finally_at_every_cut() -> None:
    whole, log = await every_cut(compiled(CHAIN + MODEL))
    assert (whole.engine.closed, whole.facts.reason) == ("failed", "StepLimit")
    assert "2 answers of models" in whole.facts.message
    assert stops(log) == [("/", "run", "steps", 2)]
    paths = {r.path for r in log if r.core is not None}
    assert "/third" not in paths
    assert value(log, "/finally/tell") == {"why": "StepLimit"}
    # It has a budget of its own: what the run may use is used up, and it asks all the same.
    assert "/finally/ask" in paths
    shown = whole.projection()
    assert (shown["usage"]["calls"], shown["limits"]) == (3, {"steps": 2})
    assert whole.engine.budget == {"tokens": 12, "nanoUSD": 24_000, "steps": 2, "toolCalls": 0}


async def test_what_is_used_above_a_limit_ends_a_run_whatever_is_left_to_do() -> None:
    text = CHAIN.replace("steps: 2", "tokens: 3").partition("  finally")[0]
    session = await ended(compiled(text + MODEL))
    assert (session.engine.closed, session.facts.reason) == ("failed", "TokenLimit")
    assert session.facts.usage["calls"] == 1


async def test_costs_follow_from_prices() -> None:
    text = CHAIN.replace("steps: 2", 'costUSD: "0.00001"').partition("  finally")[0]
    session = await ended(compiled(text + MODEL))
    assert session.facts.reason == "CostLimit"
    usage = session.projection()["usage"]
    assert usage["costUSD"] == "0.000012"
    assert "0.000012 dollars were used, and limits.costUSD allows 0.00001" in session.facts.message


async def test_an_item_that_uses_up_the_limit_of_its_template_fails_alone_at_every_cut() -> None:
    whole, log = await every_cut(compiled(ITEMS + MODEL), WORDS, step=4)
    output: Any = whole.engine.output
    assert (len(output["items"]), output["failed"]) == (2, 1)
    assert output["failures"] == [{"index": 1, "node": "each", "class": "BudgetExceeded", "error": "TokenLimit"}]
    assert [stop[:3] for stop in stops(log)] == [("/each[00001]", "scope", "tokens")]
    assert value(log, "/each[00001]/finally/tell") == {"why": "TokenLimit"}
    assert "/each[00001]/again" not in {r.path for r in log}
    used = [counted(r.envelope["usage"]) for r in log if r.envelope.get("usage")]
    assert whole.engine.budget["tokens"] == sum(one["tokens"] for one in used)
    assert len(used) == 5


async def test_a_node_that_uses_up_its_limit_fails_with_all_that_it_runs() -> None:
    text = ITEMS.replace("limits: {steps: 9}", "limits: {steps: 3}\n      onFailure: skip")
    text = text.replace("each.output.failures", "each.output").replace("len(bad)", "len(bad.failures) if bad else -1")
    text = text.replace("output: {items: nodes.each.output.items, failures: nodes.each.output, ", "output: {")
    found = compiled(text + MODEL)
    session = await ended(found, WORDS)
    log = session.projection()
    assert {n["name"]: n["phase"] for n in log["nodes"]}["each"] == "Skipped"
    assert [f["class"] for f in log["failures"] if f["path"] == "/each"] == ["StepLimit"]


LOOP = """  nodes:
    - name: refine
      limits: {steps: 5}
      onFailure: otherwise
      otherwise: {text: "'as it was'", iterations: "0"}
      loop: {template: round, maxIterations: 9, onExhausted: succeed}
    - name: other
      after: [refine]
      graph: {ref: lookup}
  output: {text: nodes.refine.output.text, other: nodes.other.output.text}
  templates:
    - name: round
      nodes:
        - name: draft
          llm: {ref: m, prompt: draft}
        - name: critique
          after: [draft]
          llm: {ref: m, prompt: critique}
      output: {text: nodes.critique.output.text}
---
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: lookup}
spec:
  limits: {steps: 1}
  nodes:
    - name: one
      llm: {ref: m, prompt: one}
    - name: two
      after: [one]
      onFailure: skip
      llm: {ref: m, prompt: two}
  output: {text: nodes.one.output.text}
"""


async def test_a_loop_ends_with_its_budget_and_a_graph_that_another_runs_has_its_own() -> None:
    store = new_store()
    session = await ended(compiled(LOOP + MODEL), store=store)
    log = await sound(store)
    assert [stop[:3] for stop in stops(log)] == [("/refine", "node", "steps"), ("/other", "scope", "steps")]
    assert value(log, "/refine!otherwise") == {"text": "as it was", "iterations": 0}
    assert (session.engine.closed, session.facts.reason) == ("failed", "StepLimit")
    assert session.facts.message.startswith("/other: 1 answers")
    assert session.facts.usage["calls"] == 6


async def test_an_answer_that_is_wrong_is_not_repaired_beyond_the_limit_of_its_node() -> None:
    text = """  nodes:
    - name: ask
      limits: {steps: 2}
      retry: {repair: 9}
      llm: {ref: m, prompt: wrong}
      output: {topic: {enum: [a, b]}}
  output: {topic: nodes.ask.output.topic}
"""
    whole, log = await every_cut(compiled(text + MODEL))
    assert (whole.facts.reason, whole.facts.usage["calls"]) == ("StepLimit", 2)
    assert [r.envelope["code"] for r in log if r.type == "attempt_failed"] == ["OutputInvalid", "OutputInvalid"]


@pytest.mark.parametrize(
    "body",
    [
        "map: {items: '[1, 2]', template: slow, tolerate: {count: 2}}",
        "loop: {template: slow, maxIterations: 2, onExhausted: succeed}",
    ],
)
async def test_the_time_of_a_template_is_that_of_each_item_and_round(body: str) -> None:
    text = f"""  nodes:
    - name: many
      {body}
      onFailure: skip
  output: {{out: nodes.many.output}}
  templates:
    - name: slow
      limits: {{seconds: 0.05}}
      {"input: {item: {type: integer}}" if "map" in body else ""}
      nodes:
        - name: ask
          llm: {{ref: sleepy, prompt: x}}
      output: {{text: nodes.ask.output.text}}
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {{name: sleepy}}
spec: {{protocol: scripted, scripted: {{replies: [{{reply: {{text: late}}, delaySeconds: 30}}]}}}}
"""
    store = new_store()
    session = await ended(compiled(text), store=store)
    log = await sound(store)
    failed = [
        r.path
        for r in log
        if r.core is not None and r.core["outcome"] == {"failed": {"class": "Terminal", "code": "TimedOut"}}
    ]
    assert sorted(path for path in failed if path.endswith("!output")) in (
        ["/many[00000]!output", "/many[00001]!output"],
        ["/many@001!output"],
    )
    assert session.engine.closed == "succeeded"


STOPPED = """  nodes:
    - name: many
      limits: {tokens: 1}
      map: {items: "[0, 1]", as: k, template: one}
      onFailure: skip
  output: {out: nodes.many.output}
  templates:
    - name: one
      input: {k: {type: integer}}
      nodes:
        - name: ask
          with: {k: input.k}
          llm: {ref: slow, prompt: "item {{ k }}"}
      output: {text: nodes.ask.output.text}
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: slow}
spec:
  protocol: scripted
  scripted: {replies: [{match: item 0, error: ModelRefused}, {reply: '{"text": "x"}', delaySeconds: 1}]}
"""


def test_a_limit_that_is_used_up_by_the_rest_of_a_map_that_has_failed_is_replayed() -> None:
    """One item has failed before anything of the other is in the log: a replay, for which that is not in work, sees an
    end.
    """
    store = MemoryStore()

    async def whole() -> list[Record]:
        session = await driven(store, later=0.0, request=request(graph=compiled(STOPPED), input={}))
        assert session.engine.output == {"out": None}
        return [record async for _, record in read_log(store, "run")]

    log = in_virtual_time(whole())
    paths = [record.path for record in log if record.type not in ("genesis", "fence", "close")]
    assert [stop[:3] for stop in stops(log)] == [("/many", "node", "tokens")]
    assert paths.index("/many[00000]!output") < paths.index("/many") < paths.index("/many[00001]!output")
    for path in paths:
        other = MemoryStore()

        async def resumed(path: str = path, other: MemoryStore = other) -> RunSession:
            await part(store, other, after=path)
            return await driven(other, later=0.0, request=request(leader_epoch=1))

        session = in_virtual_time(resumed())
        assert (session.why, session.engine.output) == ("", {"out": None}), path

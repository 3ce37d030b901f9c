"""A new plan of an agent whose approach failed, and errors that are not tried again."""

from __future__ import annotations

from typing import Any

import pytest

from crashes import Process, body, cut, new_store, sound
from decurion_crds.v1alpha1.taskgraph import RetriedError
from decurion_ledger import Record
from decurion_worker import errors
from manifests import compiled

SPEC = """
  nodes:
    - name: ask
      agent: {model: talker, prompt: Find it}
      RETRY
      output: {found: {type: string}}
  output: {found: nodes.ask.output.found}
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: talker}
spec:
  protocol: scripted
  scripted:
    replies:
      - {match: was tried before, calls: [{tool: finish, arguments: {found: here}}]}
      - {reply: I cannot}
"""
GIVEN_UP = 3
"""Turns after which an agent that only talks has given up: two are nudged."""


def spec(retry: str = "") -> str:
    return SPEC.replace("RETRY", f"retry: {retry}" if retry else "description: x")


async def run(text: str) -> tuple[dict[str, Any], list[Record]]:
    store = new_store()
    async with Process(store) as process:
        session = await process.run(compiled(text), {})
    return {**session.projection(), "output": session.engine.output}, await sound(store)


def turns(log: list[Record]) -> int:
    return sum(record.type == "turn" for record in log)


async def test_an_agent_that_gave_up_begins_anew_and_is_told_why() -> None:
    shown, log = await run(spec())
    assert shown["output"] == {"found": "here"}
    assert turns(log) == GIVEN_UP + 1, "the second plan begins where the first one ended"
    (failed,) = [record for record in log if record.type == "attempt_failed"]
    assert (failed.path, failed.envelope["class"], failed.envelope["code"]) == ("/ask", "Replannable", "AgentGaveUp")
    assert [record.path for record in log if record.type == "turn"][-1] == "/ask#turn-0004"


@pytest.mark.parametrize("retry", ["{replan: 0}", "{errors: [Transient]}", "{errors: [FailuresInRow, OutputInvalid]}"])
async def test_it_does_not_where_that_is_not_to_be(retry: str) -> None:
    shown, log = await run(spec(retry))
    assert (shown["phase"], turns(log)) == ("Failed", GIVEN_UP)
    assert shown["failures"][0]["class"] == "AgentGaveUp"


@pytest.mark.parametrize("retry", ["{replan: 1, errors: [AgentGaveUp]}", "{errors: [Replannable]}"])
async def test_an_error_may_be_named_by_its_code_or_its_class(retry: str) -> None:
    shown, _ = await run(spec(retry))
    assert shown["phase"] == "Succeeded"


async def test_the_limits_of_an_agent_are_those_of_all_its_plans() -> None:
    shown, log = await run(spec().replace("prompt: Find it", f"prompt: Find it, limits: {{steps: {GIVEN_UP}}}"))
    assert (shown["failures"][0]["class"], turns(log)) == ("AgentGaveUp", GIVEN_UP)


async def test_a_plan_that_is_cut_off_goes_on_with_the_same_answers() -> None:
    """At each record: no model is asked again for a turn that is in the log."""
    store = new_store()
    async with Process(store) as process:
        whole = await process.run(compiled(spec()), {})
    log = await sound(store)
    for records in range(len(body(log))):
        again = await cut(log, records, blobs=store)
        async with Process(again) as process:
            session = await process.run(None, epoch=1)
        assert session.facts.state_hash == whole.facts.state_hash, records
        assert turns(await sound(again)) == GIVEN_UP + 1, records


LLM = """
  nodes:
    - name: ask
      llm: {ref: flaky, prompt: Say}
      retry: {transient: 2, repair: 1, errors: [ERROR]}
      output: {topic: {enum: [bill]}}
  output: {topic: nodes.ask.output.topic}
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: flaky}
spec: {protocol: scripted, scripted: {replies: [{FIRST}, {reply: {topic: bill}}]}}
"""


@pytest.mark.parametrize(
    ("first", "error", "phase"),
    [
        ("times: 1, error: RateLimited", "RateLimited", "Succeeded"),
        ("times: 1, error: RateLimited", "OutputInvalid", "Failed"),
        ("match: /^Say$/, reply: {topic: other}", "Repairable", "Succeeded"),
        ("match: /^Say$/, reply: {topic: other}", "Transient", "Failed"),
    ],
)
async def test_only_errors_that_are_named_are_tried_again(first: str, error: str, phase: str) -> None:
    shown, _ = await run(LLM.replace("FIRST", first).replace("ERROR", error))
    assert shown["phase"] == phase


def test_the_errors_that_may_be_named_are_those_after_which_there_is_another_try() -> None:
    def below(kind: type[errors.WorkError]) -> set[str]:
        return {kind.code}.union(*(below(sub) for sub in kind.__subclasses__()))

    tried = below(errors.Transient) | below(errors.Repairable) | below(errors.Replannable)
    # A failure of a tool, and its arguments, are told to the model of an agent, and are final elsewhere.
    assert set(RetriedError.__args__) == tried - {"ToolFailed", "ToolArgumentsInvalid"}

"""An LLM that cannot answer, and the one that stands in for it: when it is asked, what it costs, what records say."""

from __future__ import annotations

from typing import Any

import pytest

from crashes import Process, body, cut, new_store, read, sound
from decurion_crds.compiled import CompiledGraph
from decurion_ledger import Record
from decurion_worker.errors import ModelRefused, ModelUnavailable, WorkError
from decurion_worker.models import ChatRequest, ChatResponse, Usage
from decurion_worker.nodes import asking
from manifests import compiled
from test_runs import done

ASK = """  nodes:
    - name: ask
      retry: {transient: 0}
      llm: {ref: first, prompt: "Say yes"}
      output: {sure: {type: boolean}}
  output: {sure: nodes.ask.output.sure}
"""
YES = "default: {sure: true}"


def llm(name: str, script: str, more: str = "") -> str:
    spec = f"protocol: scripted, scripted: {{{script}}}{more}"
    return f"---\napiVersion: decurion.dev/v1alpha1\nkind: LLM\nmetadata: {{name: {name}}}\nspec: {{{spec}}}\n"


def fails(error: str) -> str:
    return f"replies: [{{error: {error}}}]"


def only(log: list[Record], path: str, type: str = "commit") -> Record:
    (found,) = [record for record in log if (record.path, record.type) == (path, type)]
    return found


@pytest.mark.parametrize("error", ["ModelUnavailable", "RateLimited", "ModelTimeout"])
async def test_what_a_server_cannot_do_another_does(error: str) -> None:
    spec = ASK + llm("first", fails(error), ", fallback: second") + llm("second", YES)
    session, log = await done(compiled(spec), {})
    assert session.engine.output == {"sure": True}
    answered, failed = only(log, "/ask").envelope, only(log, "/ask", "attempt_failed").envelope
    assert (answered["model"], answered["fallback"]) == ("second", "second")
    assert (failed["code"], failed["model"], "fallback" in failed) == (error, "first", False)


@pytest.mark.parametrize(
    ("script", "code"),
    [
        (fails("ModelRefused"), "ModelRefused"),
        (fails("OutputTruncated"), "OutputTruncated"),
        ("default: never", "OutputInvalid"),
        ("replies: [{match: nothing, reply: x}]", "ModelRefused"),
    ],
)
async def test_what_is_wrong_with_the_question_or_the_answer_is_asked_of_nobody_else(script: str, code: str) -> None:
    session, log = await done(compiled(ASK + llm("first", script, ", fallback: second") + llm("second", YES)), {})
    assert session.facts.failures[0].code == code
    assert "fallback" not in only(log, "/ask").envelope


async def test_the_last_of_a_chain_says_why_none_answers() -> None:
    chain = llm("first", fails("ModelUnavailable"), ", fallback: second")
    chain += llm("second", fails("RateLimited"), ", fallback: third")
    session, log = await done(compiled(ASK + chain + llm("third", fails("ModelTimeout"))), {})
    failure = session.facts.failures[0]
    assert (failure.code, "LLM third" in failure.message) == ("ModelTimeout", True)
    failed = [(r.envelope["code"], r.envelope.get("fallback")) for r in log if r.type == "attempt_failed"]
    assert failed == [("ModelUnavailable", None), ("RateLimited", "second")]
    session, log = await done(compiled(ASK + chain + llm("third", YES)), {})
    assert only(log, "/ask").envelope["fallback"] == "third"
    assert session.engine.output == {"sure": True}


async def test_tries_are_used_up_first_and_each_model_has_its_own() -> None:
    """The first answers its second try, so nobody else is asked; the second has a try after its own failure."""
    spec = ASK.replace("transient: 0", "transient: 1")
    once = "replies: [{error: ModelUnavailable, times: 1}], " + YES
    _, log = await done(compiled(spec + llm("first", once, ", fallback: second") + llm("second", YES)), {})
    assert "fallback" not in only(log, "/ask").envelope
    away = llm("first", fails("ModelUnavailable"), ", fallback: second") + llm("second", once)
    _, log = await done(compiled(spec + away), {})
    assert only(log, "/ask").envelope["fallback"] == "second"
    assert [r.envelope["model"] for r in log if r.type == "attempt_failed"] == ["first", "first", "second"]


async def test_who_has_answered_is_asked_for_the_rest_of_the_node() -> None:
    """An answer that breaks the schema goes back to the model that gave it."""
    mends = "replies: [{match: not accepted, reply: {sure: true}}], default: {sure: perhaps}"
    spec = ASK + llm("first", fails("ModelUnavailable"), ", fallback: second") + llm("second", mends)
    session, log = await done(compiled(spec), {})
    assert session.engine.output == {"sure": True}
    assert [r.envelope["code"] for r in log if r.type == "attempt_failed"] == ["ModelUnavailable", "OutputInvalid"]


async def test_the_price_is_that_of_the_model_that_answered() -> None:
    dear, cheap = '", outputPerMillion: "0"}', '", outputPerMillion: "0"}'
    first = llm("first", fails("RateLimited"), f', fallback: second, price: {{inputPerMillion: "1000{dear}')
    second = llm("second", YES, f', price: {{inputPerMillion: "2{cheap}')
    session, _ = await done(compiled("  limits: {costUSD: 1}\n" + ASK + first + second), {})
    usage = session.facts.usage
    assert usage["nanoUSD"] == usage["inputTokens"] * 2_000
    assert usage["calls"] == 1


AGENT = """  nodes:
    - name: find
      retry: {transient: 0}
      agent:
        model: first
        tools: [{template: double}]
        prompt: "Begin"
      output: {k: {type: integer}}
  output: {k: nodes.find.output.k}
  templates:
    - name: double
      input: {k: {type: integer}}
      nodes: [{name: twice, with: {k: input.k}, transform: {k: k * 2}}]
      output: {k: nodes.twice.output.k}
"""
SECOND = """replies: [
  {match: '"k":8', calls: [{tool: finish, arguments: {k: 8}}]},
  {match: '"k":4', calls: [{tool: double, arguments: {k: 4}}]}]"""
FIRST = "replies: [{match: Begin, calls: [{tool: double, arguments: {k: 2}}]}, {error: ModelUnavailable}]"


async def test_an_agent_goes_on_with_the_model_of_its_last_turn_whoever_takes_it_over() -> None:
    graph = compiled(AGENT + llm("first", FIRST, ", fallback: second") + llm("second", SECOND))
    store = new_store()
    async with Process(store) as process:
        whole = await process.run(graph, {}, seconds=60)
    assert whole.engine.output == {"k": 8}
    log = await read(store)
    assert [r.envelope.get("fallback") for r in log if r.type == "turn"] == [None, "second", "second"]
    assert only(log, "/find").envelope["fallback"] == "second"
    for records in range(len(body(log)) + 1):
        again = await cut(log, records)
        async with Process(again) as process:
            session = await process.run(None, {}, seconds=60)
        after = await sound(again)
        assert session.facts.state_hash == whole.facts.state_hash
        assert [r.envelope.get("fallback") for r in after if r.type == "turn"] == [None, "second", "second"]
        assert only(after, "/find").envelope["fallback"] == "second"


class Recorded:
    """A model that fails with `error`, or answers, and keeps what it was asked."""

    def __init__(self, error: WorkError | None = None) -> None:
        self.error = error
        self.asked: list[ChatRequest] = []

    async def chat(self, request: ChatRequest) -> ChatResponse:
        self.asked.append(request)
        if self.error is not None:
            raise self.error
        return ChatResponse('{"sure": true}', Usage())


async def execution(models: dict[str, Recorded]) -> Any:
    """An execution of `/ask` whose models are those given."""
    from decurion_worker.context import Execution

    class Context:
        graph: CompiledGraph = compiled(
            ASK
            + llm("first", YES, ", fallback: second, parameters: {temperature: 1, seed: 1}")
            + llm("second", YES, ", parameters: {temperature: 2, top_p: 1}")
        )

        async def model(self, name: str) -> Recorded:
            return models[name]

    context: Any = Context()
    journal: Any = None
    return Execution(context, "/ask", context.graph.root.by_name["ask"], journal, llm="first")


async def test_an_account_that_is_used_up_is_no_fault_of_the_question() -> None:
    for status, falls in ((402, True), (400, False), (401, False), (None, False)):
        models = {"first": Recorded(ModelRefused("no", status=status)), "second": Recorded()}
        request = ChatRequest((), None, {}, 1.0, "key")
        if falls:
            assert (await asking.ask(await execution(models), request)).text == '{"sure": true}'
        else:
            with pytest.raises(ModelRefused):
                await asking.ask(await execution(models), request)
        assert len(models["second"].asked) == int(falls)


async def test_each_model_has_its_own_parameters_and_its_own_key() -> None:
    models = {"first": Recorded(ModelUnavailable("away")), "second": Recorded()}
    asked = await execution(models)
    await asking.ask(asked, ChatRequest((), None, {"temperature": 0}, 1.0, "key"))
    (one,), (other,) = models["first"].asked, models["second"].asked
    assert one.parameters == {"temperature": 0, "seed": 1}
    assert other.parameters == {"temperature": 0, "top_p": 1}
    assert one.idempotency_key == "key" != other.idempotency_key
    again = {"first": Recorded(ModelUnavailable("away")), "second": Recorded()}
    await asking.ask(await execution(again), ChatRequest((), None, {"temperature": 0}, 1.0, "key"))
    assert again["second"].asked[0].idempotency_key == other.idempotency_key

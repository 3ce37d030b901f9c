"""Runs that wait for people: what is asked, who may answer, and what the answer makes of the node."""

from __future__ import annotations

from typing import Any

import pytest

from crashes import RUN, Process, body, cut, new_store, read, results, sound, until
from decurion_crds.compiled import CompiledGraph
from decurion_ledger import Record
from decurion_worker.approving import Answer
from decurion_worker.session import RunSession
from manifests import compiled

ONE = """
  input: {{amount: {{type: integer}}}}
  state: [{{name: log, schema: {{type: array, items: {{type: string}}}}, merge: append}}]
  nodes:
    - name: review
      with: {{amount: input.amount}}
      approval: {{message: "Pay {{{{ amount }}}}?", {block}}}
      {more}
    - name: pay
      with: {{found: nodes.review.output}}
      transform: {{$value: "found.approved if found is not None else False"}}
  output: {{paid: nodes.pay.output, log: state.log}}
"""
FORM = "form: {account: {type: string}, part: {type: integer}}"
WRITES = "writes: {log: \"[output.by or 'nobody']\"}"


def one(block: str = "", more: str = "") -> CompiledGraph:
    return compiled(ONE.format(block=block, more=more))


def answer(session: RunSession, by: str = "alice", **changes: Any) -> Answer:
    """An answer to the first request of a run, an approval unless it is changed."""
    (asked, *_) = session.engine.approvals.pending()
    given: dict[str, Any] = {"request": asked.request, "digest": asked.digest, "decision": "Approve", "by": by}
    return Answer(**{"id": f"answer-of-{by}", **given, **changes})


async def waiting(session: RunSession) -> None:
    await until(lambda: session.engine.awaiting or session.ended.is_set(), what="a run that waits for people")
    assert session.engine.awaiting, session.projection()


async def ended(process: Process, session: RunSession) -> dict[str, Any]:
    await until(session.ended.is_set, what="the end of the run")
    return session.projection()


async def test_a_run_asks_shows_what_it_asks_and_goes_on_with_the_answer() -> None:
    store = new_store()
    async with Process(store) as process:
        session = await process.open(one(FORM, WRITES), {"amount": 7})
        await waiting(session)
        assert process.driver.load == 0
        shown = session.projection()
        assert (shown["phase"], shown["reason"], shown["pendingApprovals"]) == ("Running", "AwaitingApproval", 1)
        assert shown["nodes"][0]["phase"] == "Waiting"
        (pending,) = shown["approvals"]
        assert (pending["node"], pending["message"]) == ("/review", "Pay 7?")
        form = {"account": "A1", "part": 3}
        verdict = await session.answer(answer(session, form=form, comment="fine", name="first"))
        assert verdict.accepted
        end = await ended(process, session)
        assert end["output"] == {"paid": True, "log": ["alice"]}
        assert "approvals" not in end
    log = await sound(store)
    asked, given = (next(r for r in log if r.type == f"approval_{kind}") for kind in ("requested", "given"))
    assert (asked.path, given.path) == ("/review!open", "/review")
    assert asked.core is not None
    assert given.envelope["digest"] == asked.core["delta"] == pending["digest"]
    assert given.envelope | {"by": "alice", "form": form, "comment": "fine", "approval": "first"} == given.envelope


@pytest.mark.parametrize(
    ("block", "more", "decision", "phase", "code"),
    [
        ("", "", "Reject", "Failed", "Rejected"),
        ("onReject: continue", "", "Reject", "Succeeded", ""),
        ("", "onFailure: skip", "Reject", "Succeeded", ""),
        ("", "onFailure: otherwise\n      otherwise: {approved: 'False'}", "Reject", "Succeeded", ""),
    ],
)
async def test_a_rejection_fails_the_node_unless_it_says_otherwise(
    block: str, more: str, decision: Any, phase: str, code: str
) -> None:
    store = new_store()
    async with Process(store) as process:
        session = await process.open(one(block, more), {"amount": 7})
        await waiting(session)
        assert (await session.answer(answer(session, decision=decision, comment="too much"))).accepted
        end = await ended(process, session)
    assert (end["phase"], end["reason"]) == (phase, code)
    if code:
        assert "alice" in end["message"]
        assert "too much" in end["message"]
    else:
        assert end["output"]["paid"] is False
    await sound(store)


@pytest.mark.parametrize(
    ("timeout", "phase", "paid"),
    [("fail", "Failed", None), ("approve", "Succeeded", True), ("reject, onReject: continue", "Succeeded", False)],
)
async def test_when_the_time_is_over_the_block_says_what_that_means(timeout: str, phase: str, paid: Any) -> None:
    store = new_store()
    async with Process(store) as process:
        session = await process.run(one(f"timeoutSeconds: 0.05, onTimeout: {timeout}", WRITES), {"amount": 7})
        end = session.projection()
    assert end["phase"] == phase, end
    assert end["reason"] == ("ApprovalTimeout" if phase == "Failed" else "")
    assert (end.get("output") or {"paid": None})["paid"] is paid
    assert [r.type for r in await sound(store) if r.type.startswith("timer")] == ["timer_set", "timer_fired"]


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "another request": ("", {"request": "00" * 16}, "waits for no request of that name"),
    "another digest": ("", {"digest": "00" * 32}, "is not what the answer names by digest"),
    "somebody else": ("approvers: {users: [bob]}", {}, "/review: alice may not decide this; bob may"),
    "no member": ("approvers: {groups: [pay]}", {"group": "dev"}, "members of pay (name the group) may"),
    "a form where there is none": ("", {"form": {"x": 1}}, "it has no form to fill in"),
    "no form": (FORM, {}, 'form: "account" is a required property'),
    "a form of other types": (FORM, {"form": {"account": "A", "part": "three"}}, "form.part: "),
    "a form with strange numbers": (FORM, {"form": {"account": "A", "part": 2**60}}, "form.part: "),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_an_answer_that_cannot_count_is_refused_with_one_sentence_and_changes_nothing(name: str) -> None:
    block, changes, why = REFUSED[name]
    store = new_store()
    async with Process(store) as process:
        session = await process.open(one(block), {"amount": 7})
        await waiting(session)
        before = await read(store)
        verdict = await session.answer(answer(session, **changes))
        assert not verdict.accepted
        assert why in verdict.why
        assert session.engine.awaiting
        assert await read(store) == before


async def test_what_was_decided_is_not_decided_again_and_an_answer_counts_once() -> None:
    store = new_store()
    async with Process(store) as process:
        more = "    - name: second\n      after: [review]\n      approval: {message: And this}\n"
        text = ONE.format(block="", more="").replace("    - name: pay", more + "    - name: pay")
        session = await process.open(compiled(text), {"amount": 7})
        await waiting(session)
        first = answer(session)
        assert (await session.answer(first)).accepted
        await until(lambda: session.engine.approvals.of(first.request) is None, what="the decision")
        await waiting(session)
        assert (await session.answer(first)).accepted
        late = await session.answer(Answer(**{**_fields(first), "id": "late", "by": "bob"}))
        assert late.why == "/review was decided before by alice; nothing more is to do"
        another = await session.answer(answer(session, by="bob", id=first.id))
        assert another.why == "an answer of this id was given to another request; give this one an id of its own"
        given = [r for r in await read(store) if r.type == "approval_given"]
        assert [r.envelope["by"] for r in given] == ["alice"]


def _fields(one: Answer) -> dict[str, Any]:
    return {name: getattr(one, name) for name in Answer.__dataclass_fields__}


async def test_several_people_at_once_are_all_recorded_and_as_many_as_are_due_decide() -> None:
    import asyncio

    store = new_store()
    async with Process(store) as process:
        session = await process.open(one("approvers: {count: 2}"), {"amount": 7})
        await waiting(session)
        alice = answer(session)
        twice = answer(session, id="again")
        verdicts = await asyncio.gather(session.answer(alice), session.answer(twice))
        assert [v.accepted for v in verdicts] == [True, False]
        assert "has answered already, and 2 different people are to" in verdicts[1].why
        assert session.engine.awaiting
        verdicts = await asyncio.gather(*(session.answer(answer(session, by)) for by in ("bob", "carol")))
        assert all(v.accepted for v in verdicts)
        assert (await ended(process, session))["phase"] == "Succeeded"
    given = [r.envelope["by"] for r in await sound(store) if r.type == "approval_given"]
    assert given == ["alice", "bob", "carol"]


def answers(log: list[Record]) -> list[Record]:
    return [r for r in log if r.type == "approval_given"]


async def test_cut_off_at_any_record_a_run_asks_once_and_ends_in_the_same_state() -> None:
    """Answers are given by a clock that stands still, so that the time of a decision is the same."""
    spec, store = one("timeoutSeconds: 3600", WRITES), new_store()
    async with Process(store) as process:
        process.driver.now = frozen
        session = await process.open(spec, {"amount": 7})
        await waiting(session)
        await session.answer(answer(session))
        await ended(process, session)
    whole = await sound(store)
    for records in range(len(body(whole)) + 1):
        store = await cut(whole, records)
        there = await read(store)
        asked = [r for r in there if r.type == "approval_requested"]
        async with Process(store) as process:
            process.driver.now = frozen
            session = await process.open(None, epoch=1)
            if not answers(there):
                await waiting(session)
                (pending,) = session.engine.approvals.pending()
                assert not asked or pending.request == asked[0].envelope["request"]
                await session.answer(answer(session))
            await ended(process, session)
        log = await sound(store)
        at = f"cut after {records} records"
        assert log[-1].envelope["state"] == whole[-1].envelope["state"], at
        assert results(log) == results(whole), at
        assert len(answers(log)) == 1, at
        assert [r.type for r in log].count("approval_requested") == 1, at


def frozen() -> Any:
    from datetime import UTC, datetime

    return datetime(2026, 1, 1, tzinfo=UTC)


async def test_the_time_goes_on_while_no_driver_has_the_run() -> None:
    from datetime import timedelta

    store = new_store()
    async with Process(store) as process:
        process.driver.now = frozen
        session = await process.open(one("timeoutSeconds: 3600"), {"amount": 7})
        await waiting(session)
        await until(lambda: "nextWakeAt" in session.projection(), what="the time of the request")
        assert session.projection()["nextWakeAt"].startswith("2026-01-01T01:00:00")
        assert session.projection()["approvals"][0]["due"] == session.projection()["nextWakeAt"]
    async with Process(store) as process:
        process.driver.now = lambda: frozen() + timedelta(seconds=1800)
        session = await process.open(None, epoch=1)
        await waiting(session)
    async with Process(store) as process:
        process.driver.now = lambda: frozen() + timedelta(seconds=3601)
        session = await process.run(None, epoch=2)
        assert session.projection()["reason"] == "ApprovalTimeout"
    assert [r.type for r in await sound(store)].count("timer_set") == 1


async def test_what_waits_beside_a_failure_is_not_waited_for() -> None:
    text = ONE.format(block="", more="").replace(
        "    - name: pay",
        "    - name: broken\n      with: {sum: input.amount}\n      code: |\n        {'got': 1 // (sum - sum)}\n"
        "      output: {got: {type: integer}}\n    - name: pay",
    )
    store = new_store()
    async with Process(store) as process:
        session = await process.run(compiled(text), {"amount": 7})
        assert session.projection()["phase"] == "Failed"
        assert "approvals" not in session.projection()
    await sound(store)


async def test_a_run_that_waits_is_cancelled_at_once() -> None:
    store = new_store()
    async with Process(store) as process:
        session = await process.open(one(), {"amount": 7})
        await waiting(session)
        process.driver.cancel(RUN, "Cancel")
        assert (await ended(process, session))["phase"] == "Cancelled"
    await sound(store)

"""Leave to make a call that must not be made twice: its term, what is in doubt and for how long, and receipts."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from decurion_crds.canonical import Json
from decurion_ledger import Record, Values, encode
from decurion_ledger.errors import Unavailable
from decurion_ledger.layout import receipt_key
from decurion_ledger.stores import MemoryStore, Put, Store
from decurion_worker.effects import INTENTS, Effectful
from decurion_worker.errors import EffectInDoubt, ToolTimeout, ToolUnavailable
from decurion_worker.journal import Journal
from decurion_worker.permits import Permit, Receipts, Terms
from decurion_worker.tools import ToolAnswer
from virtual_time import in_virtual_time

RUN = "run-1"
PATH = "/act"
TERMS = Terms(permit=15.0, lease=30.0)
TOOL_SECONDS = 5.0


class LoopClock:
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Log:
    """Where records become durable, each after the next of `delays`; `None` is never."""

    def __init__(self, *delays: float | None) -> None:
        self.records: list[Record] = []
        self._delays = list(delays)

    async def __call__(self, record: Record) -> None:
        delay = self._delays.pop(0) if self._delays else 0.0
        if delay is None:
            await asyncio.Event().wait()
        else:
            await asyncio.sleep(delay)
            self.records.append(record)

    @property
    def kinds(self) -> list[str]:
        return [f"{r.type}{'' if 'answer' not in r.envelope else ' done'}" for r in self.records]


def effect(store: Store, log: Log, *, earlier: Log | None = None, lease: str = "1.1") -> tuple[Effectful, Receipts]:
    clock = LoopClock()
    receipts = Receipts(store, clock=clock)
    journal = Journal(
        Values(store, RUN, clock=clock),
        RUN,
        earlier=earlier.records if earlier is not None else (),
        durable=log,
        envelope={"lease": lease, "worker": "w"},
        receipts=receipts,
        terms=TERMS,
        clock=clock,
    )
    return Effectful(journal, PATH, server="s", tool="t", arguments={"a": 1}), receipts


class Tool:
    """Counts its calls; gives an answer, or fails with the next of `errors`."""

    def __init__(self, *errors: Exception | None) -> None:
        self.permits: list[Permit] = []
        self._errors = list(errors)

    async def __call__(self, permit: Permit) -> ToolAnswer:
        self.permits.append(permit)
        error = self._errors.pop(0) if self._errors else None
        if error is not None:
            raise error
        return ToolAnswer("done")


def test_an_intent_allows_its_call_until_its_term_is_over_which_begins_when_it_is_sent() -> None:
    async def work() -> None:
        tool, log = Tool(), Log(10.0)
        assert (await effect(MemoryStore(), log)[0].once(tool)).text == "done"
        assert log.kinds == ["effect_intended", "effect_settled done"]
        (permit,) = tool.permits
        assert permit.holds
        await asyncio.sleep(4.9)
        assert permit.holds
        await asyncio.sleep(0.2)
        assert not permit.holds

    in_virtual_time(work())


def test_leave_that_comes_too_late_is_void_and_asked_for_anew() -> None:
    async def work() -> None:
        tool, log = Tool(), Log(15.5, 0.0, 2.0)
        await effect(MemoryStore(), log)[0].once(tool)
        assert log.kinds == ["effect_intended", "effect_settled", "effect_intended", "effect_settled done"]
        assert len(tool.permits) == 1

    in_virtual_time(work())


def test_a_ledger_that_is_too_slow_for_effects_fails_the_call_and_nothing_is_carried_out() -> None:
    async def work() -> None:
        tool, log = Tool(), Log(*[20.0, 0.0] * INTENTS)
        with pytest.raises(ToolUnavailable, match="too slow") as found:
            await effect(MemoryStore(), log)[0].once(tool)
        assert not found.value.sent
        assert not tool.permits
        assert log.kinds == ["effect_intended", "effect_settled"] * INTENTS

    in_virtual_time(work())


@pytest.mark.parametrize("error", [ToolUnavailable("away", sent=True), ToolTimeout("late", sent=True)])
def test_a_call_that_was_sent_and_not_answered_is_in_doubt(error: Exception) -> None:
    async def work() -> None:
        log = Log()
        with pytest.raises(EffectInDoubt):
            await effect(MemoryStore(), log)[0].once(Tool(error))
        assert log.kinds == ["effect_intended"]

    in_virtual_time(work())


def test_what_an_earlier_runner_intended_is_in_doubt_until_nothing_of_it_can_happen_any_more() -> None:
    async def work() -> None:
        store, before = MemoryStore(), Log(0.0, None)
        await left(store, before, cancelled=False)
        begun = asyncio.get_running_loop().time()
        later, _ = effect(store, Log(), earlier=before, lease="2.1")
        with pytest.raises(EffectInDoubt, match="lost"):
            await later.found_out(TOOL_SECONDS)
        assert asyncio.get_running_loop().time() - begun == pytest.approx(15.0 + 30.0 + TOOL_SECONDS)

    in_virtual_time(work())


def test_a_receipt_that_was_left_is_a_settlement_at_once() -> None:
    async def work() -> None:
        store, before, log = MemoryStore(), Log(0.0, None), Log()
        await left(store, before, cancelled=True)
        begun = asyncio.get_running_loop().time()
        later, _ = effect(store, log, earlier=before, lease="2.1")
        assert (await later.found_out(TOOL_SECONDS)).text == "done"
        assert asyncio.get_running_loop().time() - begun < 1.0
        assert log.kinds == ["effect_settled done"]
        assert [info.key async for info in store.list("runs/")] == [
            receipt_key(RUN, "1.1", later.journal.key(PATH)),
        ]

    in_virtual_time(work())


def test_a_receipt_that_comes_while_the_effect_is_in_doubt_ends_the_doubt() -> None:
    async def work() -> None:
        store, before, log = MemoryStore(), Log(0.0, None), Log()
        holding = asyncio.ensure_future(effect(store, before)[0].once(Tool()))
        await asyncio.sleep(0.1)
        later, _ = effect(store, log, earlier=before, lease="2.1")
        finding = asyncio.ensure_future(later.found_out(TOOL_SECONDS))
        await asyncio.sleep(30.0)
        assert not finding.done()
        holding.cancel()
        assert (await finding).text == "done"
        assert log.kinds == ["effect_settled done"]

    in_virtual_time(work())


@pytest.mark.parametrize(
    "changed",
    [
        lambda r: replace(r, envelope={**r.envelope, "effect": "0" * 64}),
        lambda r: replace(r, type="attempt_failed"),
    ],
)
def test_what_stands_in_the_place_of_a_receipt_and_is_none_is_not_believed(changed: Callable[[Record], Record]) -> None:
    async def work() -> None:
        store, before = MemoryStore(), Log(0.0, None)
        await left(store, before, cancelled=False)
        later, _ = effect(store, Log(), earlier=before, lease="2.1")
        key = later.journal.key(PATH)
        told: dict[str, Json] = {"effect": key, "answer": "1" * 64}
        await store.put(receipt_key(RUN, "1.1", key), encode(changed(Record.event("effect_settled", PATH, told))))
        with pytest.raises(EffectInDoubt):
            await later.found_out(TOOL_SECONDS)

    in_virtual_time(work())


def test_a_store_that_takes_no_receipt_keeps_nobody_from_ending() -> None:
    class Away(MemoryStore):
        async def put_new(self, key: str, data: bytes) -> Put:
            raise Unavailable(f"PUT {key}", "SlowDown (503)")

    async def work() -> None:
        before = Log(0.0, None)
        receipts = await left(Away(), before, cancelled=True)
        begun = asyncio.get_running_loop().time()
        await receipts.aclose()
        assert asyncio.get_running_loop().time() - begun < 15.0

    in_virtual_time(work())


async def left(store: Store, log: Log, *, cancelled: bool) -> Receipts:
    """A runner that has made its call, and is gone before the settlement is durable: told to end, or killed."""
    mine, receipts = effect(store, log)
    holding = asyncio.ensure_future(mine.once(Tool()))
    await asyncio.sleep(0.1)
    if cancelled:
        holding.cancel()
        await asyncio.wait([holding])
        if isinstance(store, MemoryStore) and type(store) is MemoryStore:
            await receipts.aclose()
    return receipts

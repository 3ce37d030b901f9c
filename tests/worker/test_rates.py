"""Calls and tokens in a minute: never more than the limit, in order, shared by runners, on a clock of the test."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from decurion_worker.models import ChatRequest, ChatResponse, Message, Usage
from decurion_worker.rates import MINUTE, Rates
from decurion_worker.slots import ModelSlots, SlottedModel
from virtual_time import in_virtual_time

EVEN = 1e-3
"""Seconds by which the clock of a loop is coarser than a calculation."""


def request(chars: int = 4, **parameters: int) -> ChatRequest:
    return ChatRequest((Message("user", "x" * chars),), None, dict(parameters), 1.0, "key")


async def times(rates: Rates, count: int, asked: ChatRequest | None = None) -> list[float]:
    """When each of so many calls that come at once went out."""
    now = asyncio.get_running_loop().time
    found: list[float] = []

    async def one() -> None:
        await rates.begin(asked or request())
        found.append(now())

    await asyncio.gather(*(one() for _ in range(count)))
    return found


def most(found: Sequence[float], window: float = MINUTE) -> int:
    """The most of these times that lie in one window."""
    return max(sum(at <= other < at + window - EVEN for other in found) for at in found)


@pytest.mark.parametrize("limit", [1, 2, 7, 10, 11, 22, 60, 100, 500])
def test_no_minute_has_more_calls_than_the_limit_and_most_of_it_is_used(limit: int) -> None:
    async def work() -> None:
        found = await times(Rates({"requestsPerMinute": limit}, 1.0), 3 * limit + 1)
        assert most(found) <= limit
        assert found[-1] - found[0] <= 3 * MINUTE * 11 / 10 + EVEN

    in_virtual_time(work())


def test_after_a_pause_no_more_goes_out_at_once_than_a_bucket_holds() -> None:
    async def work() -> None:
        rates = Rates({"requestsPerMinute": 110}, 1.0)
        found = await times(rates, 30)
        await asyncio.sleep(10 * MINUTE)
        found += await times(rates, 300)
        assert most(found) <= 110
        assert most(found, 0.1) <= 11

    in_virtual_time(work())


def test_tokens_are_guessed_and_set_right_by_what_was_used() -> None:
    async def work() -> None:
        rates, now = Rates({"tokensPerMinute": 1100}, 1.0), asyncio.get_running_loop().time
        begun = now()
        guess = await rates.begin(request(200, max_tokens=50))
        assert guess == 100
        rates.end(guess, Usage(60, 1040))  # a thousand more than it held, which take a minute to come in
        await rates.begin(request(400))
        assert now() - begun == pytest.approx((1100 - 100 + 100) / (1000 / MINUTE), abs=EVEN)
        begun = now()
        rates.end(100, Usage(10, 0))  # 90 come back
        await rates.begin(request(360))
        assert now() - begun < EVEN
        rates.end(90, Usage())  # nothing is told, so the guess stands
        await rates.begin(request(400))
        assert now() - begun == pytest.approx(6.0, abs=0.01)

    in_virtual_time(work())


def test_a_call_above_what_a_bucket_holds_goes_out_and_those_after_it_wait() -> None:
    async def work() -> None:
        rates = Rates({"tokensPerMinute": 110}, 1.0)
        first, second = await times(rates, 2, request(4 * 60))
        assert second - first == pytest.approx(60 / (100 / MINUTE), abs=EVEN)

    in_virtual_time(work())


def test_both_rates_hold_and_who_came_first_goes_first() -> None:
    async def work() -> None:
        rates, order = Rates({"requestsPerMinute": 60, "tokensPerMinute": 1100}, 1.0), list[int]()

        async def one(number: int, chars: int) -> None:
            await rates.begin(request(chars))
            order.append(number)

        # The first uses the tokens up, the second wants many: the small ones that came after it wait for it.
        await asyncio.gather(one(0, 400), one(1, 400), one(2, 4), one(3, 4))
        assert order == [0, 1, 2, 3]

    in_virtual_time(work())


def test_runners_share_a_rate_and_the_shares_move() -> None:
    async def work() -> None:
        spec = {"endpoint": "http://x", "model": "m", "limits": {"requestsPerMinute": 60, "concurrency": 100}}
        runners = [ModelSlots() for _ in range(3)]
        for one in runners:
            one.share(3)
        found = [at for part in await asyncio.gather(*(times(r.rates(spec), 60) for r in runners)) for at in part]
        assert most(found) <= 60
        assert runners[0].rates(spec) is runners[0].rates(dict(spec))
        begun = asyncio.get_running_loop().time()
        waiting = asyncio.create_task(times(runners[0].rates(spec), 60))
        await asyncio.sleep(1)
        runners[0].share(1)
        assert (await waiting)[-1] - begun < MINUTE + 5, "those that wait already wait as the new share says"

    in_virtual_time(work())


def test_who_waits_goes_on_when_the_share_grows() -> None:
    async def work() -> None:
        rates, now = Rates({"requestsPerMinute": 60}, 1 / 60), asyncio.get_running_loop().time
        await rates.begin(request())
        begun = now()
        waiting = asyncio.create_task(rates.begin(request()))
        await asyncio.sleep(10)
        rates.resize(1.0)
        await waiting
        assert now() - begun < 12

    in_virtual_time(work())


class Model:
    """Answers after a second, fails when its deadline is not whole, and keeps the times at which it was asked."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self.flying = self.most = 0

    async def chat(self, request: ChatRequest) -> ChatResponse:
        self.asked.append(asyncio.get_running_loop().time())
        self.flying += 1
        self.most = max(self.most, self.flying)
        await asyncio.sleep(1)
        self.flying -= 1
        return ChatResponse("ok", Usage(1, 1))

    async def aclose(self) -> None:
        return


def test_a_model_is_asked_as_its_limits_allow_and_waiting_is_no_time_of_the_call() -> None:
    async def work() -> None:
        spec: dict[str, Any] = {"limits": {"concurrency": 2, "requestsPerMinute": 30}}
        chat, slots = Model(), ModelSlots()
        model = SlottedModel(chat, slots.of(spec), slots.rates(spec))
        answers = await asyncio.gather(*(model.chat(request()) for _ in range(90)))
        assert len(answers) == 90
        assert most(chat.asked) <= 30
        assert chat.most <= 2

    in_virtual_time(work())


def test_without_rates_nothing_waits() -> None:
    async def work() -> None:
        rates = ModelSlots().rates({"limits": {"concurrency": 1}})
        assert len(set(await times(rates, 1000))) == 1

    in_virtual_time(work())


def test_who_is_cancelled_while_waiting_uses_nothing() -> None:
    async def work() -> None:
        rates, now = Rates({"requestsPerMinute": 1}, 1.0), asyncio.get_running_loop().time
        await rates.begin(request())
        begun = now()
        gone = [asyncio.create_task(rates.begin(request())) for _ in range(5)]
        await asyncio.sleep(10)
        for task in gone:
            task.cancel()
        await asyncio.gather(*gone, return_exceptions=True)
        await rates.begin(request())
        assert now() - begun == pytest.approx(MINUTE, abs=EVEN)

    in_virtual_time(work())


def test_calls_of_one_place_share_their_rates_whichever_run_makes_them() -> None:
    async def work() -> None:
        slots, limits = ModelSlots(), {"requestsPerMinute": 5}
        one = slots.rates({"endpoint": "http://x", "model": "m", "limits": limits, "price": {"inputPerMillion": "1"}})
        assert slots.rates({"endpoint": "http://x", "model": "m", "limits": limits}) is one
        assert slots.rates({"endpoint": "http://x", "model": "other", "limits": limits}) is not one
        assert slots.rates({"scripted": {"default": "a"}, "limits": limits}) is not slots.rates(
            {"scripted": {"default": "b"}, "limits": limits}
        )

    in_virtual_time(work())

"""Retries of a model call: which failures, how often, how long apart."""

import random
from collections.abc import Callable

import pytest

from decurion_worker.errors import (
    ModelRefused,
    ModelTimeout,
    ModelUnavailable,
    OutputInvalid,
    RateLimited,
    Transient,
    WorkError,
)
from decurion_worker.models import ChatRequest, ChatResponse, Message, call_with_retries

REQUEST = ChatRequest((Message("user", "q"),), None, {}, 5.0, "key")


class Failing:
    """Fails with each of `errors` in turn, then answers. Notes the keys it was asked with."""

    def __init__(self, *errors: WorkError) -> None:
        self.errors = list(errors)
        self.keys: list[str] = []

    async def chat(self, request: ChatRequest) -> ChatResponse:
        self.keys.append(request.idempotency_key)
        if self.errors:
            raise self.errors.pop(0)
        return ChatResponse("fine")

    async def aclose(self) -> None:
        self.errors.clear()


class Clock:
    """Sleeps without sleeping."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


async def call(
    model: Failing,
    clock: Clock,
    *,
    transient: int = 3,
    seed: int = 0,
    heard: Callable[[Transient], None] = lambda error: None,
) -> ChatResponse:
    return await call_with_retries(
        model, REQUEST, transient=transient, rng=random.Random(seed), sleep=clock.sleep, on_attempt_failed=heard
    )


async def test_an_answer_at_once_waits_for_nothing() -> None:
    clock, model = Clock(), Failing()
    assert (await call(model, clock)).text == "fine"
    assert (clock.slept, model.keys) == ([], ["key"])


async def test_transient_failures_are_tried_again_after_about_1_2_and_4_seconds_under_one_key() -> None:
    clock, model = Clock(), Failing(ModelUnavailable("a"), ModelTimeout("b"), RateLimited("c"))
    heard: list[str] = []
    assert (await call(model, clock, heard=lambda error: heard.append(error.code))).text == "fine"
    assert model.keys == ["key"] * 4
    assert heard == ["ModelUnavailable", "ModelTimeout", "RateLimited"]
    assert [0.5 <= slept / step <= 1.5 for slept, step in zip(clock.slept, (1, 2, 4), strict=True)] == [True] * 3


async def test_callers_refused_together_do_not_come_back_together() -> None:
    first = set()
    for seed in range(20):
        clock = Clock()
        await call(Failing(RateLimited("x", retry_after=2.0)), clock, seed=seed)
        first.add(clock.slept[0])
    assert len(first) == 20


async def test_the_wait_that_the_server_asks_for_is_never_undercut() -> None:
    for seed in range(50):
        clock = Clock()
        await call(Failing(RateLimited("x", retry_after=7.5)), clock, seed=seed)
        assert 7.5 <= clock.slept[0] <= 8.0


async def test_a_server_that_asks_for_minutes_is_not_waited_for() -> None:
    clock, model = Clock(), Failing(RateLimited("x", retry_after=3600))
    with pytest.raises(RateLimited):
        await call(model, clock)
    assert (clock.slept, len(model.keys)) == ([], 1)


async def test_the_last_failure_is_raised_when_the_tries_are_used_up() -> None:
    clock, model = Clock(), Failing(*[ModelUnavailable(str(i)) for i in range(9)])
    heard: list[str] = []
    with pytest.raises(ModelUnavailable, match="2"):
        await call(model, clock, transient=2, heard=lambda error: heard.append(str(error)))
    assert len(model.keys) == 3
    assert heard == ["0", "1"]


async def test_no_retry_is_made_where_none_is_allowed() -> None:
    model = Failing(ModelUnavailable("x"))
    with pytest.raises(ModelUnavailable):
        await call(model, Clock(), transient=0)
    assert len(model.keys) == 1


@pytest.mark.parametrize("error", [ModelRefused("no"), OutputInvalid(["bad"], "raw")])
async def test_what_no_retry_helps_is_raised_at_once(error: WorkError) -> None:
    model = Failing(error)
    with pytest.raises(type(error)):
        await call(model, Clock())
    assert len(model.keys) == 1

"""Trying a call of a model or tool again after failures of transport. Design 04, "Attempt, failure, retry"."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from decurion_worker.errors import Transient, WorkError
from decurion_worker.models.port import ChatModel, ChatRequest, ChatResponse

T = TypeVar("T")

FIRST_WAIT = 1.0
"""Seconds before the second try; each further wait is twice as long, up to `LONGEST_WAIT`."""
LONGEST_WAIT = 30.0
LONGEST_RETRY_AFTER = 60.0
"""A server that asks to wait longer than this, in seconds, is not asked again: the failure tells how long it wants."""


async def call_with_retries(
    model: ChatModel,
    request: ChatRequest,
    *,
    transient: int,
    rng: random.Random,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    on_attempt_failed: Callable[[Transient], None] = lambda error: None,
    retried: Callable[[WorkError], bool] = lambda error: True,
) -> ChatResponse:
    """The model's answer, after at most `transient` further tries, all under the request's idempotency key.

    `on_attempt_failed` hears of each failure that is followed by another try. Raises the last failure, and whatever is
    not `Transient` or not `retried` at once.
    """
    return await with_retries(
        lambda: model.chat(request),
        transient=transient,
        rng=rng,
        sleep=sleep,
        on_attempt_failed=on_attempt_failed,
        retried=retried,
    )


async def with_retries(
    call: Callable[[], Awaitable[T]],
    *,
    transient: int,
    rng: random.Random,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    on_attempt_failed: Callable[[Transient], None] = lambda error: None,
    retried: Callable[[WorkError], bool] = lambda error: True,
) -> T:
    """What `call` gives, after at most `transient` further tries; otherwise as `call_with_retries`."""
    tries = 0
    while True:
        try:
            return await call()
        except Transient as error:
            wanted = error.retry_after or 0.0
            if tries >= transient or wanted > LONGEST_RETRY_AFTER or not retried(error):
                raise
            on_attempt_failed(error)
        await sleep(_wait(tries, wanted, rng))
        tries += 1


def _wait(tries: int, wanted: float, rng: random.Random) -> float:
    """Seconds until the next try: never less than `wanted`, and spread, so that callers refused together do not
    come back together.
    """
    step = min(FIRST_WAIT * 2.0**tries, LONGEST_WAIT)
    if wanted:
        return wanted + step * 0.5 * rng.random()
    return step * rng.uniform(0.5, 1.5)

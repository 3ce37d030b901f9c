"""The rates of models on one runner: calls and tokens in a minute, as even shares that move as runners come and go.

A rate is a bucket that fills evenly. It holds a tenth of what a minute allows, at least one call, so that calls go out
spread over the minute; bucket and filling together come to no more than the limit in any minute. What a call uses is
known when it has been answered: its tokens are guessed before, and set right then. A bucket may owe.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from decurion_crds.canonical import Json, canonical
from decurion_worker.models import ChatRequest, Usage

MINUTE = 60.0
PARTS = 11
"""Into so many parts a minute's amount is divided, one of which may be used at once."""
CHARS_PER_TOKEN = 4
_MOST_ANSWERED = ("max_tokens", "max_completion_tokens")


class Bucket:
    """What may be used of one amount in a minute, on the clock of the loop. `whole` amounts are counted one by one."""

    def __init__(self, per_minute: float, *, whole: bool) -> None:
        self._whole = whole
        self._size, self._filling = self._shape(per_minute)
        self._level = self._size
        self._at = asyncio.get_running_loop().time()

    def resize(self, per_minute: float) -> None:
        self._fill()
        self._size, self._filling = self._shape(per_minute)
        self._level = min(self._level, self._size)

    def wait(self, amount: float) -> float:
        """Seconds until `amount` may be used, or where it is more than a bucket holds, until the bucket is full."""
        self._fill()
        lacks = min(amount, self._size) - self._level
        # What is left of a sum of parts is no reason to wait.
        return lacks / self._filling if lacks > 1e-6 * self._size else 0.0

    def use(self, amount: float) -> None:
        """Use `amount`, or give back what is below zero."""
        self._fill()
        self._level = min(self._size, self._level - amount)

    def _fill(self) -> None:
        now = asyncio.get_running_loop().time()
        self._level = min(self._size, self._level + (now - self._at) * self._filling)
        self._at = now

    def _shape(self, per_minute: float) -> tuple[float, float]:
        """What the bucket holds, and what it gains in a second."""
        if self._whole:
            size = float(max(1, int(per_minute // PARTS)))
            # The first call after a full bucket goes out when it has gained one: that one belongs to the minute, too.
            return size, (per_minute - size + 1) / MINUTE
        size = max(1.0, per_minute / PARTS)
        return size, per_minute * (1 - 1 / PARTS) / MINUTE


class Rates:
    """The rates of one model, whose calls are let go in the order in which they came."""

    def __init__(self, limits: Mapping[str, Json], share: float) -> None:
        """`share` is the part of the limits that is this runner's."""
        self._limits = {
            name: float(limits[name]) for name in ("requestsPerMinute", "tokensPerMinute") if name in limits
        }
        self._buckets = {
            name: Bucket(most * share, whole=name == "requestsPerMinute") for name, most in self._limits.items()
        }
        self._turn = asyncio.Lock()
        self._moved = asyncio.Event()

    def resize(self, share: float) -> None:
        for name, bucket in self._buckets.items():
            bucket.resize(self._limits[name] * share)
        self._moved.set()

    async def begin(self, request: ChatRequest) -> float:
        """Return when the call may go out: the tokens that are taken for it."""
        if not self._buckets:
            return 0.0
        guess = guessed(request) if "tokensPerMinute" in self._buckets else 0.0
        amounts = {"requestsPerMinute": 1.0, "tokensPerMinute": guess}
        async with self._turn:
            while wait := max(bucket.wait(amounts[name]) for name, bucket in self._buckets.items()):
                self._moved.clear()
                try:
                    async with asyncio.timeout(wait):
                        await self._moved.wait()
                except TimeoutError:
                    continue
            for name, bucket in self._buckets.items():
                bucket.use(amounts[name])
        return guess

    def end(self, guess: float, used: Usage) -> None:
        """The call was answered: its guess gives way to what it used. Where no usage is told the guess stands."""
        tokens = used.input_tokens + used.output_tokens
        if tokens and (bucket := self._buckets.get("tokensPerMinute")) is not None:
            bucket.use(tokens - guess)


def guessed(request: ChatRequest) -> float:
    """The tokens of a call before it is made: what it says, and the most that it allows the answer to have."""
    chars = sum(len(message.content) + sum(len(c.arguments) for c in message.calls) for message in request.messages)
    chars += sum(len(tool.description) + len(canonical(tool.input)) for tool in request.tools)
    most = [n for name in _MOST_ANSWERED if type(n := request.parameters.get(name)) is int and n > 0]
    return chars / CHARS_PER_TOKEN + max(most, default=0)

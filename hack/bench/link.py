"""The link alone, as a limit: driver and runner actors on Ray that exchange coalesced records and acknowledgements.

No model, no graph, no values, no store: a commit is a pause of 20 ms. What the real driver adds is the difference.
"""

from __future__ import annotations

import asyncio
import collections
import json
import os
import sys
import time
from typing import Any

import ray

COMMIT = 0.02
PAUSE = 0.005


class _Outbox:
    def __init__(self, send: Any) -> None:
        self._send, self._items, self._busy = send, [], False

    def put(self, item: Any) -> None:
        self._items.append(item)
        if not self._busy:
            self._busy = True
            asyncio.get_running_loop().create_task(self._pump())

    async def _pump(self) -> None:
        while self._items:
            batch, self._items = self._items, []
            await self._send(batch)
            await asyncio.sleep(PAUSE)
        self._busy = False


class _Driver:
    def __init__(self) -> None:
        self._incarnation = os.urandom(4).hex()
        self._runners: dict[str, _Outbox] = {}
        self._batch: list[Any] = []
        self._committing = False
        self._done = asyncio.Event()

    async def run(self, branches: int, seconds: float, runners: int) -> float:
        me = ray.get_runtime_context().current_actor
        while len(self._runners) < runners:
            name = f"r{len(self._runners)}"
            handle = Runner.options(num_cpus=0.5).remote(me, self._incarnation, name)
            self._runners[name] = _Outbox(lambda b, h=handle: h.deliver.remote(self._incarnation, b))
            await handle.ping.remote()
        self._done.clear()
        self._left = branches
        begun = time.monotonic()
        for i, outbox in enumerate(self._runners.values()):
            outbox.put(("work", list(range(i, branches, runners)), seconds))
        await self._done.wait()
        return time.monotonic() - begun

    async def submit(self, name: str, messages: list[Any]) -> str:
        self._batch += [(name, m) for m in messages]
        if not self._committing:
            self._committing = True
            asyncio.get_running_loop().create_task(self._commit())
        return self._incarnation

    async def _commit(self) -> None:
        while self._batch:
            batch, self._batch = self._batch, []
            await asyncio.sleep(COMMIT)
            acks: dict[str, int] = collections.defaultdict(int)
            for name, (seq, _branch, _value) in batch:
                acks[name] = max(acks[name], seq)
                self._left -= 1
            for name, through in acks.items():
                self._runners[name].put(("ack", through))
        self._committing = False
        if not self._left:
            self._done.set()


class _Runner:
    def __init__(self, driver: Any, incarnation: str, name: str) -> None:
        self._name, self._seq = name, 0
        self._outbox = _Outbox(lambda b: driver.submit.remote(name, b))

    async def ping(self) -> str:
        return self._name

    async def deliver(self, incarnation: str, messages: list[Any]) -> str:
        for kind, *rest in messages:
            if kind == "work":
                for branch in rest[0]:
                    asyncio.get_running_loop().create_task(self._branch(branch, rest[1]))
        return "ok"

    async def _branch(self, branch: int, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._seq += 1
        self._outbox.put((self._seq, branch, "x" * 700))


Driver: Any = ray.remote(max_concurrency=1000, num_cpus=0.01)(_Driver)
Runner: Any = ray.remote(max_concurrency=1000)(_Runner)


def measure(branches: int, rounds: int) -> list[float]:
    """Seconds of each round; Ray is started and stopped here."""
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=40)
    try:
        driver = Driver.remote()
        ray.get(driver.run.remote(10, 0.0, 2))
        return [ray.get(driver.run.remote(branches, 1.0, 2)) for _ in range(rounds)]
    finally:
        ray.shutdown()


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]), int(sys.argv[2]))))

"""What `python hack/soak duel` does: real processes that fight for one run after the other, on a real S3 server.

Between them and the server is a proxy with faults; they are killed, stopped and woken. What each was promised is
compared with what is stored.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from cluster.s3 import S3Server
from decurion_ledger import Credentials, Store, list_runs, open_store, read_log, verify
from fault_proxy import FaultProxy

DUELLIST = Path(__file__).parent.parent / "duellist.py"


@dataclass
class Duel:
    """`drivers` processes for `seconds`; a blow every `every` seconds, stops of up to `stop` seconds."""

    server: S3Server
    folder: Path
    seed: int
    seconds: float
    drivers: int = 10
    every: float = 1.0
    stall: float = 5.0
    stop: float = 12.0
    met: Counter[str] = field(default_factory=Counter)
    _living: dict[str, int] = field(default_factory=dict)
    _asleep: dict[str, float] = field(default_factory=dict)
    _made: int = 0

    async def fight(self) -> list[str]:
        """What is violated, a sentence each."""
        rng = random.Random(self.seed)
        proxy = FaultProxy(urlsplit(self.server.endpoint_url).port or 0, rng)
        uri = self.server.uri(f"duel-{os.getpid()}-{self.seed}")
        said = self.folder / "said"
        said.mkdir()
        env = {**os.environ, **self.server.env, "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{await proxy.start()}"}
        command = [sys.executable, str(DUELLIST), uri, str(self.stall), "0.2", str(said)]
        nursery = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, env=env)
        try:
            await self._strike(nursery, rng)
        finally:
            for pid in self._living.values():
                os.kill(pid, signal.SIGKILL)
            nursery.kill()
            await nursery.wait()
            await proxy.stop()
        self.met.update(proxy.met)
        store = open_store(
            uri,
            endpoint_url=self.server.endpoint_url,
            region=self.server.region,
            credentials=Credentials(self.server.access_key, self.server.secret_key),
        )
        try:
            return await self._judge(store, _said(said))
        finally:
            await store.aclose()

    # ------------------------------------------------------------------ the blows

    async def _strike(self, nursery: Process, rng: random.Random) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(self.drivers):
            await self._begin(nursery)
        end = loop.time() + self.seconds
        while loop.time() < end:
            await asyncio.sleep(self.every * rng.uniform(0.2, 1.0))
            self._wake(loop.time())
            awake = sorted(self._living.keys() - self._asleep.keys())
            if not awake:
                continue
            name = rng.choice(awake)
            if rng.random() < 0.6:
                self.met["SIGSTOP"] += 1
                os.kill(self._living[name], signal.SIGSTOP)
                self._asleep[name] = loop.time() + rng.uniform(0.2, self.stop)
            else:
                self.met["SIGKILL"] += 1
                os.kill(self._living.pop(name), signal.SIGKILL)
                await self._begin(nursery)
        self._wake(float("inf"))
        await asyncio.sleep(1.0)

    async def _begin(self, nursery: Process) -> None:
        assert nursery.stdin is not None
        assert nursery.stdout is not None
        nursery.stdin.write(f"d{self._made}\n".encode())
        self._made += 1
        name, pid = (await nursery.stdout.readline()).decode().split()
        self._living[name] = int(pid)

    def _wake(self, now: float) -> None:
        for name in [name for name, until in self._asleep.items() if until <= now]:
            del self._asleep[name]
            os.kill(self._living[name], signal.SIGCONT)

    # ------------------------------------------------------------------ the verdict

    async def _judge(self, store: Store, said: list[tuple[str, list[str]]]) -> list[str]:
        stored: dict[tuple[str, str], list[int]] = {}
        owners: dict[tuple[str, int], str] = {}
        found: list[str] = []
        for run in await list_runs(store):
            # A run whose last driver was killed between its close record and `final` is completed by the next.
            found += [str(problem) for problem in await verify(store, run) if problem.code != "FINAL-MISSING"]
            self.met["runs"] += 1
            async for slot, record in read_log(store, run):
                if record.core is not None:
                    stored.setdefault((run, record.path), []).append(slot)
                    self.met["results"] += 1
                if record.type == "fence":
                    owners[run, slot] = str(record.envelope["driver_id"])
                    self.met["fences"] += 1
        for name, line in said:
            found += self._compared(name, line, stored, owners)
        return found

    def _compared(
        self,
        name: str,
        line: list[str],
        stored: dict[tuple[str, str], list[int]],
        owners: dict[tuple[str, int], str],
    ) -> list[str]:
        """What a driver said, and what of it is not so."""
        match line:
            case ["ack", run, slot, path]:
                self.met["promised"] += 1
                stands = stored.get((run, path))
                if stands != [int(slot)]:
                    return [f"{name} was promised {path} in slot {slot} of {run}, it stands in {stands}"]
            case ["lost", run, "Fenced", slot]:
                self.met["Fenced"] += 1
                if owners.get((run, int(slot)), name) == name:
                    return [f"{name} says that it was fenced in slot {slot} of {run}, where no other took the log"]
            case ["lost", _, why, _]:
                self.met[why] += 1
            case ["closed", _]:
                self.met["closed"] += 1
            case _:
                return [f"{name}: {' '.join(line)}"]
        return []


def _said(folder: Path) -> list[tuple[str, list[str]]]:
    """Who said what, a line each."""
    return [(file.name, line.split()) for file in sorted(folder.iterdir()) for line in file.read_text().splitlines()]

"""The process of a WorkerPool of mode Local: started, watched, started again with back-off, ended with the operator.

A busy driver must not delay the operator, so it has a process of its own; the two speak the same protocol as with any
pool, over a Unix socket in a folder that only this user may enter. The child gets its configuration, secrets included,
by its stdin, and takes the end of stdin for the end of the operator: also after kill -9 of the operator no pool is
left. Of the operator's environment it sees only what `_INHERITED` names: no kubeconfig, no keys.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import shutil
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import orjson

from decurion_operator.errors import PoolError
from decurion_operator.ingress import Ingress
from decurion_operator.metrics import Meter
from decurion_operator.queue import Backoff, Key
from decurion_operator.settings import OperatorSettings
from decurion_operator.tasks import forever
from decurion_worker.local_pool import MODULE, LocalPoolConfig

logger = logging.getLogger(__name__)

STEADY_SECONDS: Final = 60.0
"""A process that lived so long begins with the shortest back-off again."""
_INHERITED: Final = (
    "PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV", "SSL_CERT_FILE", "SSL_CERT_DIR",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Ended:
    """Why a process is not there any more, as one sentence."""

    why: str


class LocalPool:
    """One process at a time, from `start` to `aclose`. `ready`: there is one that serves; `problem` says why there is
    none any more, or is empty.

    `config` says everything but where to listen and the token. `changed` is called when a process is ready, and when
    one has ended.
    """

    def __init__(
        self,
        key: Key,
        config: LocalPoolConfig,
        settings: OperatorSettings,
        meter: Meter,
        *,
        changed: Callable[[], None],
    ) -> None:
        self.ready = False
        self.problem = ""
        self._key = key
        self._settings = settings
        self._meter = meter
        self._changed = changed
        self._folder = Path(tempfile.mkdtemp(prefix="decurion-pool-"))
        self._config = replace(config, socket=str(self._folder / "ingress"), token=secrets.token_hex(32))
        self._backoff = Backoff(base=settings.backoff_seconds, cap=settings.backoff_cap_seconds)
        self._process: Process | None = None
        self._keeping: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The process id, while there is a process."""
        return self._process.pid if self._process is not None else None

    def ingress(self) -> Ingress:
        """A client of the pool; it stays valid over restarts of the process."""
        return Ingress(
            "http://local",
            token=self._config.token,
            seconds=self._settings.pool_seconds,
            observer=self._meter,
            socket=self._config.socket,
        )

    def start(self) -> None:
        name = f"the process of {self._key.namespace}/{self._key.name}"
        self._keeping = asyncio.ensure_future(forever(name, self._keep, backoff=self._backoff))

    async def aclose(self) -> None:
        """End the process: it lets its runs go, whose logs have all that is needed to go on."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait({self._keeping})
        await self._end(seconds=self._settings.stop_seconds / 2)
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    async def _keep(self) -> None:
        failures, loop = 0, asyncio.get_running_loop()
        while True:
            began = loop.time()
            ended = await self._live()
            failures = 1 if loop.time() - began > STEADY_SECONDS else failures + 1
            delay = self._backoff.delay(failures)
            logger.warning("pool %s/%s: %s Next start in %.1f s.", *self._key[1:], ended.why, delay)
            self.ready, self.problem = False, ended.why
            self._meter.pool_restarts.inc()
            self._changed()
            await asyncio.sleep(delay)

    async def _live(self) -> _Ended:
        """One process, from its start to its end."""
        await self._end(seconds=0.0)
        env = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", MODULE, stdin=PIPE, stdout=PIPE, env=env, start_new_session=True
            )
        except OSError as error:
            return _Ended(f"The pool's process cannot be started ({error}): look at the operator's machine.")
        refused = await self._begin(self._process)
        if refused is not None:
            await self._end(seconds=0.0)
            return refused
        logger.info("pool %s/%s is served by process %d", *self._key[1:], self._process.pid)
        self.ready, self.problem = True, ""
        self._changed()
        return await self._watch(self._process)

    async def _begin(self, process: Process) -> _Ended | None:
        """Hand over the configuration and wait for the first line; says why it did not come to serve."""
        if process.stdin is None or process.stdout is None:
            raise AssertionError("the process was started with pipes")
        try:
            async with asyncio.timeout(self._settings.local_start_seconds):
                process.stdin.write(self._config.to_line())
                await process.stdin.drain()
                line = await process.stdout.readline()
        except TimeoutError:
            return _Ended("The pool's process did not come to serve in time: see the operator's log.")
        except ConnectionError:
            line = b""
        try:
            said = orjson.loads(line) if line else {}
        except orjson.JSONDecodeError:
            said = {}
        if said.get("ready") is True:
            return None
        text = str(said.get("error") or "")[:900]
        return _Ended(f"The pool cannot be started: {text}.") if text else await self._status(process)

    async def _watch(self, process: Process) -> _Ended:
        """Return when the process has ended; one that does not answer several times in a row is killed."""
        health, misses = self.ingress(), 0
        waiting = asyncio.ensure_future(process.wait())
        try:
            while misses < self._settings.local_misses:
                done, _ = await asyncio.wait({waiting}, timeout=self._settings.drivers_seconds)
                if done:
                    return await self._status(process)
                misses = 0 if await _answers(health) else misses + 1
        finally:
            waiting.cancel()
            await health.aclose()
        await self._end(seconds=0.0)
        return _Ended("The pool's process did not answer any more and was killed; it is started again.")

    async def _status(self, process: Process) -> _Ended:
        """What the exit status of a process that has ended, or is about to, says."""
        try:
            async with asyncio.timeout(5.0):
                status = await process.wait()
        except TimeoutError:
            return _Ended("The pool's process said nothing of use and was killed; it is started again.")
        how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
        return _Ended(f"The pool's process {how} and is started again: see the operator's log.")

    async def _end(self, *, seconds: float) -> None:
        """End the process, if there is one: by the end of its stdin, and by SIGKILL after `seconds`."""
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(seconds):
                await process.wait()
        except TimeoutError:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def _answers(health: Ingress) -> bool:
    try:
        await health.drivers()
    except PoolError:
        return False
    return True

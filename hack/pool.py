"""A pool for tests and benches: `decurion worker serve` in a process of its own, and a client of its ingress."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from decurion_crds.compiled import CompiledGraph


class PoolDied(Exception):
    """The pool's process ended before it listened."""


class Pool:
    """`decurion worker serve --ledger URI …`. `env` are further variables; logs go to `folder`/pool.log."""

    def __init__(
        self,
        folder: Path,
        *,
        ledger: str,
        executor: str = "local",
        env: Mapping[str, str] | None = None,
        port: int = 0,
        runners: int = 1,
        branches: int = 1024,
        lease: float = 30.0,
        ping: float = 5.0,
        driver: str = "driver-0",
        more: tuple[str, ...] = (),
    ) -> None:
        self.driver = driver
        self.token = secrets.token_hex(16)
        self.ledger = ledger
        self._folder = folder
        self._env = {**os.environ, **(env or {}), "DECURION_POOL_TOKEN": self.token}
        self._args = [
            sys.executable, "-m", "decurion_cli", "worker", "serve", "--ledger", ledger, "--executor", executor,
            "--driver", driver, "--port", str(port), "--min-runners", str(runners), "--max-runners", str(runners),
            "--branches", str(branches), "--lease", str(lease), "--ping", str(ping), *more,
        ]  # fmt: skip
        self.url = ""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise PoolDied("the pool was not started")
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> Pool:
        """Start, or start again with the same token; `url` may be another one."""
        self._folder.mkdir(parents=True, exist_ok=True)
        log = (self._folder / "pool.log").open("ab")
        self._process = subprocess.Popen(
            self._args, stdout=subprocess.PIPE, stderr=log, env=self._env, start_new_session=True
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise PoolDied(f"`decurion worker serve` ended; see {self._folder / 'pool.log'}")
        self.url = json.loads(line)["url"]
        return self

    def stop(self, *, hard: bool = False) -> None:
        """End the process: SIGTERM, or SIGKILL when `hard`."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGKILL if hard else signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(20)

    def __enter__(self) -> Pool:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def client(self) -> Ingress:
        return Ingress(self.url, self.token, driver=self.driver)


class Ingress:
    """The calls of the ingress, synchronously."""

    def __init__(self, url: str, token: str, *, driver: str = "driver-0") -> None:
        self._driver = driver
        self._http = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=40.0)

    def call(self, method: str, path: str, body: Any = None, **query: Any) -> httpx.Response:
        return self._http.request(method, path, json=body, params=query)

    def put_bundle(self, graph: CompiledGraph) -> None:
        self.call("PUT", f"/bundles/{graph.digest}", graph.to_json()).raise_for_status()

    def open(self, graph: CompiledGraph, run: str, input: Any, *, epoch: int = 1, **more: Any) -> httpx.Response:
        body = {"uid": run, "name": run, "digest": graph.digest, "input": input, "leaderEpoch": epoch, **more}
        return self.call("POST", "/runs", body)

    def drivers(self) -> list[dict[str, Any]]:
        answer = self.call("GET", "/drivers")
        answer.raise_for_status()
        return list(answer.json()["drivers"])

    def changes(self, since: int = 0, wait: float = 0.0, incarnation: str = "") -> dict[str, Any]:
        path = f"/drivers/{self._driver}/changes"
        answer = self.call("GET", path, since=since, wait=wait, incarnation=incarnation)
        answer.raise_for_status()
        return dict(answer.json())

    def follow(
        self,
        run: str,
        *,
        until: Callable[[dict[str, Any]], bool],
        timeout: float = 60.0,
        reopen: Callable[[], Any] | None = None,
    ) -> dict[str, Any]:
        """Long-poll until the run's projection satisfies `until`.

        `reopen` is called while no driver has the run, as the operator would. Raises `TimeoutError`.
        """
        deadline = time.monotonic() + timeout
        cursor, incarnation = 0, ""
        last: dict[str, Any] = {}
        while time.monotonic() < deadline:
            try:
                answer = self.changes(cursor, 1.0 if incarnation else 0.0, incarnation)
                cursor, incarnation = answer["cursor"], answer["incarnation"]
                last = answer["runs"].get(run, last)
                if run in answer["runs"] and until(last):
                    return last
                if reopen is not None and run not in answer["runs"] and not self._has(run):
                    reopen()
            except httpx.HTTPError:
                time.sleep(0.1)
        raise TimeoutError(f"run {run} did not get there in {timeout:g} s; last seen: {last}")

    def _has(self, run: str) -> bool:
        return any(run in driver["runs"] for driver in self.drivers())

    def finished(self, run: str, *, timeout: float = 60.0, reopen: Callable[[], Any] | None = None) -> dict[str, Any]:
        return self.follow(run, until=lambda p: p["phase"] != "Running", timeout=timeout, reopen=reopen)

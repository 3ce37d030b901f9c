"""Graphs and loops that one runner runs whole in a branch: their time counts from what the log says of their start."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from decurion_ledger import LogWriter, Record, Store, open_store, read_log
from decurion_ledger.stores.memory import MemoryStore
from decurion_worker.driver import Driver
from decurion_worker.executors import LocalExecutor
from decurion_worker.opening import OpenRequest
from decurion_worker.runner import RunnerSettings
from decurion_worker.session import RunSession
from decurion_worker.sources import Sources
from manifests import compiled
from soak.plain_python import PlainPython
from virtual_time import in_virtual_time

SPEC = """
  nodes:
    - name: all
      map: {items: "[1]", as: item, template: branch}
  output: {got: nodes.all.output.items}
  templates:
    - name: branch
      input: {item: {type: integer}}
      nodes:
        - name: slow
          timeoutSeconds: 100
          KIND
          onFailure: skip
      output: {ok: "1 if nodes.slow.output else 0"}
    - name: two
      nodes:
        - {name: first, llm: {ref: minute, prompt: one}}
        - {name: second, after: [first], llm: {ref: minute, prompt: two}}
      output: {text: nodes.second.output.text}
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: minute}
spec: {protocol: scripted, scripted: {replies: [{reply: '{"text": "x"}', delaySeconds: SECONDS}]}}
"""
KINDS = {"graph": "graph: {template: two}", "loop": "loop: {template: two, maxIterations: 1, onExhausted: succeed}"}
BEGUN = datetime(2026, 1, 1, tzinfo=UTC)


async def ended(store: Store, *, later: float, request: OpenRequest) -> RunSession:
    """A run that is driven from `later` seconds after the time of the first one on."""

    def now() -> datetime:
        return BEGUN + timedelta(seconds=later + asyncio.get_running_loop().time())

    driver = Driver(
        "driver-0", store=store, ledger_uri="memory://times", sources=Sources(open_store, files=False), now=now
    )
    executor = LocalExecutor(RunnerSettings(processes=1), evaluator=lambda _: PlainPython(), now=now)
    await driver.start()
    await executor.start(driver)
    await executor.scale(1)
    try:
        session = await driver.open_run(request)
        async with asyncio.timeout(3600):
            await session.ended.wait()
    finally:
        await executor.stop()
        await driver.stop()
    return session


def request(**more: Any) -> OpenRequest:
    return OpenRequest(run="run", name="g", scheduled_at=BEGUN.isoformat(), **more)


async def cut(source: Store, target: Store, *, after: str) -> None:
    """Another ledger with the log up to the record at a path."""
    log = [record async for _, record in read_log(source, "run")]
    body = [record for record in log[1:] if record.type not in ("fence", "close")]
    at = next(i for i, record in enumerate(body) if record.path == after)
    for key in [info.key async for info in source.list("") if info.key.startswith("blobs/")]:
        await target.put_new(key, await source.get(key))
    opened = await LogWriter.open(target, "run", leader_epoch=0, driver="before", genesis=lambda: log[0])
    await opened.writer.append(body[: at + 1])


def opening(log: list[Record]) -> Record:
    (found,) = [record for record in log if record.path == "/all[00000]/slow!open"]
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("later", "ok"), [(60.0, 0), (20.0, 1)])
def test_a_runner_that_takes_one_over_counts_from_its_start(kind: str, later: float, ok: int) -> None:
    """The first call took 30 s of the 100 s and the second one takes as long: it is in time when it begins in time."""
    graph = compiled(SPEC.replace("KIND", KINDS[kind]).replace("SECONDS", "30"))
    store, other = MemoryStore(), MemoryStore()
    first = "/all[00000]/slow/first" if kind == "graph" else "/all[00000]/slow@001/first"

    async def whole() -> tuple[RunSession, list[Record]]:
        session = await ended(store, later=0.0, request=request(graph=graph, input={}))
        await cut(store, other, after=first)
        return session, [record async for _, record in read_log(store, "run")]

    session, log = in_virtual_time(whole())
    assert session.engine.output == {"got": [{"ok": 1}]}
    assert opening(log).envelope["at"] == "2026-01-01T00:00:00.000+00:00"
    resumed = in_virtual_time(ended(other, later=30.0 + later, request=request(leader_epoch=1)))
    assert resumed.engine.output == {"got": [{"ok": ok}]}
    if ok:
        assert resumed.facts.state_hash == session.facts.state_hash, "when it began is in no hash"

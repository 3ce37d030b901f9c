"""A run in this process: the same driver and engine as on a cluster, with runners on the same loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from decurion_crds.canonical import Json
from decurion_crds.compiled import CompiledGraph
from decurion_crds.v1alpha1 import CancelForm
from decurion_ledger import Store, Values, open_store
from decurion_worker.approving import Answer, Verdict
from decurion_worker.driver import Driver, DriverSettings
from decurion_worker.engine import Asked
from decurion_worker.errors import RunLetGo, RunWaits
from decurion_worker.executors.local import LocalExecutor
from decurion_worker.opening import OpenRequest
from decurion_worker.pool import Pool, PoolSettings
from decurion_worker.runkeys import GiveSealKey
from decurion_worker.runner import RunnerSettings
from decurion_worker.sources import Sources
from decurion_worker.wide import MAX_LIST

Progress = Callable[[dict[str, Json]], None]
"""Is told the run's projection whenever it changed."""
People = Callable[[Sequence[Asked], Callable[[Answer], Awaitable[Verdict]]], Awaitable[bool]]
"""Answers one at least of the requests that a run waits for; False when nobody is there who could."""


async def nobody(asked: Sequence[Asked], answer: Callable[[Answer], Awaitable[Verdict]]) -> bool:
    """People who are not there."""
    return False


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run ended: its last projection, and its output whole, its lists up to 1 GiB included. `sensitive`: it is
    not to be shown.
    """

    projection: dict[str, Json]
    output: Json
    sensitive: bool = False


async def run_embedded(
    request: OpenRequest,
    *,
    ledger: str,
    secrets: Callable[[CompiledGraph], Mapping[tuple[str, str], str]],
    progress: Progress = lambda projection: None,
    runners: int = 1,
    branches: int = 1024,
    settings: DriverSettings | None = None,
    store: Store | None = None,
    cancel: CancelForm | None = None,
    people: People = nobody,
    seal_key: GiveSealKey | None = None,
) -> RunEnd:
    """Open or resume a run on the ledger at `ledger` and see it to its end.

    `secrets` gives the values of the secrets that a graph names. `store` is that of the ledger, where it is open
    already. `cancel` is the form in which the run is ended, if it is to be. `people` answer what the run asks.
    `seal_key` gives the key with which those of runs with sensitive values are encrypted, where one is needed.

    Raises what `Driver.open_run` raises, `RunWaits` when the run waits for people and nobody is there, and `RunLetGo`
    when another driver took the run over or the store was away for longer than the patience.
    """
    store = store if store is not None else open_store(ledger)
    driver = Driver(
        "driver-0",
        store=store,
        ledger_uri=ledger,
        sources=Sources(open_store, files=True, ledger=ledger),
        # A person who opens a run again and again has a reason: nothing of it is taken for a crash.
        settings=replace(settings or DriverSettings(), crash_loops=False),
        seal_key=seal_key,
    )
    executor = LocalExecutor(RunnerSettings(branches=branches, patience=driver.settings.log.patience))
    pool = Pool(driver, executor, PoolSettings(min_runners=runners, max_runners=runners, branches=branches))
    await pool.start()
    try:
        return await _see_through(driver, request, secrets, progress, cancel, people)
    finally:
        await pool.stop()


async def _see_through(
    driver: Driver,
    request: OpenRequest,
    secrets: Callable[[CompiledGraph], Mapping[tuple[str, str], str]],
    progress: Progress,
    cancel: CancelForm | None,
    people: People,
) -> RunEnd:
    session = await driver.open_run(request)
    if cancel is not None and not session.ended.is_set():
        driver.cancel(request.run, cancel)
    if not session.ended.is_set():
        driver.give_secrets(request.run, secrets(session.graph))
    while not session.ended.is_set():
        cursor = driver.changes.cursor
        progress(session.projection())
        if cancel is None and session.engine.awaiting:
            pending = list(session.engine.approvals.pending())
            if not await people(pending, session.answer):
                raise RunWaits(request.run, pending[0].path, pending[0].message, len(pending) - 1)
        await driver.changes.wait(cursor, 5.0)
    progress(session.projection())
    if session.facts.state_hash is None:
        raise RunLetGo(request.run, session.why)
    values = Values(driver.store, request.run, seal=session.seal)
    output = await values.load(session.engine.output, limit=MAX_LIST)
    return RunEnd(session.projection(), output, sensitive=session.graph.root.sealed_output)

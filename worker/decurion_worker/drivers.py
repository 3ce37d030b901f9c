"""The ingress's calls on one driver object; used where the driver is in the same process, and inside a driver actor."""

from __future__ import annotations

import os
from collections.abc import Mapping

from decurion_crds.canonical import Json
from decurion_worker.bundles import parse_bundle, put_bundle
from decurion_worker.driver import Driver
from decurion_worker.errors import BadInput, DriverUnknown
from decurion_worker.opening import OpenRequest


class DriverCalls:
    """Implements `decurion_worker.serve.Drivers` for a single driver."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def put_bundle(self, digest: str, body: Json) -> None:
        await put_bundle(self._driver.store, parse_bundle(digest, body))

    async def open(self, body: Mapping[str, Json]) -> dict[str, Json]:
        driver = self._driver
        request = open_request(body)
        session = await driver.open_run(request)
        projection = driver.projection(request.run)
        answer = {
            "uid": request.run,
            "epoch": projection["attempt"],
            "driver": driver.name,
            "phase": projection["phase"],
        }
        return {**answer, "projection": projection} if session.ended.is_set() else answer

    async def secrets(self, run: str, values: Mapping[str, str]) -> None:
        pairs = {tuple(name.split("/", 1)): value for name, value in values.items()}
        self._driver.give_secrets(run, {(name, key): value for (name, key), value in pairs.items()})

    async def control(self, run: str, body: Mapping[str, Json]) -> None:
        if body.get("cancel") != "Cancel":
            raise BadInput([f"cancel: {body.get('cancel')!r} is not known; it can be Cancel"])
        self._driver.cancel(run, "Cancel")

    async def live(self, driver: str, body: Mapping[str, Json]) -> None:
        self._check(driver)
        uids = body.get("uids")
        if not isinstance(uids, list):
            raise BadInput(["uids: a list of run uids is due"])
        self._driver.live([str(uid) for uid in uids])

    async def list(self) -> list[dict[str, Json]]:
        driver = self._driver
        runs = sorted(driver.sessions)
        who = {"id": driver.name, "incarnation": driver.incarnation, "pid": os.getpid()}
        return [{**who, "runners": driver.runner_names(), "runs": runs}]

    async def changes(self, driver: str, *, since: int, incarnation: str, wait: float) -> dict[str, Json]:
        """A caller that names another incarnation is told everything there is, at once."""
        self._check(driver)
        own = self._driver
        if incarnation != own.incarnation:
            since, wait = 0, 0.0
        changed = await own.changes.wait(since, wait) if wait > 0 else own.changes.since(since)
        cursor = own.changes.cursor
        runs = {}
        for run in changed:
            if run in own.sessions or run in own.finished:
                runs[run] = own.projection(run)
        return {"incarnation": own.incarnation, "cursor": cursor, "runs": runs}

    def _check(self, driver: str) -> None:
        if driver != self._driver.name:
            raise DriverUnknown(driver)


def open_request(body: Mapping[str, Json]) -> OpenRequest:
    source = body.get("inputFrom") or {}
    return OpenRequest(
        run=body["uid"],
        name=body["name"],
        namespace=body.get("namespace") or "",
        digest=body.get("digest") or "",
        input=body.get("input"),
        input_uri=source.get("uri") or "",
        leader_epoch=int(body.get("leaderEpoch") or 0),
        scheduled_at=body.get("scheduledAt") or "",
        seed=body.get("seed") or "",
    )

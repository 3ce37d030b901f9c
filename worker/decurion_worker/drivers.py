"""The ingress's calls on one driver object; used where the driver is in the same process, and inside a driver actor."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from decurion_crds.canonical import Json
from decurion_crds.v1alpha1 import CancelForm
from decurion_ledger import Certificate, SealKey
from decurion_ledger.errors import WrongSealKey
from decurion_worker.approving import Answer
from decurion_worker.bundles import parse_bundle, put_bundle
from decurion_worker.context import secret_refs
from decurion_worker.driver import Driver
from decurion_worker.earlier import Earlier
from decurion_worker.errors import BadInput, DriverUnknown
from decurion_worker.opening import OpenRequest

MAX_EPOCH = 2**53 - 1


class DriverCalls:
    """Implements `decurion_worker.serve.Drivers` for a single driver."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._released = asyncio.Event()

    def release(self) -> None:
        """Answer all long polls now, and from now on at once: the server is about to end."""
        self._released.set()

    async def put_bundle(self, digest: str, body: Json) -> None:
        bundle = parse_bundle(digest, body)
        await self._driver.admission.check()
        await put_bundle(self._driver.store, bundle)

    async def open(self, body: Mapping[str, Json], **more: Json) -> dict[str, Json]:
        """`more` belongs to the body, and came apart from it."""
        driver = self._driver
        request = open_request({**body, **more})
        session = await driver.open_run(request)
        projection = driver.projection(request.run)
        answer = {
            "uid": request.run,
            "epoch": projection["attempt"],
            "driver": driver.name,
            "phase": projection["phase"],
            "secrets": sorted(f"{name}/{key}" for name, key in secret_refs(session.graph)),
        }
        return {**answer, "projection": projection} if session.ended.is_set() else answer

    async def secrets(self, run: str, values: Mapping[str, str]) -> None:
        pairs = {tuple(name.split("/", 1)): value for name, value in values.items()}
        self._driver.give_secrets(run, {(name, key): value for (name, key), value in pairs.items()})

    async def control(self, run: str, body: Mapping[str, Json]) -> None:
        parsed = _parse(_Control, body)
        if parsed.suspend is not None:
            self._driver.suspend(run, parsed.suspend, leader_epoch=parsed.leaderEpoch)
        if parsed.cancel is not None:
            self._driver.cancel(run, parsed.cancel, leader_epoch=parsed.leaderEpoch)

    async def answer(self, run: str, body: Mapping[str, Json]) -> dict[str, Json]:
        verdict = await self._driver.answer(run, Answer(**_parse(_Answer, body).model_dump()))
        return {"accepted": verdict.accepted, "message": verdict.why}

    async def live(self, driver: str, body: Mapping[str, Json]) -> None:
        self._check(driver)
        parsed = _parse(_Live, body)
        self._driver.live(parsed.cluster, parsed.uids, leader_epoch=parsed.leaderEpoch)

    async def list(self) -> list[dict[str, Json]]:
        driver = self._driver
        runs = sorted(driver.sessions)
        who = {
            "id": driver.name,
            "incarnation": driver.incarnation,
            "pid": os.getpid(),
            "cursor": driver.changes.cursor,
            "key": driver.key.public,
        }
        return [{**who, "runners": driver.runner_names(), "runs": runs}]

    async def changes(self, driver: str, *, since: int, incarnation: str, wait: float) -> dict[str, Json]:
        """A caller that names another incarnation is told everything there is, at once."""
        self._check(driver)
        own = self._driver
        if incarnation != own.incarnation:
            since, wait = 0, 0.0
        if wait > 0:
            await self._news(since, wait)
        changed = own.changes.since(since)
        cursor = own.changes.cursor
        runs = {}
        for run in changed:
            if run in own.sessions or run in own.finished or run in own.parked:
                runs[run] = own.projection(run)
        return {"incarnation": own.incarnation, "cursor": cursor, "runs": runs}

    async def _news(self, since: int, wait: float) -> None:
        """Wait for a change after `since`, at most `wait` seconds, and no longer than the server lives."""
        waiting = [
            asyncio.ensure_future(self._driver.changes.wait(since, wait)),
            asyncio.ensure_future(self._released.wait()),
        ]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()

    def _check(self, driver: str) -> None:
        if driver != self._driver.name:
            raise DriverUnknown(driver)


class _Source(BaseModel):
    model_config = ConfigDict(extra="ignore")
    uri: str


class _Earlier(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)
    uid: str = Field(min_length=1)
    path: str = ""


class _Open(BaseModel):
    """The body of `POST /runs`."""

    model_config = ConfigDict(extra="ignore", strict=True)
    uid: str = Field(min_length=1)
    name: str = Field(min_length=1)
    namespace: str = ""
    digest: str = ""
    input: Any = None
    inputFrom: _Source | None = None
    retryFrom: _Earlier | None = None
    forkFrom: _Earlier | None = None
    leaderEpoch: int = Field(0, ge=0, le=MAX_EPOCH)
    cluster: str = ""
    scheduledAt: str = ""
    seed: str = ""
    retentionSeconds: int | None = Field(None, ge=-1)
    certificates: list[dict[str, Any]] | None = Field(None, max_length=64)
    sealKey: str = Field("", max_length=256, repr=False)


class _Live(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)
    uids: list[str]
    cluster: str = ""
    leaderEpoch: int | None = Field(None, ge=0, le=MAX_EPOCH)


class _Control(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)
    cancel: CancelForm | None = None
    suspend: bool | None = None
    leaderEpoch: int | None = Field(None, ge=0, le=MAX_EPOCH)


class _Answer(BaseModel):
    """The body of `POST /runs/{run}/approvals`."""

    model_config = ConfigDict(extra="ignore", strict=True)
    id: str = Field(min_length=1, max_length=128)
    request: str = Field(max_length=128)
    digest: str = Field(max_length=128)
    decision: Literal["Approve", "Reject"]
    by: str = Field(min_length=1, max_length=253)
    group: str = Field("", max_length=253)
    name: str = Field("", max_length=253)
    comment: str = Field("", max_length=4096)
    form: dict[str, Any] | None = None


T = TypeVar("T", bound=BaseModel)


def _parse(kind: type[T], body: Mapping[str, Json]) -> T:
    try:
        return kind.model_validate(dict(body))
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_url=False)]
        raise BadInput(faults) from None


def open_request(body: Mapping[str, Json]) -> OpenRequest:
    """The request in a body. Raises `BadInput` with every fault."""
    parsed = _parse(_Open, body)
    if parsed.scheduledAt:
        try:
            datetime.fromisoformat(parsed.scheduledAt)
        except ValueError:
            raise BadInput([f"scheduledAt: {parsed.scheduledAt!r} is no time; write RFC 3339"]) from None
    return OpenRequest(
        run=parsed.uid,
        name=parsed.name,
        namespace=parsed.namespace,
        digest=parsed.digest,
        input=parsed.input,
        input_uri=parsed.inputFrom.uri if parsed.inputFrom else "",
        leader_epoch=parsed.leaderEpoch,
        cluster=parsed.cluster,
        scheduled_at=parsed.scheduledAt,
        seed=parsed.seed,
        earlier=_earlier(parsed),
        retention=parsed.retentionSeconds,
        appointed=_certificates(parsed.certificates),
        seal_key=_seal_key(parsed.sealKey),
    )


def _certificates(given: list[dict[str, Any]] | None) -> tuple[Certificate, ...] | None:
    try:
        return None if given is None else tuple(map(Certificate.from_json, given))
    except ValueError as error:
        raise BadInput([f"certificates: {error}"]) from None


def _seal_key(text: str) -> SealKey | None:
    try:
        return SealKey.of_text(text, "sealKey") if text else None
    except WrongSealKey:
        raise BadInput(["sealKey: it has 128 hexadecimal digits"]) from None


def _earlier(parsed: _Open) -> Earlier | None:
    if parsed.forkFrom is not None:
        return Earlier(parsed.forkFrom.uid, "fork", parsed.forkFrom.path)
    return Earlier(parsed.retryFrom.uid, "retry") if parsed.retryFrom is not None else None

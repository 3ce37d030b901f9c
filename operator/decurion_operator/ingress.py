"""Client of a pool's ingress: each method is one short call of its protocol.

The protocol is on the architecture page ("Drivers and runners on Ray"). Every call has a time-out, carries the pool's
token, and raises a `PoolError` that says whether asking again can help. The token is never part of a message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import httpx
import orjson

from decurion_ledger import Certificate, SealKey
from decurion_operator.errors import (
    BundleMissing,
    NotCertified,
    PoolRefused,
    PoolUnavailable,
    RunUnknown,
    StaleLeader,
    StoreRefused,
    StoreUnavailable,
)

JsonObject = dict[str, Any]
MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""No answer is larger: 5,000 runs with a status of 12 KiB each."""


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """What opens a run. At most one of `input` and `input_from` is set; `scheduled_at` is RFC 3339. `retry_from` is the
    uid of an earlier run, `fork_from` that of one and a path; with either, no input means that of the earlier run.
    `certificates` appoint drivers: the one that opens the run has to be among them;
    without any list of them its log is unsigned. `seal_key` is that with which its own key is encrypted, where
    something of it is sensitive.
    """

    uid: str
    name: str
    namespace: str
    digest: str
    leader_epoch: int
    scheduled_at: str
    cluster: str
    input: Any = None
    input_from: Mapping[str, Any] | None = None
    retry_from: str = ""
    fork_from: tuple[str, str] = ("", "")
    retention: int | None = None
    certificates: Sequence[Certificate] | None = None
    seal_key: SealKey | None = None

    def to_json(self) -> JsonObject:
        source: JsonObject = {"inputFrom": dict(self.input_from)} if self.input_from else {"input": self.input or {}}
        if self.retry_from or self.fork_from[0]:
            source = {name: value for name, value in source.items() if value}
        if self.retry_from:
            source["retryFrom"] = {"uid": self.retry_from}
        elif self.fork_from[0]:
            source["forkFrom"] = dict(zip(("uid", "path"), self.fork_from, strict=True))
        if self.retention is not None:
            source["retentionSeconds"] = self.retention
        if self.certificates is not None:
            source["certificates"] = [certificate.to_json() for certificate in self.certificates]
        if self.seal_key is not None:
            source["sealKey"] = self.seal_key.to_text()
        return source | {
            "uid": self.uid,
            "name": self.name,
            "namespace": self.namespace,
            "digest": self.digest,
            "leaderEpoch": self.leader_epoch,
            "scheduledAt": self.scheduled_at,
            "cluster": self.cluster,
        }


@dataclass(frozen=True, slots=True)
class Opened:
    """`projection` is that of a run that has ended. `secrets` are the entries that the closure needs, where told."""

    driver: str
    epoch: int
    projection: JsonObject | None = None
    secrets: frozenset[tuple[str, str]] | None = None


@dataclass(frozen=True, slots=True)
class Driver:
    """What a driver runs, and the cursor of its changes as it said so; 0 of one that does not tell. `key` is the public
    key with which it signs, in hex; empty of one that does not tell."""

    id: str
    incarnation: str
    runs: frozenset[str]
    cursor: int = 0
    key: str = ""


@dataclass(frozen=True, slots=True)
class Changes:
    """The latest projection of each run that changed since the cursor that was asked with."""

    incarnation: str
    cursor: int
    runs: Mapping[str, JsonObject]


class Observer(Protocol):
    def pool(self, verb: str, result: str) -> None: ...


class Ingress:
    """Calls to the ingress at `url`. `seconds` bounds a short call, and a long poll beyond its wait.

    With `socket` the calls go to that Unix socket; `url` is then a name for messages.
    """

    def __init__(
        self, url: str, *, token: str | None, seconds: float, observer: Observer, socket: str | None = None
    ) -> None:
        self.url = url.rstrip("/")
        self._seconds = seconds
        self._closed = False
        self._observer = observer
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        # A pool has a client of its own: what hangs there takes no connection from any other. Proxies of the
        # environment are for the world outside; a token must not travel through them.
        # Calls are counted where they are started, and there is one long poll a driver.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=16)
        self._client = httpx.AsyncClient(
            headers=headers,
            timeout=httpx.Timeout(seconds, connect=min(3.0, seconds)),
            transport=httpx.AsyncHTTPTransport(uds=socket, limits=limits, trust_env=False),
            follow_redirects=False,
            trust_env=False,
        )

    async def aclose(self) -> None:
        self._closed = True
        await self._client.aclose()

    async def put_bundle(self, digest: str, bundle: bytes) -> None:
        """Store a compiled graph, as canonical JSON, under its digest. Idempotent."""
        await self._call("bundle", "PUT", f"/bundles/{digest}", bundle)

    async def open(self, request: OpenRequest) -> Opened:
        """Open a run, or attach to it when it is open or has ended. Idempotent."""
        found = await self._call("open", "POST", "/runs", orjson.dumps(request.to_json()))
        projection, secrets = found.get("projection"), found.get("secrets")
        return Opened(
            driver=str(found.get("driver") or ""),
            epoch=found["epoch"] if isinstance(found.get("epoch"), int) else 0,
            projection=projection if isinstance(projection, dict) else None,
            secrets=_entries(secrets) if isinstance(secrets, list) else None,
        )

    async def put_secrets(self, uid: str, values: Mapping[tuple[str, str], str]) -> None:
        """Hand the values of Secret entries, by (name, key), to the driver that has the run."""
        body = {f"{name}/{key}": value for (name, key), value in values.items()}
        await self._call("secrets", "PUT", f"/runs/{uid}/secrets", orjson.dumps(body))

    async def cancel(self, uid: str, *, how: str, leader_epoch: int) -> None:
        await self._call(
            "control", "POST", f"/runs/{uid}/control", orjson.dumps({"cancel": how, "leaderEpoch": leader_epoch})
        )

    async def suspend(self, uid: str, *, wanted: bool, leader_epoch: int) -> None:
        """Start nothing more of a run, or go on with it. Idempotent."""
        body = {"suspend": wanted, "leaderEpoch": leader_epoch}
        await self._call("control", "POST", f"/runs/{uid}/control", orjson.dumps(body))

    async def answer(self, uid: str, answer: Mapping[str, Any]) -> str:
        """Hand the decision of a person to the driver of a run: why it is refused, empty once it is durable.
        Idempotent by its `id`.
        """
        found = await self._call("answer", "POST", f"/runs/{uid}/approvals", orjson.dumps(answer))
        if not isinstance(accepted := found.get("accepted"), bool):
            raise PoolUnavailable("The pool's answer to POST approvals is not of its protocol: check spec.url.")
        return "" if accepted else str(found.get("message") or "the pool refused it without a word")[:1024]

    async def drivers(self) -> tuple[Driver, ...]:
        found = await self._call("drivers", "GET", "/drivers")
        rows = found.get("drivers")
        if not isinstance(rows, list):
            raise PoolUnavailable("The pool's answer to GET /drivers is not of its protocol: check spec.url.")
        return tuple(
            Driver(
                str(row["id"]),
                str(row.get("incarnation", "")),
                frozenset(map(str, row.get("runs") or ())),
                row["cursor"] if isinstance(row.get("cursor"), int) else 0,
                row["key"] if isinstance(row.get("key"), str) else "",
            )
            for row in rows
            if isinstance(row, dict) and "id" in row
        )

    async def live(self, driver: str, *, uids: Sequence[str], cluster: str, leader_epoch: int) -> None:
        """Tell a driver which runs of this cluster are wanted; others of this cluster are cancelled after two lists."""
        body = {"uids": list(uids), "cluster": cluster, "leaderEpoch": leader_epoch}
        await self._call("live", "PUT", f"/drivers/{driver}/live", orjson.dumps(body))

    async def changes(self, driver: str, *, since: int, incarnation: str, wait: float) -> Changes:
        """Long poll: what changed since the cursor `since` of `incarnation`, at once or within `wait` seconds."""
        query = f"since={since}&wait={wait:g}" + (f"&incarnation={incarnation}" if incarnation else "")
        found = await self._call("changes", "GET", f"/drivers/{driver}/changes?{query}", wait=wait)
        runs, cursor = found.get("runs"), found.get("cursor")
        if not isinstance(runs, dict) or not isinstance(cursor, int):
            raise PoolUnavailable("The pool's answer to GET changes is not of its protocol: check spec.url.")
        return Changes(
            str(found.get("incarnation", "")), cursor, {u: p for u, p in runs.items() if isinstance(p, dict)}
        )

    async def _call(
        self, verb: str, method: str, path: str, content: bytes | None = None, *, wait: float = 0.0
    ) -> JsonObject:
        if self._closed:
            # Whoever waited for a free call now has a link that was replaced.
            raise PoolUnavailable(f"The link to the pool at {self.url} was closed: the call is made on its successor.")
        headers = {"Content-Type": "application/json"} if content is not None else {}
        timeout = httpx.Timeout(self._seconds + wait, connect=min(3.0, self._seconds))
        try:
            # The library's time-outs are for each read: an answer that drips would pass them for ever.
            async with asyncio.timeout(self._seconds + wait):
                response = await self._client.request(
                    method, self.url + path, content=content, headers=headers, timeout=timeout
                )
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
            self._observer.pool(verb, type(error).__name__)
            # The text of the library's error may repeat the request; the class says enough.
            raise PoolUnavailable(
                f"The pool at {self.url} gave no answer to {method} {path.partition('?')[0]} ({type(error).__name__})."
            ) from error
        self._observer.pool(verb, str(response.status_code))
        body = _object(response)
        if response.is_success:
            return body
        raise _error(response.status_code, body, f"{self.url} to {method} {path.partition('?')[0]}")


def _object(response: httpx.Response) -> JsonObject:
    if not response.content or len(response.content) > MAX_ANSWER_BYTES:
        return {}
    try:
        found = orjson.loads(response.content)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _entries(rows: list[Any]) -> frozenset[tuple[str, str]]:
    pairs = (row.partition("/") for row in rows if isinstance(row, str))
    return frozenset((name, key) for name, _, key in pairs if name and key)


def _first_finding(body: JsonObject) -> str:
    findings = body.get("findings")
    first = findings[0] if isinstance(findings, list) and findings else None
    if not isinstance(first, dict):
        return ""
    return f" {first.get('path', '')} [{first.get('code', '')}] {first.get('message', '')}"[:1024]


def _error(
    status: int, body: JsonObject, what: str
) -> BundleMissing | NotCertified | RunUnknown | StaleLeader | StoreUnavailable | PoolUnavailable | PoolRefused:
    code = body.get("error") if isinstance(body.get("error"), str) else ""
    said = str(body.get("message") or "")[:1024]
    highest = body.get("highest")
    if code == "StaleLeader" and isinstance(highest, int):
        return StaleLeader(said or f"The run's log has seen leader epoch {highest}.", highest=highest)
    if code == "NotCertified" and isinstance(key := body.get("key"), str):
        return NotCertified(said or "The driver's key is not certified.", key=key)
    if code == "BundleMissing":
        return BundleMissing(said or "The pool does not hold the compiled graph of this run.")
    if code == "RunUnknown":
        return RunUnknown(said or "No driver of the pool has the run.")
    if code == "StoreRefused":
        return StoreRefused(said or "The pool's ledger store does not keep what a ledger rests on.")
    if code == "StoreUnavailable":
        return StoreUnavailable(said or "The pool cannot reach its ledger store.")
    if code and 400 <= status < 500 and status not in (401, 403, 408, 425, 429):
        return PoolRefused((said or f"The pool refused the request with {code}.") + _first_finding(body), code=code)
    hint = ": check spec.auth of the WorkerPool" if status in (401, 403) else ""
    answer = f"{status} {code}" if code else str(status)
    return PoolUnavailable(f"The pool answered {answer} at {what}{hint}." + (f" {said}" if said else ""))

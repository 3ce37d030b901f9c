"""The one way to the API server: few verbs, plain dicts in and out.

Only this module imports `kubernetes`, and of it only the configuration and the HTTP session: building its models costs
more than the calls (measured: plain JSON does over 700 status patches a second, models about 300 applies).

What the operator's role has to allow, in each namespace that it serves:

    group            resources                                        verbs
    decurion.dev     agents, llms, mcpservers, taskgraphs, workerpools,
                     taskgraphruns, approvals                         get, list, watch
    decurion.dev     approvals                                        patch
    decurion.dev     taskgraphruns                                    delete
    decurion.dev     agents/status, llms/status, mcpservers/status,
                     taskgraphs/status, workerpools/status,
                     taskgraphruns/status, approvals/status           patch
    (core)           secrets                                          get, list, watch
    (core)           events                                           create
    (core)           secrets, configmaps                              create
    (core)           configmaps                                       get, patch
    (core)           namespaces, name kube-system                     get (cluster role; its uid names the cluster)

The last rows but one are for the root key and the seal key, and needed in the own namespace of the operator alone.

Every call passes a token bucket of the client, has a time-out, and is counted. Nothing is retried here: the queue does.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote, urlencode

import aiohttp
import orjson
from kubernetes.aio import config as kube_config
from kubernetes.aio.client import ApiClient, Configuration
from yaml import YAMLError

from decurion_crds.v1alpha1.base import GROUP, VERSION
from decurion_operator.errors import (
    ClusterError,
    ClusterUnavailable,
    Conflict,
    NotFound,
    Refused,
    SecretNotUsable,
    StartError,
    TooLarge,
)
from decurion_operator.metrics import Meter
from decurion_operator.pacing import Limiter
from decurion_operator.queue import Backoff, Key
from decurion_operator.secret_use import USE_LABEL, not_usable
from decurion_operator.settings import OperatorSettings

JsonObject = dict[str, Any]

PATHS: Mapping[str, tuple[str, str]] = {
    "Agent": (f"/apis/{GROUP}/{VERSION}", "agents"),
    "Approval": (f"/apis/{GROUP}/{VERSION}", "approvals"),
    "LLM": (f"/apis/{GROUP}/{VERSION}", "llms"),
    "MCPServer": (f"/apis/{GROUP}/{VERSION}", "mcpservers"),
    "TaskGraph": (f"/apis/{GROUP}/{VERSION}", "taskgraphs"),
    "TaskGraphRun": (f"/apis/{GROUP}/{VERSION}", "taskgraphruns"),
    "WorkerPool": (f"/apis/{GROUP}/{VERSION}", "workerpools"),
    "Secret": ("/api/v1", "secrets"),
    "ConfigMap": ("/api/v1", "configmaps"),
    "Event": ("/api/v1", "events"),
    "Namespace": ("/api/v1", "namespaces"),
    "SelfSubjectReview": ("/apis/authentication.k8s.io/v1", "selfsubjectreviews"),
}
PAGE_TRIES = 4
"""How often a page of a list is asked for before the list fails."""
_METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_JSON_PATCH = "application/json-patch+json"
_MERGE_PATCH = "application/merge-patch+json"
_UNUSABLE = (kube_config.ConfigException, OSError, YAMLError, ValueError, TypeError, KeyError, AttributeError)
"""What reading a kubeconfig raises: the library takes its form for granted."""
_TOO_LARGE = ("request is too large", "exceeds the maximum size", "trying to send message larger than max")


@dataclass(frozen=True, slots=True)
class Connection:
    """An API server and the credentials for it. `repr` shows no token: records are logged."""

    server: str
    token: str | None = field(repr=False)
    ca_path: str | None
    certificate_path: str | None
    key_path: str | None
    verify: bool


@dataclass(frozen=True, slots=True)
class Version:
    """What anti-entropy needs to know of one object."""

    key: Key
    uid: str
    version: str


class Gateway:
    """Calls to one API server. Open it with `connect`, close it with `aclose`. All methods raise `ClusterError`s."""

    def __init__(self, client: ApiClient, settings: OperatorSettings, meter: Meter) -> None:
        self._client = client
        self._settings = settings
        self._meter = meter
        self._limiter = Limiter(rate=settings.api_rate, burst=settings.api_burst)
        self._backoff = Backoff(base=settings.backoff_seconds, cap=settings.backoff_cap_seconds)

    @classmethod
    async def connect(cls, settings: OperatorSettings, meter: Meter) -> Self:
        """A gateway to the cluster that `settings.kubeconfig` names, or to the one that this pod runs in.

        Raises `StartError` when there is no usable configuration.
        """
        configuration = Configuration()
        try:
            if settings.kubeconfig is None and os.environ.get("KUBERNETES_SERVICE_HOST"):
                kube_config.load_incluster_config(configuration)  # type: ignore[no-untyped-call]
            else:
                await kube_config.load_kube_config(  # type: ignore[no-untyped-call]
                    config_file=settings.kubeconfig, client_configuration=configuration
                )
        except _UNUSABLE as error:
            raise _no_cluster(settings.kubeconfig, error, "let KUBECONFIG name a readable file") from error
        return cls(ApiClient(configuration), settings, meter)

    async def connection(self) -> Connection:
        """Where the API server is and how to be known to it, for the one other client of this process: the watch."""
        configuration = self._client.configuration
        auth = await configuration.auth_settings()
        token = str(auth["BearerToken"]["value"]).partition(" ")[2] if "BearerToken" in auth else None
        return Connection(
            server=configuration.host,
            token=token,
            ca_path=configuration.ssl_ca_cert,
            certificate_path=configuration.cert_file,
            key_path=configuration.key_file,
            verify=bool(configuration.verify_ssl),
        )

    async def aclose(self) -> None:
        await self._client.close()  # type: ignore[no-untyped-call]

    async def get(self, key: Key) -> JsonObject:
        return await self._call("GET", key.kind, _path(key.kind, key.namespace, key.name))

    async def list_objects(
        self, kind: str, *, namespace: str | None = None, label: str | None = None
    ) -> AsyncIterator[JsonObject]:
        """Every object of `kind`, page by page; a `ClusterError` in the middle means that the list is not complete."""
        async for item in self._pages(kind, namespace, label, accept="application/json"):
            yield item

    async def list_versions(
        self, kind: str, *, namespace: str | None = None, label: str | None = None
    ) -> AsyncIterator[Version]:
        """Name, uid and version of every object of `kind`, as `list_objects`."""
        async for item in self._pages(kind, namespace, label, accept=_METADATA_ONLY):
            meta = item["metadata"]
            key = Key(kind, meta.get("namespace", ""), meta["name"])
            yield Version(key, meta["uid"], meta["resourceVersion"])

    async def patch_status(self, key: Key, *, version: str, patch: Sequence[JsonObject]) -> JsonObject:
        """Apply JSON-patch operations to the status of the object, whose version must still be `version`.

        Returns the object as stored. Raises `Conflict` when it has another version, `TooLarge`, `NotFound`.
        """
        # The version in the patched object is what the API server compares: another one is a clean 409, where a
        # failed "test" operation would be a 422 that cannot be told from a refused status.
        guard = {"op": "replace", "path": "/metadata/resourceVersion", "value": version}
        path = _path(key.kind, key.namespace, key.name) + "/status"
        stored = await self._call("PATCH", key.kind, path, body=[guard, *patch], content_type=_JSON_PATCH)
        self._meter.wrote(key)
        return stored

    async def delete(self, key: Key, *, uid: str) -> None:
        """Delete the object if it is still the one with `uid`; `Conflict` otherwise. An absent object is no error."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        try:
            await self._call("DELETE", key.kind, _path(key.kind, key.namespace, key.name), body=body)
        except NotFound:
            return
        self._meter.wrote(key)

    async def own(self, key: Key, *, uid: str, owner: JsonObject) -> None:
        """Let an object go when `owner` goes. An object that is gone, or another one by now, is no error."""
        try:
            found = await self.get(key)
        except NotFound:
            return
        meta = found["metadata"]
        owners = meta.get("ownerReferences") or []
        if meta["uid"] != uid or any(one["uid"] == owner["uid"] for one in owners):
            return
        changed = {"metadata": {"resourceVersion": meta["resourceVersion"], "ownerReferences": [*owners, owner]}}
        path = _path(key.kind, key.namespace, key.name)
        await self._call("PATCH", key.kind, path, body=changed, content_type=_MERGE_PATCH)
        self._meter.wrote(key)

    async def create(self, kind: str, namespace: str, body: JsonObject) -> JsonObject:
        """Create an object; what was stored."""
        return await self._call("POST", kind, _path(kind, namespace), body=body)

    async def merge(self, key: Key, patch: JsonObject, *, version: str) -> None:
        """Merge `patch` into the object, whose version must still be `version`; `Conflict` otherwise."""
        changed = {**patch, "metadata": {"resourceVersion": version}}
        path = _path(key.kind, key.namespace, key.name)
        await self._call("PATCH", key.kind, path, body=changed, content_type=_MERGE_PATCH)
        self._meter.wrote(key)

    async def user(self) -> str:
        """The name by which the API server knows the caller."""
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        found = await self._call("POST", "SelfSubjectReview", _path("SelfSubjectReview", ""), body=review)
        return str(found["status"]["userInfo"]["username"])

    async def create_event(self, about: Key, event: JsonObject) -> bool:
        """Create a core/v1 Event about an object; False when one of that name exists."""
        try:
            await self._call("POST", "Event", _path("Event", about.namespace), body=event)
        except Conflict:
            return False
        self._meter.wrote(about)
        return True

    async def read_secret(self, namespace: str, name: str) -> dict[str, str]:
        """The values of a Secret that is labelled for use, by key. Raises `SecretNotUsable`.

        Values that are not UTF-8 text are left out: they can be no token.
        """
        try:
            found = await self._call("GET", "Secret", _path("Secret", namespace, name))
        except (NotFound, Refused) as error:
            if error.status not in (403, 404):
                raise
            raise SecretNotUsable(not_usable(name)) from error
        if (found["metadata"].get("labels") or {}).get(USE_LABEL) != "true":
            raise SecretNotUsable(not_usable(name))
        return dict(_texts(found.get("data") or {}))

    async def cluster_uid(self) -> str:
        """The uid of the namespace `kube-system`, by which clusters are told apart."""
        found = await self._call("GET", "Namespace", _path("Namespace", "", "kube-system"))
        return str(found["metadata"]["uid"])

    async def _pages(
        self, kind: str, namespace: str | None, label: str | None, *, accept: str
    ) -> AsyncIterator[JsonObject]:
        query = {"limit": str(self._settings.page_size)} | ({"labelSelector": label} if label else {})
        while True:
            page = await self._page(kind, _path(kind, namespace or ""), query, accept=accept)
            # An empty list of metadata alone is null.
            for item in page["items"] or ():
                yield item
            query["continue"] = page["metadata"].get("continue") or ""
            if not query["continue"]:
                return

    async def _page(self, kind: str, path: str, query: dict[str, str], *, accept: str) -> JsonObject:
        """One page of a list, asked for again with half its size while a busy server does not bring it: what was read
        before it is not thrown away. `query` keeps the size that went well.

        Never from the server's memory as it stands (`resourceVersion=0`): that ignores `limit`, and a list that is
        older than what we know would make us take new objects for deleted ones.
        """
        failures = 0
        while True:
            try:
                return await self._call("GET", kind, f"{path}?{urlencode(query)}", accept=accept, verb="LIST")
            except ClusterUnavailable as error:
                failures += 1
                # A server that is not there at all is for the caller, unless there is something to lose.
                if failures == PAGE_TRIES or not (error.status or query.get("continue")):
                    raise
            query["limit"] = str(max(1, int(query["limit"]) // 2))
            await asyncio.sleep(self._backoff.delay(failures))

    async def _call(
        self,
        method: str,
        kind: str,
        path: str,
        *,
        body: Any = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        verb: str = "",
    ) -> JsonObject:
        loop, s = asyncio.get_running_loop(), self._settings
        await asyncio.sleep(self._limiter.reserve(loop.time()) - loop.time())
        headers = {"Accept": accept, "Content-Type": content_type, "User-Agent": "decurion-operator"}
        status, data = 0, b""
        try:
            # Asked for each call: the token of a service account is renewed while the process runs.
            auth = await self._client.configuration.auth_settings()
            headers |= {setting["key"]: setting["value"] for setting in auth.values()}
            async with asyncio.timeout(s.list_seconds if verb == "LIST" else s.api_seconds):
                response = await self._client.call_api(method, self._client.configuration.host + path, headers, body)
                status, data = response.status, await response.read()  # type: ignore[no-untyped-call]
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ClusterUnavailable(
                f"The API server gave no answer to {method} {path} ({type(error).__name__}): it will be asked again."
            ) from error
        finally:
            sent = 0 if body is None else len(orjson.dumps(body))
            self._meter.api(verb or method, kind, status, sent=sent, received=len(data))
        if status >= 400:
            raise _error(status, data, f"{method} {path.partition('?')[0]}")
        found: JsonObject = orjson.loads(data)
        return found


def current_namespace(kubeconfig: str | None) -> str:
    """The namespace of the current context of a kubeconfig. Raises `StartError`."""
    try:
        _, current = kube_config.list_kube_config_contexts(config_file=kubeconfig)  # type: ignore[no-untyped-call]
        return str((current or {}).get("context", {}).get("namespace") or "default")
    except _UNUSABLE as error:
        raise _no_cluster(kubeconfig, error, "name --kubeconfig, or --ledger") from error


def _no_cluster(kubeconfig: str | None, error: Exception, remedy: str) -> StartError:
    told = isinstance(error, kube_config.ConfigException | OSError | YAMLError)
    why = " ".join(str(error).split()).rstrip(".") if told else "it has not the form of a kubeconfig"
    if kubeconfig and not Path(kubeconfig).exists():
        why = "there is no such file"
    return StartError(f"No cluster can be reached with {kubeconfig or 'the default kubeconfig'} ({why}): {remedy}.")


def _path(kind: str, namespace: str, name: str = "") -> str:
    root, plural = PATHS[kind]
    scope = f"/namespaces/{quote(namespace)}" if namespace else ""
    return f"{root}{scope}/{plural}" + (f"/{quote(name)}" if name else "")


def _texts(data: Mapping[str, str]) -> list[tuple[str, str]]:
    texts = []
    for key, encoded in data.items():
        try:
            texts.append((key, base64.b64decode(encoded, validate=True).decode()))
        except (binascii.Error, UnicodeDecodeError):
            continue
    return texts


def _error(status: int, data: bytes, what: str) -> ClusterError:
    try:
        body = orjson.loads(data)
        message = str(body.get("message", ""))[:1024] if isinstance(body, dict) else ""
    except orjson.JSONDecodeError:
        message = data[:256].decode(errors="replace")
    text = f"{what} was answered {status}: {message or 'without a message'}"
    if status == 413 or any(mark in message for mark in _TOO_LARGE):
        return TooLarge(text, status=status, said=message)
    if status == 404:
        return NotFound(text, status=status, said=message)
    if status == 409:
        return Conflict(text, status=status, said=message)
    if status == 429 or status >= 500:
        return ClusterUnavailable(text, status=status, said=message)
    return Refused(text, status=status, said=message)

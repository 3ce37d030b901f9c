"""The watch: what happens to our objects, as kopf sees it, handed on as plain dicts.

Only this module imports kopf. It uses `on.event` and nothing else: no handler state, no annotations, no finalizers, no
events of kopf's own, no peering. kopf gets a thread and an event loop of its own, since on its way out it cancels every
task of the loop that it runs in; when it ends by an error (an error inside a watch stream ends it by design) the watch
is started again, and lists everything again.

An object that is deleted while no watch stands is never told of: `resync` finds it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import kopf

from decurion_crds.v1alpha1 import GROUP, VERSION
from decurion_operator.errors import ClusterUnavailable
from decurion_operator.gateway import Connection
from decurion_operator.metrics import Meter
from decurion_operator.queue import Backoff
from decurion_operator.secret_use import USE_SELECTOR
from decurion_operator.settings import OperatorSettings
from decurion_operator.tasks import forever

logger = logging.getLogger(__name__)

KINDS = {
    "agents": "Agent",
    "approvals": "Approval",
    "llms": "LLM",
    "mcpservers": "MCPServer",
    "taskgraphs": "TaskGraph",
    "taskgraphruns": "TaskGraphRun",
    "workerpools": "WorkerPool",
}


class Feed(Protocol):
    """Takes what the watch sees: the kind, whether the object is gone, and the object. Called on the event loop."""

    def __call__(self, kind: str, obj: dict[str, Any], *, gone: bool) -> None: ...


class Watch:
    """The watch of one operator. `run` until cancelled; `watching` is true while kopf runs."""

    def __init__(
        self,
        settings: OperatorSettings,
        meter: Meter,
        *,
        connection: Callable[[], Coroutine[Any, Any, Connection]],
        feed: Feed,
    ) -> None:
        self._connection = connection
        self._settings = settings
        self._meter = meter
        self._feed = feed
        self._loop = asyncio.get_running_loop()
        self._seen = time.monotonic()
        self.watching = False

    async def run(self) -> None:
        await forever("the watch", self._once, backoff=Backoff(base=1.0, cap=30.0))

    def age(self) -> float:
        """Seconds since the watch last brought anything."""
        return time.monotonic() - self._seen

    async def _once(self) -> None:
        """Run kopf in a thread until it ends, which it never does while all is well: raises `ClusterUnavailable`."""
        stop, ready, ended = threading.Event(), threading.Event(), asyncio.Event()
        failure: list[BaseException | None] = []

        def on_end(error: BaseException | None) -> None:
            failure.append(error)
            ended.set()

        thread = _WatchThread(self._kopf(stop, ready), on_end, self._loop)
        thread.start()
        self.watching = True
        try:
            await ended.wait()
        finally:
            self.watching = False
            stop.set()
            # kopf needs a moment to close its streams; the process must not wait for one that hangs.
            await self._loop.run_in_executor(None, thread.join, 10.0)
        self._meter.watch_restarts.inc()
        raise ClusterUnavailable(f"The watch ended ({failure[0]!r}).") from failure[0]

    async def _kopf(self, stop: threading.Event, ready: threading.Event) -> None:
        registry = kopf.OperatorRegistry()
        self._register(registry)
        namespaces = self._settings.namespaces
        await kopf.operator(
            registry=registry,
            settings=_kopf_settings(self._settings),
            standalone=True,
            clusterwide=not namespaces,
            namespaces=namespaces,
            stop_flag=stop,
            ready_flag=ready,
        )

    def _register(self, registry: kopf.OperatorRegistry) -> None:
        async def login(**_: Any) -> kopf.ConnectionInfo:
            asked = asyncio.run_coroutine_threadsafe(self._connection(), self._loop)
            found = await asyncio.wrap_future(asked)
            return kopf.ConnectionInfo(
                server=found.server,
                ca_path=found.ca_path,
                insecure=not found.verify,
                certificate_path=found.certificate_path,
                private_key_path=found.key_path,
                scheme="Bearer" if found.token else None,
                token=found.token,
            )

        kopf.on.login(registry=registry, id="gateway")(login)
        for plural, kind in KINDS.items():
            kopf.on.event(GROUP, VERSION, plural, registry=registry, id=plural)(self._handler(kind))
        kopf.on.event("", "v1", "secrets", registry=registry, id="secrets")(self._handler("Secret"))

    def _handler(self, kind: str) -> Callable[..., Any]:
        async def handle(event: Any, **_: Any) -> None:
            self._seen = time.monotonic()
            gone = event["type"] == "DELETED"
            self._loop.call_soon_threadsafe(lambda: self._feed(kind, dict(event["object"]), gone=gone))

        return handle


class _WatchThread(threading.Thread):
    """A thread with a loop of its own that runs one coroutine and tells the other loop how it ended."""

    def __init__(
        self,
        work: Any,
        on_end: Callable[[BaseException | None], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(name="watch", daemon=True)
        self._work = work
        self._on_end = on_end
        self._loop = loop

    def run(self) -> None:
        with asyncio.Runner() as runner:
            task = runner.get_loop().create_task(self._work)
            runner.run(_settled(task))
        error = None if task.cancelled() else task.exception()
        self._loop.call_soon_threadsafe(self._on_end, error)


async def _settled(task: asyncio.Task[None]) -> None:
    await asyncio.wait({task})


def _kopf_settings(own: OperatorSettings) -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.peering.standalone = True
    # Our kinds are there before the watch starts, and namespaces are named or all: nothing has to be discovered.
    settings.scanning.disabled = True
    settings.watching.chunk_size = own.page_size
    settings.watching.server_timeout = 300
    settings.watching.connect_timeout = 5
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 5
    settings.watching.label_selectors["", "v1", "secrets"] = USE_SELECTOR
    # kopf would kill the process some minutes after its own end; here its end is not that of the process.
    settings.process.ultimate_exiting_timeout = None
    return settings

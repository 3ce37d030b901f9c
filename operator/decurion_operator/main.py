"""The operator as a whole: what it is made of, how it starts and how it ends.

watch ──┐                        ┌─▶ Definitions  (LLM, TaskGraph) ──┐
resync ─┼─▶ cache ─▶ dispatcher ─┼─▶ WorkerPools ─────────────────────┼─▶ StatusWriter ─▶ gateway
actions ┘                        └─▶ Runs ───────────────────────────┘
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from decurion_ledger import SealKey, SigningKey
from decurion_operator.allocator import give_back_large_blocks
from decurion_operator.appointing import OWN_NAMESPACE, Appointer, root_key
from decurion_operator.approvals import Approvals
from decurion_operator.cache import Cache, Resource, trim
from decurion_operator.compiling import CheckedCompiler, CompileGraph, Compiling
from decurion_operator.definitions import Definitions, Parser
from decurion_operator.errors import ClusterError, NotFound, Refused, StartError
from decurion_operator.gateway import Gateway, current_namespace
from decurion_operator.handlers import Watch
from decurion_operator.history import History
from decurion_operator.leader import Leader
from decurion_operator.metrics import Meter
from decurion_operator.pacing import Pacer
from decurion_operator.probes import Probes, measure_lag
from decurion_operator.queue import Backoff, Dispatcher, Key
from decurion_operator.resync import Resync
from decurion_operator.runs import Runs
from decurion_operator.sealing import seal_key
from decurion_operator.settings import OperatorSettings
from decurion_operator.tasks import Deeds, forever
from decurion_operator.workerpools import WorkerPools
from decurion_operator.writes import Recorder, StatusWriter

__all__ = ["Operator", "OperatorSettings", "run_operator"]

logger = logging.getLogger(__name__)
T = TypeVar("T")


def run_operator(settings: OperatorSettings) -> None:
    """Run the operator until SIGTERM or SIGINT. Raises `StartError` when it cannot start."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    # What kopf says at INFO is about handlers, of which there is one, and that signals are not its business.
    logging.getLogger("kopf").setLevel(logging.ERROR)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    give_back_large_blocks()
    asyncio.run(_run(settings))


async def _run(settings: OperatorSettings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    operator = await Operator.start(settings)
    try:
        await operator.run(stop)
    finally:
        await operator.aclose()


class Operator:
    """One operator. `start` connects and reads the cluster once, `run` works until `stop` is set, then `aclose`."""

    def __init__(
        self,
        gateway: Gateway,
        settings: OperatorSettings,
        meter: Meter,
        compiler: CompileGraph,
        *,
        cluster: str,
        root: SigningKey,
        seal: SealKey,
    ) -> None:
        self.meter = meter
        self.cache = Cache()
        self._settings = settings
        self._gateway = gateway
        self._leader = Leader(time.time)
        add, cache = self._add, self.cache
        backoff = Backoff(base=settings.backoff_seconds, cap=settings.backoff_cap_seconds)
        self._dispatcher = Dispatcher(self._reconcile, backoff=backoff, concurrency=settings.reconciles, observer=meter)
        statuses = StatusWriter(gateway, cache, Pacer(settings), changed=self._written, now=time.time)
        parser = Parser()
        self._compiling = Compiling(compiler, settings, meter, ready=add)
        self._deeds = Deeds(changed=add, again=self._dispatcher.add_in, backoff=backoff)
        self._definitions = Definitions(cache, self._compiling, statuses, parser, add=add, now=time.time)
        self._pools = WorkerPools(
            cache, gateway, statuses, parser, self._leader, settings, meter, cluster=cluster, add=add, now=time.time
        )
        self._runs = Runs(
            cache,
            gateway,
            self._definitions,
            self._compiling,
            self._pools,
            Appointer(root, cluster=cluster),
            self._deeds,
            statuses,
            Recorder(gateway, now=time.time),
            self._leader,
            settings,
            cluster=cluster,
            now=time.time,
            seal_key=seal,
        )
        self._history = History(cache, gateway, self._deeds, again=self._dispatcher.add_in)
        self._approvals = Approvals(cache, gateway, self._pools, self._deeds, statuses, now=time.time)
        self._watch = Watch(settings, meter, connection=gateway.connection, feed=self._feed)
        self._resync = Resync(cache, gateway, settings, saw=self._saw_surely, lost=self._lost, complete=self._compared)
        in_pod = "KUBERNETES_SERVICE_HOST" in os.environ
        host = settings.health_host or ("0.0.0.0" if in_pod else "127.0.0.1")
        self.probes = Probes(meter, host=host, port=settings.health_port, ready=self._not_ready, refresh=self._refresh)

    @classmethod
    async def start(cls, settings: OperatorSettings, compiler: CompileGraph | None = None) -> Operator:
        """Connect, and read everything once. Raises `StartError`."""
        meter = Meter()
        gateway = await Gateway.connect(settings, meter)
        operator = None
        try:
            cluster = settings.cluster_id or await _cluster_id(gateway, settings)
            root = await _kept(root_key, gateway, settings)
            seal = await _kept(seal_key, gateway, settings)
            compiler = compiler or CheckedCompiler()
            operator = cls(gateway, settings, meter, compiler, cluster=cluster, root=root, seal=seal)
            await operator._prime()
        except (StartError, asyncio.CancelledError):
            if operator is not None:
                operator.probes.close()
            await gateway.aclose()
            raise
        return operator

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set. An error of one of the loops themselves ends the operator."""
        logger.info(
            "operating %s with leader epoch %d, probes on port %d",
            ", ".join(self._settings.namespaces) or "all namespaces",
            self._leader.epoch,
            self.probes.port,
        )
        loops = [
            asyncio.ensure_future(work)
            for work in (
                self._dispatcher.run(),
                self._watch.run(),
                forever("the comparison with the cluster", self._resync.run, backoff=Backoff(base=5.0, cap=60.0)),
                self.probes.run(),
                measure_lag(self.meter),
            )
        ]
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait({stopping, *loops}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.probes.stop()
            for task in (stopping, *loops):
                task.cancel()
            await asyncio.wait({stopping, *loops})
        for task in loops:
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def aclose(self) -> None:
        """End work in progress within `stop_seconds`, then close connections. Runs go on at their drivers."""
        await self._dispatcher.drain(self._settings.stop_seconds)
        await self._deeds.aclose()
        await self._pools.aclose()
        await self._compiling.aclose()
        await self._gateway.aclose()

    async def _prime(self) -> None:
        deadline = time.monotonic() + self._settings.start_seconds
        while True:
            try:
                await self._resync.prime()
                return
            except ClusterError as error:
                if isinstance(error, Refused) or time.monotonic() > deadline:
                    raise StartError(_why(error)) from error
            await asyncio.sleep(0.5)

    async def _reconcile(self, key: Key) -> float | None:
        match key.kind:
            case "LLM" | "MCPServer" | "Agent":
                return await self._definitions.reconcile_endpoint(key)
            case "TaskGraph":
                self._history.tidy(key)
                return await self._definitions.reconcile_graph(key)
            case "WorkerPool":
                return await self._pools.reconcile(key)
            case "Approval":
                return await self._approvals.reconcile(key)
            case _:
                run = self.cache.get(key)
                if run is not None and run.finished:
                    self._history.ended(run)
                return await self._runs.reconcile(key)

    def _add(self, key: Key) -> None:
        self._dispatcher.add(key)

    def _written(self, key: Key) -> None:
        """A status was written. The watch's echo of it is no news, so what it means is looked at now."""
        self._add(key)
        run = self.cache.get(key) if key.kind == "TaskGraphRun" else None
        if run is not None:
            self._add(run.pool)

    def _feed(self, kind: str, obj: dict[str, Any], *, gone: bool) -> None:
        resource = trim(kind, obj)
        if gone:
            self._lost(resource.key, resource.uid)
        else:
            self._saw(resource)

    def _saw_surely(self, resource: Resource) -> None:
        self._saw(resource, certain=True)

    def _saw(self, resource: Resource, *, certain: bool = False) -> None:
        before = self.cache.get(resource.key)
        if before is not None and before.uid != resource.uid:
            # Deleted and created again between two looks.
            self._lost(before.key, before.uid)
            before = None
        if not self.cache.put(resource, certain=certain):
            return
        self._add_dependants(resource)
        if before is None or before.generation != resource.generation:
            if resource.key.kind == "TaskGraph":
                self._add_users(resource.key)
            for one in (resource,) if before is None else (before, resource):
                self._add_bound(one)
        if resource.key.kind == "TaskGraphRun" and (before is None or _ranked(before) != _ranked(resource)):
            self._add(resource.pool)

    def _lost(self, key: Key, uid: str) -> None:
        gone = self.cache.remove(key, uid=uid)
        if gone is None:
            return
        self._add_dependants(gone)
        if key.kind == "TaskGraph":
            self._add_users(key)
        self._add_bound(gone)
        self.meter.tally.forget(key)
        if key.kind == "Approval":
            self._approvals.gone(gone)
        if key.kind == "TaskGraphRun":
            self._runs.gone(gone)
            self._history.ended(gone)
            self._add(gone.pool)
            self._pools.tell_live()

    def _add_dependants(self, resource: Resource) -> None:
        """Make due what a change of `resource` may mean something for, itself included."""
        key = resource.key
        if key.kind in ("LLM", "MCPServer", "Agent"):
            self._add_users(key)
        elif key.kind == "Secret":
            for one in (*self.cache.referrers(key, "LLM"), *self.cache.referrers(key, "MCPServer")):
                self._add(one.key)
                self._add_users(one.key)
            for pool in self.cache.referrers(key, "WorkerPool"):
                self._add(pool.key)
            # Running runs get the new values; queued ones may have waited for them, and the queue passed them over.
            for run in self.cache.all("TaskGraphRun"):
                if run.key.namespace == key.namespace and not run.finished:
                    self._add(run.key)
                    self._add(run.pool)
            return
        self._add(key)

    def _add_users(self, key: Key) -> None:
        """Make due the graphs whose closure holds `key`, and the runs that name an LLM or MCPServer."""
        for graph in self.cache.users(key):
            self._add(graph.key)
            if key.kind in ("LLM", "MCPServer"):
                self._add_bound(graph)
        swapped = self.cache.falling_back(key) if key.kind == "LLM" else [key] if key.kind == "MCPServer" else []
        for run in (run for one in swapped for run in self.cache.referrers(one, "TaskGraphRun")):
            self._add_bound(run)
            if not run.finished:
                self._add(run.key)

    def _add_bound(self, resource: Resource) -> None:
        """Make due the graphs whose needs a graph, an Agent or a run binds, and those whose needs these bind in turn:
        whether they are right may hang on all of their uses.
        """
        due, seen = [resource], {resource.key}
        while due:
            for key in self.cache.bound(due.pop()):
                graph = self.cache.get(key)
                if key not in seen and graph is not None:
                    seen.add(key)
                    due.append(graph)
                    self._add(key)

    def _compared(self) -> None:
        self._runs.prune()
        self._pools.tell_live()

    def _not_ready(self) -> str:
        return "" if self._watch.watching else "the watch does not stand"

    def _refresh(self) -> None:
        phases = Counter(run.phase for run in self.cache.all("TaskGraphRun"))
        for phase in ("Pending", "Queued", "Running", "Suspended", "Succeeded", "Failed", "Cancelled"):
            self.meter.runs.labels(phase).set(phases[phase])
        self.meter.depth.set(self._dispatcher.depth)
        self.meter.watch_age.set(self._watch.age())
        self.meter.leader_epoch.set(self._leader.epoch)


def _ranked(run: Resource) -> tuple[Any, ...]:
    return run.phase, run.spec.get("priority"), run.spec.get("suspend"), run.deleting, run.parked


async def _cluster_id(gateway: Gateway, settings: OperatorSettings) -> str:
    try:
        cluster = await gateway.cluster_uid()
    except ClusterError as error:
        if not isinstance(error, Refused | NotFound):
            raise StartError(_why(error)) from error
        cluster = (await gateway.connection()).server
        logger.warning("the uid of kube-system may not be read, drivers know this cluster as %s", cluster)
    # Two operators of one cluster that serve different namespaces must not end each other's runs.
    return "/".join((cluster, *sorted(settings.namespaces)))


async def _kept(keep: Callable[[Gateway, str], Awaitable[T]], gateway: Gateway, settings: OperatorSettings) -> T:
    """A key that is kept in the operator's own namespace."""
    deadline = time.monotonic() + settings.start_seconds
    namespace = _own_namespace(settings)
    while True:
        try:
            return await keep(gateway, namespace)
        except ClusterError as error:
            if isinstance(error, Refused) or time.monotonic() > deadline:
                raise StartError(_why(error)) from error
        await asyncio.sleep(0.5)


def _own_namespace(settings: OperatorSettings) -> str:
    if settings.own_namespace:
        return settings.own_namespace
    if settings.kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ and OWN_NAMESPACE.exists():
        return OWN_NAMESPACE.read_text().strip()
    return settings.namespaces[0] if settings.namespaces else current_namespace(settings.kubeconfig)


def _why(error: ClusterError) -> str:
    if isinstance(error, NotFound):
        return "The kinds of decurion.dev are not installed: run decurion crds | kubectl apply --server-side -f -"
    if isinstance(error, Refused):
        return f"The operator lacks rights in the cluster ({error}): grant its role, or serve fewer namespaces."
    return f"The API server cannot be used ({error}): check that it runs and that the kubeconfig names it."

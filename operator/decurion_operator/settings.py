"""Settings of the operator: one frozen record, every field with its unit and the reason for its default."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """How one operator process runs. Durations are seconds.

    `kubeconfig`: path of a kubeconfig file; None takes the pod's service account, else `KUBECONFIG`, else
    `~/.kube/config`.
    `namespaces`: those it serves; empty means the whole cluster.
    `health_host`, `health_port`: where `/livez /readyz /metrics` are served. Host None is every address in a pod and
    the loopback elsewhere; port 0 takes a free one.
    `cluster_id`: names this operator's set of runs towards drivers; None derives it from the cluster's uid and
    `namespaces`.
    """

    kubeconfig: str | None = None
    namespaces: tuple[str, ...] = ()
    health_host: str | None = None
    health_port: int = 8080
    cluster_id: str | None = None
    own_namespace: str | None = None
    """Where its root key lies; None takes that of the pod, else the first of `namespaces`, else that of the context in
    the kubeconfig."""

    reconciles: int = 16
    """Objects reconciled at once. A reconcile waits for the API server only, never for a pool or a compiler."""
    compilers: int = 2
    """Graphs compiled at once, each in a thread with a checker process of its own."""
    compile_seconds: float = 60.0
    """How long one compilation may take before the graph is reported as not compiled."""

    api_rate: float = 50.0
    """Requests a second to the API server, watches apart; `api_burst` at once."""
    api_burst: int = 100
    api_seconds: float = 15.0
    """Time-out of one call to the API server; `list_seconds` of one page of a list, for which a busy server waits."""
    list_seconds: float = 60.0
    page_size: int = 50
    """Objects read at once by lists and by the watch. A run may be 200 KB (its input, and the copy that kubectl leaves
    in an annotation), and a page is held whole in memory."""

    status_seconds: float = 1.0
    """Shortest time between two progress writes of one run; phase changes do not wait."""
    status_slow_seconds: float = 10.0
    """Longest such time: it grows with the age of the run, a tenth of it, so that long runs cost little."""
    status_bytes_rate: float = 8 * 1024.0
    """Bytes a second that one run's progress may cost: an object of 32 KiB is written every 4 s."""
    all_status_rate: float = 20.0
    """Status writes a second of all runs together, and `all_status_bytes_rate` bytes a second. Progress counts with
    the size of the whole object, which is what the cluster's store keeps, a phase change with what it changes."""
    all_status_bytes_rate: float = 256 * 1024.0

    resync_seconds: float = 60.0
    """Every so often all objects are listed (names and versions only), missed events are made good, and each driver
    is told which runs are live."""
    drivers_seconds: float = 5.0
    """How often a pool is asked for its drivers while it answers."""
    poll_seconds: float = 25.0
    """How long a driver may hold a long poll open."""
    pool_seconds: float = 10.0
    """Time-out of one short call to a pool."""
    pool_calls: int = 8
    """Short calls in flight to one pool."""
    local_pools: bool = False
    """Whether WorkerPools of mode Local are served. Who may write one then has nodes executed on the operator's
    machine, with a ledger in any folder that the operator may write."""
    local_start_seconds: float = 60.0
    """How long the process of a Local pool may take until it serves."""
    local_misses: int = 3
    """After so many looks in a row without an answer the process of a Local pool is killed and started again."""
    pool_grace_seconds: float = 30.0
    """How long a silent pool is not shown on its Running runs: short hiccups cost no writes."""
    backoff_seconds: float = 0.5
    backoff_cap_seconds: float = 60.0
    start_seconds: float = 30.0
    """How long the operator waits at its start for the API server and our kinds before it gives up."""
    stop_seconds: float = 20.0
    """How long work in progress may take to end when the operator stops."""

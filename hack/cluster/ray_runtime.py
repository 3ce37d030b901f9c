"""A Ray of this process, small enough for a test machine."""

import os

import ray

_ATTEMPTS = 3
_CPUS = 2
_OBJECT_STORE_BYTES = 200 * 1024 * 1024


class RayRuntime:
    """One local Ray to which this process is connected from `start` to `stop`.

    `address` is what another process connects to (as `RAY_ADDRESS`).
    """

    def __init__(self) -> None:
        self.address = ""

    def start(self) -> None:
        """Takes 8 to 14 s. Ray allows one connection a process, so there is one runtime a test session."""
        # Ray reads this when it starts and asks the network otherwise.
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        for attempt in range(_ATTEMPTS):
            try:
                ray.init(
                    address="local",
                    num_cpus=_CPUS,
                    object_store_memory=_OBJECT_STORE_BYTES,
                    include_dashboard=False,
                    log_to_driver=False,
                    configure_logging=False,
                )
                break
            except Exception:
                # On a busy machine Ray gives its own processes too little time, and says so by no narrower error.
                ray.shutdown()
                if attempt + 1 == _ATTEMPTS:
                    raise
        self.address = ray.get_runtime_context().gcs_address

    def stop(self) -> None:
        ray.shutdown()

"""A Ray of this process, small enough for a test machine."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ray
from ray.util import list_named_actors

from cluster.s3 import S3Server

_ATTEMPTS = 3
_CPUS = 2
_OBJECT_STORE_BYTES = 200 * 1024 * 1024


class RayRuntime:
    """One local Ray to which this process is connected from `start` to `stop`.

    `address` is what another process connects to (as `RAY_ADDRESS`). Its workers look for the keys of a store in files
    of `folder`, as those of a cluster do in a Secret that is mounted into each pod: see `give_keys`.
    """

    def __init__(self, folder: Path) -> None:
        self.address = ""
        self._files = {"AWS_SHARED_CREDENTIALS_FILE": folder / "credentials", "AWS_CONFIG_FILE": folder / "config"}

    def start(self) -> None:
        """Takes 8 to 14 s. Ray allows one connection a process, so there is one runtime a test session."""
        # Ray reads this when it starts and asks the network otherwise.
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        before = {name: os.environ.get(name) for name in self._files}
        os.environ.update({name: str(path) for name, path in self._files.items()})
        try:
            self._start()
        finally:
            for name, value in before.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value

    def give_keys(self, server: S3Server) -> None:
        """From now on workers of this Ray reach the store of `server`."""
        credentials, config = self._files.values()
        keys = f"aws_access_key_id = {server.access_key}\naws_secret_access_key = {server.secret_key}\n"
        credentials.write_text(f"[default]\n{keys}")
        place = f"region = {server.region}\nservices = here\n[services here]\ns3 =\n"
        config.write_text(f"[default]\n{place}  endpoint_url = {server.endpoint_url}\n")

    @contextmanager
    def driver(self) -> Iterator[str]:
        """A name for a driver that no other has; whatever actors have it are ended behind the block."""
        name = f"driver-{secrets.token_hex(4)}"
        try:
            yield name
        finally:
            for one in list_named_actors(all_namespaces=True):
                if one["name"].startswith(f"{name}@"):
                    ray.kill(ray.get_actor(one["name"], namespace=one["namespace"]))

    def _start(self) -> None:
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

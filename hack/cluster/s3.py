"""SeaweedFS, an S3 server in one process, on loopback."""

import json
import os
import secrets
import signal
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from cluster.process import Server, free_ports, wait_until

# Every bucket reserves volumes: with the default limits a few buckets use them up and writes answer 500.
_VOLUMES = 100
_VOLUME_MEGABYTES = 64
_REGION = "us-east-1"


@dataclass(frozen=True)
class Identity:
    """Who may do what on the server, beside the administrator: actions such as `Read`, `Write`, `List`."""

    access_key: str
    secret_key: str
    actions: Sequence[str] = ("Read", "Write", "List")


class S3Server:
    """One SeaweedFS with one bucket and one identity, an administrator.

    `endpoint_url`, `bucket`, `access_key` and `secret_key` are for clients, `env` for child processes.
    Tests share the bucket and keep to a prefix of their own.
    """

    def __init__(self, folder: Path) -> None:
        """Choose ports and keys; data, logs and configuration go to `folder`, which is created."""
        folder.mkdir(parents=True, exist_ok=True)
        self.bucket = "decurion"
        self.access_key = secrets.token_hex(10)
        self.secret_key = secrets.token_hex(20)
        self.region = _REGION
        self._folder = folder
        self._ports = free_ports(8)
        self.endpoint_url = f"http://127.0.0.1:{self._ports[0]}"
        self._server: Server | None = None
        self._others: dict[str, Identity] = {}

    @property
    def env(self) -> dict[str, str]:
        """The variables that point the AWS libraries of a child process at this server."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_ENDPOINT_URL_S3": self.endpoint_url,
            "AWS_REGION": self.region,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    @property
    def server(self) -> Server:
        """The running process, to pause or to kill."""
        if self._server is None:
            raise RuntimeError("S3Server.start() has not been called.")
        return self._server

    def uri(self, prefix: str) -> str:
        """`s3://` address of `prefix` in the bucket."""
        return f"s3://{self.bucket}/{prefix}"

    def start(self) -> None:
        """Start, or start again on the same ports with the data that is there. Raises `ServerDied`."""
        data = self._folder / "data"
        data.mkdir(exist_ok=True)
        (self._folder / "identities.json").write_text(json.dumps(self._identities()))
        # SeaweedFS reads more settings from the home folder: an empty one keeps the user's own out of it.
        env = {"HOME": str(self._folder), "PATH": os.defpath}
        self._server = Server("seaweedfs", self._command(data), folder=self._folder, env=env)
        wait_until(self._is_ready, seconds=60, what="SeaweedFS", every=0.1)

    def grant(self, name: str, identity: Identity) -> None:
        """Give `name` this identity in place of the one it had, while the server runs; soon after, it holds."""
        self._others[name] = identity
        (self._folder / "identities.json").write_text(json.dumps(self._identities()))
        os.kill(self.server.pid, signal.SIGHUP)

    def stop(self) -> None:
        if self._server is not None:
            self._server.kill()
            self._server = None

    def _command(self, data: Path) -> list[str | Path]:
        s3, s3_grpc, master, master_grpc, volume, volume_grpc, filer, filer_grpc = self._ports
        return [
            Path(sysconfig.get_path("scripts")) / "weed",
            "server",
            "-s3",
            f"-dir={data}",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            f"-s3.config={self._folder / 'identities.json'}",
            f"-s3.port={s3}",
            f"-s3.port.grpc={s3_grpc}",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            f"-s3.localSocket={self._folder / 's3.sock'}",
            f"-filer.port={filer}",
            f"-filer.port.grpc={filer_grpc}",
            f"-filer.localSocket={self._folder / 'filer.sock'}",
            f"-master.port={master}",
            f"-master.port.grpc={master_grpc}",
            "-master.telemetry=false",
            "-master.electionTimeout=1s",
            f"-master.volumeSizeLimitMB={_VOLUME_MEGABYTES}",
            f"-volume.port={volume}",
            f"-volume.port.grpc={volume_grpc}",
            f"-volume.max={_VOLUMES}",
        ]

    def _identities(self) -> object:
        admin = Identity(self.access_key, self.secret_key, ("Admin",))
        return {
            "identities": [
                {
                    "name": name,
                    "credentials": [{"accessKey": one.access_key, "secretKey": one.secret_key}],
                    "actions": list(one.actions),
                }
                for name, one in {"tests": admin, **self._others}.items()
            ]
        }

    def _is_ready(self) -> bool:
        """True once an object can be written: the gateway listens before the volumes behind it are there."""
        self.server.check_alive()
        client = boto3.client(
            "s3",
            endpoint_url=self.endpoint_url,
            region_name=self.region,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            config=Config(connect_timeout=2, read_timeout=10, retries={"total_max_attempts": 1}),
        )
        try:
            if not any(bucket["Name"] == self.bucket for bucket in client.list_buckets()["Buckets"]):
                client.create_bucket(Bucket=self.bucket)
            client.put_object(Bucket=self.bucket, Key="ready", Body=b"")
        except (BotoCoreError, ClientError):
            return False
        finally:
            client.close()
        return True

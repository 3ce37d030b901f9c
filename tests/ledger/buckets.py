"""A bucket of one's own on the real server, to take away, and a user of it, to shut out."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from cluster.process import wait_until
from cluster.s3 import Identity, S3Server
from decurion_ledger import Credentials, Store, open_store

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client


@dataclass
class Bucket:
    """A bucket of its own on the real server, and one who may read and write there but not make buckets."""

    server: S3Server
    name: str
    admin: S3Client
    who: Identity

    @property
    def uri(self) -> str:
        return f"s3://{self.name}/ledger"

    @property
    def env(self) -> dict[str, str]:
        return {
            **self.server.env,
            "AWS_ACCESS_KEY_ID": self.who.access_key,
            "AWS_SECRET_ACCESS_KEY": self.who.secret_key,
        }

    def opened(self) -> Store:
        return open_store(
            self.uri,
            endpoint_url=self.server.endpoint_url,
            region=self.server.region,
            credentials=Credentials(self.server.access_key, self.server.secret_key),
        )

    def grant(self, identity: Identity, *, works: bool) -> None:
        """Change what the server knows of the one who runs, and wait until it holds."""
        self.server.grant(self.name, identity)

        user = _client(self.server, self.who)

        def written() -> bool:
            try:
                user.put_object(Bucket=self.name, Key="tried", Body=b"")
            except ClientError:
                return False
            return True

        wait_until(lambda: written() is works, seconds=30, what="the change of the identity", every=0.1)
        user.close()

    def objects(self) -> dict[str, bytes]:
        pages = self.admin.get_paginator("list_objects_v2").paginate(Bucket=self.name)
        keys = [item["Key"] for page in pages for item in page.get("Contents", ())]
        return {key: self.admin.get_object(Bucket=self.name, Key=key)["Body"].read() for key in keys}


@contextmanager
def own_bucket(server: S3Server) -> Iterator[Bucket]:
    """A new bucket that its user `who` may use now."""
    admin = _client(server, Identity(server.access_key, server.secret_key))
    name = f"own-{secrets.token_hex(4)}"
    made = Bucket(server, name, admin, Identity(f"key-{name}", secrets.token_hex(10)))
    admin.create_bucket(Bucket=name)
    try:
        made.grant(made.who, works=True)
        yield made
    finally:
        admin.delete_bucket(Bucket=name)
        admin.close()


def _client(server: S3Server, who: Identity) -> S3Client:
    return boto3.client(
        "s3",
        endpoint_url=server.endpoint_url,
        region_name=server.region,
        aws_access_key_id=who.access_key,
        aws_secret_access_key=who.secret_key,
        config=Config(s3={"addressing_style": "path"}),
    )

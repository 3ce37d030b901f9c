"""Objects in the bucket of the real S3 server as somebody else writes them, under names that no object of ours has."""

from __future__ import annotations

import boto3

from cluster.s3 import S3Server
from decurion_ledger import Credentials, Store, open_store
from decurion_worker.sources import Sources


class Bucket:
    """Objects below a prefix of their own in the shared bucket."""

    def __init__(self, server: S3Server, name: str) -> None:
        self.root = f"s3://{server.bucket}"
        self.uri = f"{self.root}/{name}"
        self.name = name
        self._server = server

    def opener(self, uri: str) -> Store:
        who = Credentials(self._server.access_key, self._server.secret_key)
        return open_store(uri, endpoint_url=self._server.endpoint_url, region=self._server.region, credentials=who)

    def put(self, *names: str, content: bytes | None = None) -> None:
        """Objects as somebody else writes them: our stores write no such keys."""
        client = boto3.client(
            "s3",
            endpoint_url=self._server.endpoint_url,
            region_name=self._server.region,
            aws_access_key_id=self._server.access_key,
            aws_secret_access_key=self._server.secret_key,
        )
        for name in names:
            body = content if content is not None else name.encode()
            client.put_object(Bucket=self._server.bucket, Key=f"{self.name}/{name}", Body=body)
        client.close()

    def sources(self, ledger: str = "") -> Sources:
        return Sources(self.opener, files=False, ledger=ledger)

"""The stores under test: memory, a local folder, and a prefix of the real S3 server."""

import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from decurion_ledger.stores import Credentials, Store, open_store


@pytest.fixture(params=["memory", "local", pytest.param("s3", marks=pytest.mark.s3)])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """An empty store of each kind in turn."""
    if request.param == "s3":
        server = request.getfixturevalue("s3_server")
        opened = open_store(
            f"s3://{server.bucket}/{secrets.token_hex(6)}",
            endpoint_url=server.endpoint_url,
            credentials=Credentials(server.access_key, server.secret_key),
        )
    else:
        opened = open_store("memory://test" if request.param == "memory" else str(tmp_path / "store"))
    yield opened
    await opened.aclose()

"""The example over real filings on a cluster, as its README says: Ray, S3, the API server; and the same on a laptop."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cluster.api_server import ApiServer
from cluster.s3 import S3Server
from decurion_ledger import Credentials, Record, open_store, read_log
from model_server import ModelServer, start_model_server
from operator_process import OperatorProcess
from pool import Pool

pytestmark = [pytest.mark.ray]

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "filings"
DECURION = str(Path(sys.executable).with_name("decurion"))


@dataclass(frozen=True)
class Place:
    """The example's manifests with the addresses of this test, and where their run went."""

    folder: Path
    s3: S3Server
    ledger: str
    status: dict[str, Any]
    uid: str

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*arguments],
            env={**os.environ, **self.s3.env},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    def log(self, ledger: str, run: str) -> list[Record]:
        async def read() -> list[Record]:
            keys = Credentials(self.s3.access_key, self.s3.secret_key)
            store = open_store(ledger, endpoint_url=self.s3.endpoint_url, region=self.s3.region, credentials=keys)
            return [record async for _, record in read_log(store, run)]

        return asyncio.run(read())


def manifests(folder: Path, *, pool: Pool, model: ModelServer, filings: str) -> Path:
    """A copy of the example's manifests that names the servers of this test."""
    made = folder / "filings"
    made.mkdir()
    for manifest in EXAMPLE.glob("*.yaml"):
        text = manifest.read_text()
        text = text.replace("http://127.0.0.1:8700", pool.url).replace("http://127.0.0.1:8093/v1", model.endpoint)
        (made / manifest.name).write_text(text.replace("s3://decurion/filings", filings))
    return made


@pytest.fixture
def place(api_server: ApiServer, namespace: str, s3_server: S3Server, tmp_path: Path) -> Iterator[Place]:
    """The run of all 24 filings, applied with kubectl, once it has succeeded."""
    here = f"--namespace={namespace}"
    filings, ledger = s3_server.uri(f"{namespace}/filings"), s3_server.uri(f"{namespace}/ledger")
    upload = [sys.executable, str(ROOT / "hack" / "demo" / "upload.py"), filings]
    subprocess.run(upload, env={**os.environ, **s3_server.env}, check=True, timeout=60)
    operator = OperatorProcess(tmp_path, kubeconfig=api_server.kubeconfig, namespace=namespace)
    pool = Pool(tmp_path / "pool", ledger=ledger, executor="ray", env=s3_server.env, runners=2, branches=4)
    with start_model_server(delay=0.2) as model, pool:
        folder = manifests(tmp_path, pool=pool, model=model, filings=filings)
        operator.start()
        try:
            api_server.kubectl("create", "secret", "generic", "pool-token", f"--from-literal=token={pool.token}", here)
            api_server.kubectl("label", "secret", "pool-token", "decurion.dev/use=true", here)
            api_server.kubectl("apply", "--filename", folder, here)
            run = "taskgraphrun/filings-1"
            api_server.kubectl("wait", "--for=condition=Succeeded", "--timeout=180s", run, here, seconds=190)
            found = json.loads(api_server.kubectl("get", run, here, "--output=json"))
            yield Place(folder, s3_server, ledger, found["status"], found["metadata"]["uid"])
        finally:
            operator.stop()


def test_all_filings_through_kubectl_are_what_a_laptop_makes_of_them(place: Place) -> None:
    status = place.status
    assert (status["phase"], status["progress"]) == ("Succeeded", "25/25")
    assert len(json.dumps(status)) < 32 * 1024
    cluster = place.log(place.ledger, place.uid)
    workers = {
        record.envelope["worker"] for record in cluster if record.type == "commit" and "usage" in record.envelope
    }
    assert len(workers) == 2
    verified = place.command(DECURION, "ledger", "verify", place.uid, "--ledger", place.ledger)
    assert verified.returncode == 0, verified.stdout + verified.stderr

    done = place.command(DECURION, "run", str(place.folder), "--run-id", "laptop", "--quiet")
    assert done.returncode == 0, done.stderr
    laptop = place.log(str(place.folder / ".decurion" / "ledger"), "laptop")
    assert cores(laptop) == cores(cluster)
    assert laptop[-1].envelope["state"] == status["stateHash"]
    accuracy = json.loads(done.stdout)["accuracy"]
    assert (accuracy["rules"], accuracy["of"]) == (119, 120)


def cores(log: list[Record]) -> dict[str, str]:
    return {record.path: record.core_hash for record in log if record.core and record.type != "genesis"}

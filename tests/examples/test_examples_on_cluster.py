"""The small examples on a real cluster: kubectl applies each folder, and a run gives what it gives on a laptop."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.api_server import ApiServer
from cluster.process import Server, free_ports
from pool import Pool

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = ["chat", "modules", "refine", "research", "review", "router"]
"""Those whose run has its input with it; the others read files of a store."""
DECURION = Path(sys.executable).with_name("decurion")


@pytest.fixture(scope="module")
def operated(
    api_server: ApiServer, _resource_definitions: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Pool]]:
    """A namespace with an operator and the token of a pool, and that pool."""
    folder = tmp_path_factory.mktemp("operated")
    namespace = f"examples-{secrets.token_hex(4)}"
    here = f"--namespace={namespace}"
    pool = Pool(folder / "pool", ledger=str(folder / "ledger"))
    api_server.kubectl("create", "namespace", namespace)
    pool.start()
    [port] = free_ports(1)
    command = [DECURION, "operator", "run", here, f"--health-port={port}"]
    operator = Server("operator", command, folder=folder, env=api_server.env)
    try:
        api_server.kubectl("create", "secret", "generic", "pool-token", f"--from-literal=token={pool.token}", here)
        api_server.kubectl("label", "secret", "pool-token", "decurion.dev/use=true", here)
        yield namespace, pool
        operator.check_alive()
    finally:
        operator.kill()
        pool.stop()
        api_server.kubectl("delete", "namespace", namespace, "--wait=false")


def on_a_laptop(example: str, folder: Path, graph: str) -> Any:
    command = [DECURION, "run", EXAMPLES / example, f"--graph={graph}", "--quiet"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("example", SMALL)
def test_an_example_gives_on_a_cluster_what_it_gives_on_a_laptop(
    example: str, operated: tuple[str, Pool], api_server: ApiServer, tmp_path: Path
) -> None:
    namespace, pool = operated
    here = f"--namespace={namespace}"
    run = yaml.safe_load((EXAMPLES / example / "run.yaml").read_text())
    for manifest in sorted((EXAMPLES / example).glob("*.yaml")):
        text = manifest.read_text().replace("http://127.0.0.1:8700", pool.url)
        api_server.kubectl("apply", "--filename=-", here, stdin=text)
    name = f"taskgraphrun/{run['metadata']['name']}"
    api_server.kubectl("wait", "--for=condition=Succeeded", "--timeout=60s", name, here, seconds=70)
    status = json.loads(api_server.kubectl("get", name, here, "--output=json"))["status"]
    assert status["phase"] == "Succeeded"
    assert status["output"] == on_a_laptop(example, tmp_path, run["spec"]["graph"])


@pytest.mark.parametrize("example", ["fields", "nightly"])
@pytest.mark.usefixtures("_resource_definitions")
def test_the_api_server_takes_an_example(example: str, api_server: ApiServer) -> None:
    said = api_server.kubectl("apply", "--dry-run=server", f"--filename={EXAMPLES / example}")
    assert said.count("created") == len(list((EXAMPLES / example).glob("*.yaml")))

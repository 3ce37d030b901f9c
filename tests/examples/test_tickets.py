"""The first example of the README: checked, run on this machine, and looked into."""

import json
import subprocess
import sys
from pathlib import Path

from cluster.api_server import ApiServer
from cluster.process import Server, free_ports
from pool import Pool

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "tickets"
DECURION = Path(sys.executable).with_name("decurion")


def decurion(*arguments: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [DECURION, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_example_is_right_as_it_stands(tmp_path: Path) -> None:
    done = decurion("validate", "--strict", EXAMPLE, folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_example_runs_and_its_ledger_holds(tmp_path: Path) -> None:
    done = decurion("run", EXAMPLE, "--run-id", "tickets-1", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    output = json.loads(done.stdout)
    assert output["summary"] == {"outages": 2, "tickets": 4}
    assert [one["topic"] for one in output["triaged"]] == ["outage", "bill", "other", "outage"]
    verified = decurion("ledger", "verify", "tickets-1", folder=tmp_path)
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_example_runs_on_a_cluster_as_the_readme_says(api_server: ApiServer, namespace: str, tmp_path: Path) -> None:
    here = f"--namespace={namespace}"
    pool = Pool(tmp_path / "pool", ledger=str(tmp_path / "ledger"))
    pool.start()
    [port] = free_ports(1)
    command = [DECURION, "operator", "run", here, f"--health-port={port}"]
    operator = Server("operator", command, folder=tmp_path, env=api_server.env)
    try:
        api_server.kubectl("create", "secret", "generic", "pool-token", f"--from-literal=token={pool.token}", here)
        api_server.kubectl("label", "secret", "pool-token", "decurion.dev/use=true", here)
        for manifest in sorted(EXAMPLE.glob("*.yaml")):
            text = manifest.read_text().replace("http://127.0.0.1:8700", pool.url)
            api_server.kubectl("apply", "--filename=-", here, stdin=text)
        run = "taskgraphrun/tickets-1"
        api_server.kubectl("wait", "--for=condition=Succeeded", "--timeout=60s", run, here, seconds=70)
        operator.check_alive()
        status = json.loads(api_server.kubectl("get", run, here, "--output=json"))["status"]
    finally:
        operator.kill()
        pool.stop()
    assert status["phase"] == "Succeeded"
    assert status["output"]["summary"] == {"outages": 2, "tickets": 4}
    assert {node["name"]: node["phase"] for node in status["nodes"]} == {"triage": "Succeeded", "count": "Succeeded"}

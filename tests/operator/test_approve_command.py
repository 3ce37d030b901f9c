"""`decurion approve`, also as a plugin of kubectl, against the real API server: what a person types and reads."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_approvals_on_server import People, start
from test_approvals_on_server import people as people
from test_real_pool import real_pool

BIN = Path(sys.executable).parent
GRAPH = {
    "input": {"amount": {"type": "integer"}},
    "nodes": [
        {
            "name": "review",
            "with": {"amount": "input.amount"},
            "approval": {"message": "Pay {{ amount }}?", "form": {"account": {"type": "string"}}},
        }
    ],
    "output": {"ok": "nodes.review.output.approved", "form": "nodes.review.output.form"},
}
EACH = {
    "input": {"amount": {"type": "integer"}},
    "nodes": [{"name": "each", "map": {"items": "list(range(input.amount))", "as": "n", "template": "one"}}],
    "output": {"answers": "[one.ok for one in nodes.each.output.items]"},
    "templates": [
        {
            "name": "one",
            "input": {"n": {"type": "integer"}},
            "nodes": [{"name": "ask", "with": {"n": "input.n"}, "approval": {"message": "Number {{ n }}?"}}],
            "output": {"ok": "nodes.ask.output.approved"},
        }
    ],
}


class Desk:
    """Where somebody types: their kubeconfig, and `decurion` and `kubectl` on the PATH."""

    def __init__(self, cluster: Any, kubeconfig: Path, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.env = {k: v for k, v in cluster.server.env.items() if k != "DECURION_LEDGER"} | {
            "KUBECONFIG": str(kubeconfig),
            "PATH": f"{BIN}:{os.environ['PATH']}",
        }

    async def types(self, command: str | Path, *arguments: str) -> tuple[int, str, str]:
        """Exit code, stdout and stderr of a command."""
        done = await asyncio.to_thread(
            subprocess.run,
            [str(command), *arguments],
            env=self.env,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    async def cluster_name(self) -> str:
        view = ("config", "view", "--output", "jsonpath={.clusters[0].name}")
        return (await self.types(self.cluster.server.kubectl_command, *view))[1]

    async def approve(self, *arguments: str) -> tuple[int, str, str]:
        return await self.types(BIN / "decurion", "approve", *arguments, "-n", self.cluster.namespace)


async def desk(people: People, name: str, folder: Path) -> Desk:
    return Desk(people.cluster, await people.kubeconfig(name, folder), folder)


async def waiting(cluster: Any, name: str, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = await cluster.until_status(
        "TaskGraphRun", name, reason="AwaitingApproval", seconds=40, **more
    )
    return found


async def test_a_person_decides_by_the_plugin_of_kubectl_and_mistakes_are_told(
    cluster: Any, people: People, operate: Any, tmp_path: Path
) -> None:
    alice = await people.add("alice", "approver")
    at = await desk(people, "alice", tmp_path)
    async with real_pool(tmp_path / "ledger") as url, operate():
        await start(cluster, url, graph=GRAPH)
        await waiting(cluster, "one")

        assert await at.approve("two") == (
            2,
            "",
            f'decurion: there is no TaskGraphRun "two" in namespace {cluster.namespace}; see kubectl get tgr -n '
            f"{cluster.namespace}\n",
        )
        assert await at.approve("one", "/pay") == (
            2,
            "",
            "decurion: run one (Running) waits for nobody at /pay; it waits at /review\n",
        )
        code, out, err = await at.approve("one", "--form", "account:=5")
        assert (code, out, err) == (2, "", 'decurion: run one: /review: form.account: 5 is not of type "string"\n')
        code, _, err = await at.approve("one", "--form", "account=A1", "--group", "admins")
        assert code == 2
        assert 'spec.group is "admins", and you are in no such group: name one of your own, or none' in err

        plugin = (str(cluster.server.kubectl_command), "decurion", "approve", "one", "--form", "account=A1")
        code, out, err = await at.types(*plugin, "--comment", "fine", "-n", cluster.namespace)
        assert (code, err) == (0, "")
        assert out.startswith(f"approved by {alice.name} (approval one-")
        status = await cluster.until_status("TaskGraphRun", "one", phase="Succeeded", seconds=40)
        assert status["output"] == {"ok": True, "form": {"account": "A1"}}

        code, _, err = await at.approve("one")
        assert (code, err) == (2, "decurion: run one (Succeeded) waits for nobody\n")


async def test_who_may_not_approve_is_told_so_and_nothing_is_created(
    cluster: Any, people: People, operate: Any, tmp_path: Path
) -> None:
    await people.add("ci", "ci")
    at = await desk(people, "ci", tmp_path)
    async with real_pool(tmp_path / "ledger") as url, operate():
        await start(cluster, url, graph=GRAPH)
        await waiting(cluster, "one")
        code, out, err = await at.approve("one", "--form", "account=A1")
        assert (code, out) == (2, "")
        assert err.startswith("decurion: run one: the decision was refused: approvals.decurion.dev is forbidden: User ")
        assert (await cluster.call("GET", cluster.path("Approval")))["items"] == []


async def test_a_decision_while_the_operator_is_away_is_kept_and_handed_over_later(
    cluster: Any, people: People, operate: Any, tmp_path: Path
) -> None:
    alice = await people.add("alice", "approver")
    at = await desk(people, "alice", tmp_path)
    async with real_pool(tmp_path / "ledger") as url:
        async with operate():
            await start(cluster, url, graph=GRAPH)
            await waiting(cluster, "one")
        code, out, err = await at.approve("one", "--reject", "--comment", "no", "--wait", "0")
        assert (code, err) == (0, "")
        assert out.startswith(f"rejected by {alice.name}; approval one-")
        assert out.rstrip().endswith(f"-n {cluster.namespace}")
        async with operate():
            status = await cluster.until_status("TaskGraphRun", "one", phase="Failed", seconds=40)
    assert status["failures"][0]["path"] == "/review"


async def test_where_a_run_asks_more_than_its_status_shows_the_node_is_named(
    cluster: Any, people: People, operate: Any, tmp_path: Path
) -> None:
    await people.add("alice", "approver")
    at = await desk(people, "alice", tmp_path)
    async with real_pool(tmp_path / "ledger") as url, operate():
        await start(cluster, url, graph=EACH, input={"amount": 22})
        status = await waiting(cluster, "one", pendingApprovals=22)
        shown = [one["node"] for one in status["approvals"]]
        assert len(shown) == 20
        code, _, err = await at.approve("one")
        assert code == 2
        assert "run one asks 22 things; name the node that you decide, such as one of /each[" in err
        (hidden,) = [f"/each[{n:05d}]/ask" for n in range(22) if f"/each[{n:05d}]/ask" not in shown][:1]
        code, _, err = await at.approve("one", hidden)
        assert code == 2
        assert f"does not show {hidden} among the first 20 of 22 that wait" in err
        code, out, err = await at.approve("one", shown[1])
        assert (code, err) == (0, ""), err
        assert out.startswith("approved by ")
        await waiting(cluster, "one", pendingApprovals=21)


async def test_the_namespace_is_that_of_the_context_and_a_cluster_that_is_not_there_is_told(
    cluster: Any, people: People, tmp_path: Path
) -> None:
    await people.add("alice", "approver")
    at = await desk(people, "alice", tmp_path)
    await at.types(
        cluster.server.kubectl_command, "config", "set-context", "--current", "--namespace", cluster.namespace
    )
    code, _, err = await at.types(BIN / "decurion", "approve", "none")
    assert code == 2
    assert f"in namespace {cluster.namespace}" in err
    nowhere = ("config", "set-cluster", await at.cluster_name(), "--server", "https://127.0.0.1:1")
    assert (await at.types(cluster.server.kubectl_command, *nowhere))[0] == 0
    code, _, err = await at.types(BIN / "decurion", "approve", "none")
    assert code == 3
    assert err.startswith("decurion: The API server gave no answer to GET ")
    assert err.endswith("check the cluster and the kubeconfig, and decide again.\n")


@pytest.mark.parametrize("text", ["", "a: [", "apiVersion: v1\nkind: Config\ncurrent-context: gone\n"])
def test_a_kubeconfig_that_is_none_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "config").write_text(text)
    for arguments in (["--kubeconfig", "config"], ["--kubeconfig", "config", "-n", "one"], ["--kubeconfig", "gone"]):
        done = subprocess.run(
            [str(BIN / "decurion"), "approve", "one", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stdout) == (3, "")
        assert done.stderr.startswith("decurion: No cluster can be reached with ")
        assert "Traceback" not in done.stderr

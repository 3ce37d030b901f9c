"""Approvals on the real API server, with a real pool: who may decide, and that nothing decided is lost."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest
import yaml
from test_real_pool import apply_pool, real_pool

from decurion_crds.policies import policy_manifests
from decurion_ledger import open_store, read_log

RBAC = "rbac.authorization.k8s.io"
GRAPH = {
    "input": {"amount": {"type": "integer"}},
    "nodes": [
        {
            "name": "review",
            "with": {"amount": "input.amount"},
            "approval": {"message": "Pay {{ amount }}?", "approvers": {"count": 2}},
        },
        {
            "name": "pay",
            "with": {"amount": "input.amount", "ok": "nodes.review.output.approved"},
            "transform": {"paid": "amount if ok else 0"},
        },
    ],
    "output": {"paid": "nodes.pay.output.paid"},
}


class Person:
    """A ServiceAccount with rights of its own."""

    def __init__(self, cluster: Any, name: str, client: httpx.AsyncClient) -> None:
        self.cluster = cluster
        self.name = f"system:serviceaccount:{cluster.namespace}:{name}"
        self.client = client

    async def post(self, kind: str, body: dict[str, Any]) -> httpx.Response:
        return await self.client.post(self.cluster.path(kind), json=body)


class People:
    """Who there is: `approver` may create Approvals and look at runs, `ci` may start, change and cancel runs."""

    RULES: ClassVar[dict[str, Any]] = {
        "approver": [
            {"apiGroups": ["decurion.dev"], "resources": ["approvals"], "verbs": ["create", "get", "list", "watch"]},
            {"apiGroups": ["decurion.dev"], "resources": ["taskgraphruns"], "verbs": ["get", "list", "watch"]},
        ],
        "ci": [{"apiGroups": ["decurion.dev"], "resources": ["taskgraphruns"], "verbs": ["*"]}],
    }

    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster
        self._clients: list[httpx.AsyncClient] = []

    async def add(self, name: str, role: str) -> Person:
        space = self.cluster.namespace
        path = f"/apis/{RBAC}/v1/namespaces/{space}"
        head = {"apiVersion": f"{RBAC}/v1", "metadata": {"name": name}}
        await self.cluster.create("ServiceAccount", name)
        await self.cluster.call("POST", f"{path}/roles", head | {"kind": "Role", "rules": self.RULES[role]})
        binding = {
            "kind": "RoleBinding",
            "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": space}],
        }
        await self.cluster.call("POST", f"{path}/rolebindings", head | binding)
        token = (await self.cluster.kubectl("create", "token", name)).strip()
        server = self.cluster.server
        client = httpx.AsyncClient(
            base_url=server.url,
            verify=server.ssl_context(),
            headers={"Authorization": f"Bearer {token}"},
            timeout=30,
            trust_env=False,
        )
        self._clients.append(client)
        return Person(self.cluster, name, client)

    async def kubeconfig(self, name: str, folder: Path) -> Path:
        """A kubeconfig of somebody."""
        config = yaml.safe_load(self.cluster.server.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": (await self.cluster.kubectl("create", "token", name)).strip()}
        copy = folder / f"{name}.kubeconfig"
        copy.touch(mode=0o600)
        copy.write_text(yaml.safe_dump(config))
        return copy

    async def aclose(self) -> None:
        for client in self._clients:
            await client.aclose()


@pytest.fixture
async def people(cluster: Any, until: Any) -> AsyncIterator[People]:
    """The policy is in force: the API server looks at new ones every second or so."""
    text = yaml.safe_dump_all(policy_manifests())
    await cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=text)
    found = People(cluster)
    probe = {"run": {"name": "none", "uid": "none"}, "request": "00", "digest": "00", "decision": "Approve"}

    async def in_force() -> bool:
        body = approval("probe", probe | {"by": "nobody"}) | {"metadata": {"generateName": "probe-"}}
        answer = await cluster._client.post(cluster.path("Approval"), json=body)
        return answer.status_code == 403

    await until(in_force, what="the admission policy", seconds=60)
    yield found
    await found.aclose()


def approval(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "decurion.dev/v1alpha1",
        "kind": "Approval",
        "metadata": {"name": name},
        "spec": spec,
    }


async def asked(cluster: Any, name: str) -> dict[str, Any]:
    """What an Approval of a run has to repeat, once it waits."""
    status = await cluster.until_status("TaskGraphRun", name, reason="AwaitingApproval", seconds=40)
    (pending,) = status["approvals"]
    uid = (await cluster.get("TaskGraphRun", name))["metadata"]["uid"]
    return {"run": {"name": name, "uid": uid}, "request": pending["request"], "digest": pending["digest"]}


async def start(cluster: Any, url: str, name: str = "one", graph: dict[str, Any] = GRAPH, **spec: Any) -> None:
    await cluster.create("TaskGraph", "pay", graph)
    await apply_pool(cluster, url)
    await cluster.create("TaskGraphRun", name, {"graph": "pay", "input": {"amount": 7}} | spec)


async def test_ci_cannot_approve_nor_anybody_by_another_name_and_two_at_once_both_count(
    cluster: Any, people: People, operate: Any, tmp_path: Path
) -> None:
    ci, alice, bob = [await people.add(n, r) for n, r in (("ci", "ci"), ("alice", "approver"), ("bob", "approver"))]
    async with real_pool(tmp_path / "ledger") as url, operate():
        await start(cluster, url)
        spec = await asked(cluster, "one") | {"decision": "Approve"}

        refused = await ci.post("Approval", approval("ci", spec | {"by": ci.name}))
        assert refused.status_code == 403
        assert "cannot create resource" in refused.json()["message"]
        forged = await alice.post("Approval", approval("forged", spec | {"by": bob.name}))
        assert forged.status_code == 403
        assert "a decision is given in one's own name" in forged.json()["message"]
        stranger = await alice.post("Approval", approval("group", spec | {"by": alice.name, "group": "admins"}))
        assert stranger.status_code == 403

        both = await asyncio.gather(
            alice.post("Approval", approval("alice", spec | {"by": alice.name, "comment": "fine"})),
            bob.post("Approval", approval("bob", spec | {"by": bob.name})),
        )
        assert [answer.status_code for answer in both] == [201, 201]
        status = await cluster.until_status("TaskGraphRun", "one", phase="Succeeded", seconds=40)
        assert status["output"] == {"paid": 7}
        assert "approvals" not in status
        for name in ("alice", "bob"):
            await cluster.until_status("Approval", name, phase="Accepted", Accepted="True")
        log = [r async for _, r in read_log(open_store(str(tmp_path / "ledger")), spec["run"]["uid"])]
        given = {r.envelope["by"]: r.envelope for r in log if r.type == "approval_given"}
        assert given.keys() == {alice.name, bob.name}
        assert given[alice.name]["comment"] == "fine"
        owner = (await cluster.get("Approval", "alice"))["metadata"]["ownerReferences"][0]
        assert (owner["name"], owner["uid"]) == ("one", spec["run"]["uid"])

        late = await alice.post("Approval", approval("late", spec | {"by": alice.name}))
        assert late.status_code == 201
        said = await cluster.until_status("Approval", "late", phase="Refused", Accepted="False")
        assert said["message"] == "the run has ended (succeeded); nothing more is to decide."


async def test_an_approval_cannot_be_changed(cluster: Any, people: People) -> None:
    alice = await people.add("alice", "approver")
    spec = {"run": {"name": "r", "uid": "u"}, "request": "ab", "digest": "cd", "decision": "Reject", "by": alice.name}
    assert (await alice.post("Approval", approval("one", spec))).status_code == 201
    with pytest.raises(httpx.HTTPStatusError) as changed:
        await cluster.patch("Approval", "one", {"spec": {"decision": "Approve"}})
    assert "an Approval cannot be changed" in changed.value.response.json()["message"]


async def test_a_replaced_run_and_a_new_operator_and_a_new_driver_lose_nothing(
    cluster: Any, people: People, operate: Any, tmp_path: Path
) -> None:
    alice, bob = [await people.add(name, "approver") for name in ("alice", "bob")]
    async with operate(), real_pool(tmp_path / "ledger") as url:
        await start(cluster, url)
        spec = await asked(cluster, "one") | {"decision": "Approve"}
        await alice.post("Approval", approval("alice", spec | {"by": alice.name}))
        await cluster.until_status("Approval", "alice", phase="Accepted")
        run = await cluster.get("TaskGraphRun", "one")
        run = {k: run[k] for k in ("apiVersion", "kind", "spec")} | {"metadata": {"name": "one"}}
        await cluster.kubectl("replace", "-f", "-", stdin=json.dumps(run))
        assert (await asked(cluster, "one"))["request"] == spec["request"]
    # Nobody is there when bob decides.
    await bob.post("Approval", approval("bob", spec | {"by": bob.name}))
    async with real_pool(tmp_path / "ledger") as url:
        await cluster.patch("WorkerPool", "default", {"spec": {"url": url}})
        async with operate():
            await cluster.until_status("TaskGraphRun", "one", phase="Succeeded", seconds=40)
            await cluster.until_status("Approval", "bob", phase="Accepted")
    log = [r async for _, r in read_log(open_store(str(tmp_path / "ledger")), spec["run"]["uid"])]
    assert [r.envelope["by"] for r in log if r.type == "approval_given"] == [alice.name, bob.name]


async def test_an_approval_for_a_run_that_is_not_there_is_refused(cluster: Any, people: People, operate: Any) -> None:
    alice = await people.add("alice", "approver")
    spec = {"run": {"name": "r", "uid": "u"}, "request": "ab", "digest": "cd", "decision": "Approve", "by": alice.name}
    async with operate():
        assert (await alice.post("Approval", approval("one", spec))).status_code == 201
        said = await cluster.until_status("Approval", "one", phase="Refused")
        assert 'there is no TaskGraphRun "r" with that uid' in said["message"]


async def test_a_run_that_waits_or_is_suspended_holds_no_slot(cluster: Any, operate: Any, tmp_path: Path) -> None:
    async with real_pool(tmp_path / "ledger") as url, operate():
        await start(cluster, url)
        await cluster.patch("WorkerPool", "default", {"spec": {"maxRunning": 1}})
        await asked(cluster, "one")
        await cluster.create("TaskGraphRun", "two", {"graph": "pay", "input": {"amount": 8}, "suspend": True})
        await cluster.until_status("TaskGraphRun", "two", phase="Suspended", reason="Suspended")
        await cluster.patch("TaskGraphRun", "two", {"spec": {"suspend": False}})
        await asked(cluster, "two")
        await cluster.patch("TaskGraphRun", "one", {"spec": {"suspend": True}})
        await cluster.until_status("TaskGraphRun", "one", phase="Suspended", Completed="False")
        await cluster.patch("TaskGraphRun", "one", {"spec": {"suspend": None}})
        await cluster.until_status("TaskGraphRun", "one", phase="Running", reason="AwaitingApproval")
        await cluster.patch("TaskGraphRun", "one", {"spec": {"cancel": "Cancel"}})
        await cluster.until_status("TaskGraphRun", "one", phase="Cancelled")

"""The operator with the rights that it says it needs, and none besides."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from decurion_operator import Operator, StartError, gateway

GROUPS = {"decurion.dev": "decurion.dev", "(core)": ""}


def documented_rules() -> list[dict[str, list[str]]]:
    """The rules of the table in the gateway's docstring, those of namespaces apart."""
    table = (gateway.__doc__ or "").partition("verbs\n")[2].partition("\n\n")[0]
    rules, pending = [], ""
    for line in table.splitlines():
        pending += " " + line.strip()
        if pending.rstrip().endswith(","):
            continue
        group, resources, verbs = re.split(r"\s{2,}", pending.strip().replace(", ", ","), maxsplit=2)
        pending = ""
        if not resources.startswith("namespaces"):
            names = [r.strip() for r in resources.split(",")]
            rules.append({"apiGroups": [GROUPS[group]], "resources": names, "verbs": verbs.split(",")})
    return rules


async def restricted(cluster: Any, settings: Any, folder: Path, rules: list[dict[str, list[str]]]) -> Any:
    """Settings of an operator that is the ServiceAccount `operator` with `rules`."""
    space = cluster.namespace
    await cluster.create("ServiceAccount", "operator")
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{space}"
    version = "rbac.authorization.k8s.io/v1"
    role = {"apiVersion": version, "kind": "Role", "metadata": {"name": "operator"}, "rules": rules}
    binding = {
        "apiVersion": version,
        "kind": "RoleBinding",
        "metadata": {"name": "operator"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "operator"},
        "subjects": [{"kind": "ServiceAccount", "name": "operator", "namespace": space}],
    }
    await cluster.call("POST", f"{rbac}/roles", role)
    await cluster.call("POST", f"{rbac}/rolebindings", binding)
    token = await cluster.kubectl("create", "token", "operator")
    config = yaml.safe_load(cluster.server.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token.strip()}
    copy = folder / "restricted"
    copy.touch(mode=0o600)
    copy.write_text(yaml.safe_dump(config))
    return replace(settings, kubeconfig=str(copy))


def test_the_documented_rights_are_read_whole() -> None:
    rules = documented_rules()
    assert [r["resources"] for r in rules] == [
        ["agents", "llms", "mcpservers", "taskgraphs", "workerpools", "taskgraphruns", "approvals"],
        ["approvals"],
        ["taskgraphruns"],
        [
            "agents/status",
            "llms/status",
            "mcpservers/status",
            "taskgraphs/status",
            "workerpools/status",
            "taskgraphruns/status",
            "approvals/status",
        ],
        ["secrets"],
        ["events"],
        ["secrets", "configmaps"],
        ["configmaps"],
    ]


async def test_the_documented_rights_are_enough(
    cluster: Any, pool: Any, operate: Any, settings: Any, tmp_path: Path
) -> None:
    own = await restricted(cluster, settings, tmp_path, documented_rules())
    async with operate(kubeconfig=own.kubeconfig):
        await cluster.set_up(pool)
        await cluster.start("one", ttlSecondsAfterFinished=1)
        await cluster.until_status("TaskGraphRun", "one", phase="Running")
        await cluster.until_event("one", "Started")
        await pool.finish("one")
        await cluster.kubectl("wait", "--for=delete", "--timeout=20s", "tgr/one")


@pytest.mark.parametrize("missing", ["taskgraphs", "secrets"])
async def test_a_missing_right_ends_the_start_with_what_is_missing(
    cluster: Any, settings: Any, tmp_path: Path, missing: str
) -> None:
    rules = [{**r, "resources": [n for n in r["resources"] if n != missing]} for r in documented_rules()]
    own = await restricted(cluster, settings, tmp_path, [r for r in rules if r["resources"]])
    with pytest.raises(StartError, match=f"{missing}.*grant its role"):
        await Operator.start(own)


async def test_an_operator_of_the_whole_cluster_serves_a_namespace(cluster: Any, pool: Any, operate: Any) -> None:
    async with operate(namespaces=()):
        await cluster.set_up(pool)
        await cluster.start("one")
        await cluster.until_status("TaskGraphRun", "one", phase="Running")

"""Broken manifests, one for each kind of mistake: one finding on laptop and cluster, mended from its words."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes
import pytest
import yaml
from typer.testing import CliRunner

from cluster.api_server import ApiServer
from cluster.errors import KubectlFailed
from cluster.process import wait_until
from decurion_cli.main import app
from decurion_crds.v1alpha1 import GROUP, KINDS, VERSION
from operator_process import OperatorProcess
from refused import FILES, PAGE, Refused, findings_of, page, refused, said

ALL = refused()
LLM = yaml.safe_load((FILES / "references" / "llm.yaml").read_text().split("---\n")[1])


def _of(first: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("one", [pytest.param(o, id=o.name) for o in ALL if o.first == first])


def test_there_are_enough_and_they_have_names_of_their_own() -> None:
    assert len(ALL) >= 40
    names = [name for one in ALL for name in _names(one)]
    assert len(names) == len(set(names))


def _names(one: Refused) -> list[str]:
    if one.first == "kubectl":
        return []
    documents = yaml.safe_load_all(one.path.read_text())
    return [document["metadata"]["name"] for document in documents if document != LLM]


@pytest.mark.parametrize("one", [pytest.param(one, id=one.name) for one in ALL])
def test_a_mistake_is_one_finding_and_is_mended_from_its_words(one: Refused, tmp_path: Path) -> None:
    findings = findings_of(one.path)
    (error,) = [finding for finding in findings if finding.severity == "error"]
    assert said(error) == one.says
    assert error.line is not None
    assert (error.fix is None) == (one.mend is not None), "a file says how it is mended where no fix does"
    mended = tmp_path / "mended.yaml"
    mended.write_text(one.mended(error))
    assert mended.read_text() != one.path.read_text()
    assert [finding.text() for finding in findings_of(mended) if finding.severity == "error"] == []


def test_the_command_says_what_the_finding_says(tmp_path: Path) -> None:
    one = next(one for one in ALL if one.name == "references/llm")
    done = CliRunner().invoke(app, ["validate", str(one.path)])
    assert (done.exit_code, done.stderr.splitlines()) == (2, [f"{one.path}:{one.says}"])
    done = CliRunner().invoke(app, ["validate", str(one.path), "--output=json"])
    place, path, code, message = *one.says.split(" ", 2)[:2], "REF-MISSING", one.says.partition("] ")[2]
    line, column = map(int, place.split(":"))
    assert json.loads(done.stdout) == [
        {
            "code": code,
            "path": path,
            "message": message,
            "severity": "error",
            "file": str(one.path),
            "line": line,
            "column": column,
            "fix": {"old": "fsat", "new": "fast"},
        }
    ]


def test_the_page_is_made_of_the_files() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python hack/refused.py"


@pytest.mark.usefixtures("_resource_definitions")
@_of("kubectl")
def test_kubectl_refuses_in_these_words(one: Refused, api_server: ApiServer) -> None:
    with pytest.raises(KubectlFailed) as refusal:
        api_server.kubectl("apply", "--dry-run=server", "--filename", one.path)
    assert one.words in str(refusal.value)


@pytest.mark.usefixtures("_resource_definitions")
@_of("nobody")
def test_what_nobody_on_a_cluster_sees(one: Refused, api_server: ApiServer) -> None:
    assert "created" in api_server.kubectl("apply", "--dry-run=server", "--filename", one.path)


@pytest.mark.usefixtures("_resource_definitions")
@_of("server")
def test_the_api_server_names_the_field(one: Refused, api_server: ApiServer) -> None:
    objects = kubernetes.client.CustomObjectsApi(
        kubernetes.config.new_client_from_config(config_file=str(api_server.kubeconfig))
    )
    body = next(iter(yaml.safe_load_all(one.path.read_text())))
    with pytest.raises(kubernetes.client.ApiException) as refusal:
        objects.create_namespaced_custom_object(
            group=GROUP,
            version=VERSION,
            namespace="default",
            plural=KINDS[body["kind"]].plural,
            body=body,
            field_validation="Strict",
            dry_run="All",
        )
    told = json.loads(refusal.value.body)["message"]
    assert one.words in told
    field = one.words.partition(":")[0].removeprefix('unknown field "').removesuffix('"')
    assert field.startswith(("spec", "metadata")), "the words begin with the field"


@pytest.fixture(scope="module")
def statuses(
    api_server: ApiServer, _resource_definitions: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Any]]:
    """What an operator says of each graph that the API server takes: name → status."""
    namespace = f"refused-{secrets.token_hex(4)}"
    due = [one for one in ALL if one.first == "operator"]
    objects = [document for one in due for document in yaml.safe_load_all(one.path.read_text()) if document != LLM]
    body = json.dumps({"apiVersion": "v1", "kind": "List", "items": [LLM, *objects]})
    found: dict[str, Any] = {}
    api_server.kubectl("create", "namespace", namespace)
    folder = tmp_path_factory.mktemp("refused")
    operator = OperatorProcess(folder, kubeconfig=api_server.kubeconfig, namespace=namespace).start()
    try:
        api_server.kubectl("--namespace", namespace, "apply", "--filename", "-", stdin=body)

        def told() -> bool:
            listed = json.loads(api_server.kubectl("--namespace", namespace, "get", "tg", "-o", "json"))
            found.update({item["metadata"]["name"]: item.get("status", {}) for item in listed["items"]})
            return all(
                any(c["type"] == "Ready" and c["status"] == "False" for c in status.get("conditions", []))
                for status in (found.get(_names(one)[0], {}) for one in due)
            )

        wait_until(told, seconds=90, what="the conditions of the broken graphs", every=0.5)
        yield found
    finally:
        operator.stop()
        api_server.kubectl("delete", "namespace", namespace, "--wait=false")


@pytest.mark.cluster
@_of("operator")
def test_the_operator_says_the_same(one: Refused, statuses: dict[str, Any]) -> None:
    status = statuses[_names(one)[0]]
    (error,) = [finding for finding in status["findings"] if finding.get("severity", "error") == "error"]
    assert f"{error['path']} [{error['code']}] {error['message']}" == one.says.partition(" ")[2]
    ready = next(condition for condition in status["conditions"] if condition["type"] == "Ready")
    assert error["message"] in ready["message"]

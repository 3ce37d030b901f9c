"""The CustomResourceDefinitions on the real API server: accepted, kind to valid objects, and refusing the rest."""

import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kubernetes
import pytest

from cluster.api_server import ApiServer
from cluster.errors import KubectlFailed
from decurion_crds.canonical import drop_nulls
from decurion_crds.loader import load_text
from decurion_crds.structural import crd_manifests
from decurion_crds.v1alpha1 import API_VERSION, BLOCKS, GROUP, KINDS, VERSION, parse_resource

IMMUTABLE = "cannot be changed: a run is what it was created as; create another run"


def resource(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}


GRAPH: dict[str, Any] = {
    "schemas": {"Report": {"type": "object", "properties": {"id": {"type": "string", "x-anything": [1, None]}}}},
    "input": {"reports": {"type": "array", "items": "Report"}, "note?": {"type": "string"}},
    "state": [{"name": "rows", "schema": {"type": "array"}, "merge": "append", "initial": []}],
    "nodes": [
        {
            "name": "extract",
            "map": {
                "items": "input.reports",
                "as": "report",
                "key": "report.id",
                "template": "one",
                "concurrency": 200,
                "tolerate": {"percent": 5.5},
                "failFast": True,
            },
        },
        {"name": "lines", "map": {"itemsFrom": {"jsonl": "run.id", "schema": "Report"}, "template": "one"}},
        {
            "name": "check",
            "description": "Checks.",
            "with": {"facts": "nodes.extract.output.items", "limit": 10},
            "after": ["lines"],
            "when": "len(input.reports) > 0",
            "otherwise": {"n": 0},
            "code": "{'n': len(facts)}\n",
            "output": {"n": {"type": "integer"}},
            "writes": {"rows": "[output.n]"},
            "retry": {"transient": 1, "repair": 0},
            "timeoutSeconds": 0.5,
        },
        {"name": "table", "with": {"n": "nodes.check.output.n"}, "transform": {"$value": "n"}},
        {
            "name": "route",
            "switch": {
                "value": "input.note",
                "cases": [
                    {"equals": "again", "nodes": ["again"]},
                    {"equals": 1.5, "nodes": []},
                    {"equals": 7, "nodes": []},
                    {"equals": True, "nodes": []},
                ],
                "default": ["last"],
            },
        },
        {
            "name": "again",
            "with": {"report": "input.reports[0]"},
            "graph": {"template": "one"},
            "onFailure": "otherwise",
            "otherwise": {"facts": "input.reports[0]"},
        },
        {"name": "last", "onFailure": "skip", "transform": {"$value": "1"}},
        {
            "name": "files",
            "load": {
                "all": {"from": "run.id"},
                "report": {"from": "run.id", "as": "json", "schema": "Report", "maxBytes": 4096},
            },
            "map": {"itemsFrom": {"prefix": "run.id", "glob": "**/*.txt"}, "template": "one"},
        },
    ],
    "templates": [
        {
            "name": "one",
            "input": {"report": "Report"},
            "nodes": [
                {
                    "name": "read",
                    "with": {"text": "input.report.id"},
                    "llm": {"ref": "fast", "system": "s", "prompt": "{{ text }}", "parameters": {"stop": ["x"]}},
                    "output": "Report",
                }
            ],
            "output": {"facts": "nodes.read.output"},
        }
    ],
    "output": {"n": "nodes.table.output"},
}
RUN: dict[str, Any] = {
    "graph": "earnings",
    "input": {"reports": [{"id": "a", "deep": {"x": [1, {"y": 2}]}}]},
    "overrides": {"llms": {"fast": "slow"}},
    "pool": "default",
    "priority": 5,
}
VALID = {
    "openai": resource(
        "LLM",
        "openai",
        {
            "protocol": "openai",
            "model": "m",
            "endpoint": "https://models.example.test/v1",
            "auth": {"secretKeyRef": {"name": "model", "key": "token"}},
            "structuredOutput": "prompt",
            "parameters": {"temperature": 0.5, "nested": {"a": [1]}},
            "limits": {"concurrency": 8},
        },
    ),
    "scripted": resource(
        "LLM",
        "scripted",
        {
            "protocol": "scripted",
            "scripted": {
                "replies": [
                    {"match": "^a", "reply": {"x": 1}, "delaySeconds": 0.1},
                    {"match": "b", "error": "RateLimited", "times": 2},
                    {"reply": "text"},
                ],
                "default": [1, "x"],
            },
        },
    ),
    "server": resource(
        "MCPServer",
        "desk",
        {
            "url": "https://desk.example.test/mcp",
            "auth": {"secretKeyRef": {"name": "desk", "key": "token"}},
            "headers": [
                {"name": "X-Key", "valueFrom": {"secretKeyRef": {"name": "desk", "key": "key"}}},
                {"name": "X-Tenant", "value": "acme"},
            ],
            "timeoutSeconds": 20.0,
            "tools": [
                {
                    "name": "find",
                    "description": "Find orders.",
                    "input": {"customer": {"type": "string"}},
                    "output": {"orders": {"type": "array", "items": {"type": "string"}}},
                    "policy": {"readOnly": True, "timeoutSeconds": 2.5},
                },
                {"name": "notes/add"},
            ],
        },
    ),
    "agent": resource(
        "Agent",
        "clerk",
        {
            "model": "scripted",
            "instructions": "Look before you answer.",
            "tools": [{"server": "desk", "as": "crm", "allow": ["find"]}],
            "output": {"answer": {"type": "string"}},
            "limits": {"steps": 10},
        },
    ),
    "graph": resource("TaskGraph", "earnings", GRAPH),
    "run": resource("TaskGraphRun", "first", RUN),
    "run from a file": resource(
        "TaskGraphRun",
        "second",
        {"graph": "earnings", "inputFrom": {"uri": "s3://b/k"}, "ttlSecondsAfterFinished": 60, "cancel": "Cancel"},
    ),
    "pool": resource(
        "WorkerPool",
        "default",
        {
            "mode": "External",
            "url": "http://pool.example.test:8000",
            "auth": {"secretKeyRef": {"name": "pool", "key": "token"}},
            "ledger": {"uri": "s3://ledgers/prefix"},
            "runners": {"min": 1, "max": 4, "branchesPerRunner": 8},
            "maxRunning": 10,
            "allowedNamespaces": "Same",
        },
    ),
}


class Namespace:
    """One namespace: kubectl where kubectl is the subject, else the API itself, which answers in milliseconds."""

    def __init__(self, server: ApiServer, name: str) -> None:
        self._server = server
        self.name = name
        client = kubernetes.config.new_client_from_config(config_file=str(server.kubeconfig))
        self._objects = kubernetes.client.CustomObjectsApi(client)

    def _where(self, kind: str) -> dict[str, str]:
        return {"group": GROUP, "version": VERSION, "namespace": self.name, "plural": KINDS[kind].plural}

    def create(self, obj: dict[str, Any], **options: str) -> dict[str, Any]:
        where = self._where(obj["kind"])
        stored: dict[str, Any] = self._objects.create_namespaced_custom_object(
            **where, body=obj, field_validation="Strict", **options
        )
        return stored

    def replace(self, obj: dict[str, Any]) -> None:
        name = obj["metadata"]["name"]
        version = self.get(obj["kind"], name)["metadata"]["resourceVersion"]
        body = obj | {"metadata": {"name": name, "resourceVersion": version}}
        self._objects.replace_namespaced_custom_object(**self._where(obj["kind"]), name=name, body=body)

    def patch(self, kind: str, name: str, **parts: Any) -> None:
        self._objects.patch_namespaced_custom_object(**self._where(kind), name=name, body=parts)

    def patch_status(self, kind: str, name: str, **status: Any) -> None:
        body = {"status": status}
        self._objects.patch_namespaced_custom_object_status(**self._where(kind), name=name, body=body)

    def get(self, kind: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self._objects.get_namespaced_custom_object(**self._where(kind), name=name)
        return found

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return self._server.kubectl(*arguments, f"--namespace={self.name}", stdin=stdin)

    def kubectl_json(self, *arguments: str, stdin: str | None = None) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.kubectl(*arguments, "--output=json", stdin=stdin))
        return found


@contextmanager
def refused(says: str) -> Iterator[None]:
    """The API server refuses what happens inside, for the reason `says`."""
    with pytest.raises(kubernetes.client.ApiException) as refusal:
        yield
    assert refusal.value.status in (400, 422)
    assert says in json.loads(refusal.value.body)["message"]


@pytest.fixture
def here(api_server: ApiServer, namespace: str) -> Namespace:
    return Namespace(api_server, namespace)


@pytest.fixture(scope="session")
def dry(api_server: ApiServer, _resource_definitions: None) -> Namespace:
    """A namespace in which nothing is ever stored."""
    return Namespace(api_server, "default")


def test_all_definitions_are_established_under_their_own_names(here: Namespace) -> None:
    for crd in crd_manifests():
        live = here.kubectl_json("get", "crd", crd["metadata"]["name"])
        states = {condition["type"]: condition["status"] for condition in live["status"]["conditions"]}
        assert states["Established"] == states["NamesAccepted"] == "True"
        assert live["status"]["acceptedNames"]["shortNames"] == crd["spec"]["names"]["shortNames"]
        assert "NonStructuralSchema" not in states


@pytest.mark.parametrize("obj", VALID.values(), ids=VALID.keys())
def test_a_valid_object_is_stored_as_it_was_written(dry: Namespace, obj: dict[str, Any]) -> None:
    assert parse_resource(obj)[1] == []
    stored = dry.create(obj, dry_run="All")
    assert stored["spec"] == obj["spec"]
    assert stored["status"] == {"observedGeneration": -1}
    assert parse_resource(stored)[1] == []


def changed(obj: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """A copy of `obj` with `value` at the dotted path below `spec`."""
    copied = copy.deepcopy(obj)
    here: Any = copied["spec"]
    *steps, last = path.split(".")
    for step in steps:
        here = here[int(step) if isinstance(here, list) else step]
    here[int(last) if isinstance(here, list) else last] = value
    return copied


ONE_BLOCK = f"exactly one of {', '.join(BLOCKS)}"
BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "no block": (
        changed(VALID["graph"], "nodes.0", {"name": "x"}),
        f"{ONE_BLOCK} must be set",
    ),
    "two blocks": (
        changed(VALID["graph"], "nodes.2.transform", {"n": "1"}),
        ONE_BLOCK,
    ),
    "two blocks in a template": (
        changed(VALID["graph"], "templates.0.nodes.0.code", "1"),
        f"spec.templates[0].nodes[0]: Invalid value: {ONE_BLOCK}",
    ),
    "both sources of items": (
        changed(VALID["graph"], "nodes.1.map.items", "input.reports"),
        "exactly one of items, itemsFrom must be set",
    ),
    "no source of items": (
        changed(VALID["graph"], "nodes.0.map", {"template": "one"}),
        "exactly one of items, itemsFrom",
    ),
    "two tolerances": (changed(VALID["graph"], "nodes.0.map.tolerate.count", 1), "exactly one of count, percent"),
    "a header of the transport": (
        changed(VALID["server"], "headers.0.name", "Content-Length"),
        "headers name one that the transport sets itself",
    ),
    "a token twice": (
        changed(VALID["server"], "headers.0.name", "authorization"),
        "auth is the header Authorization, and headers name it too",
    ),
    "a header from two places": (
        changed(VALID["server"], "headers.0.value", "x"),
        "exactly one of value, valueFrom",
    ),
    "an agent by name with tools of its own": (
        changed(
            VALID["graph"], "nodes.0", {"name": "a", "agent": {"ref": "a", "prompt": "p", "tools": [{"server": "s"}]}}
        ),
        "instructions and tools are those of the Agent that ref names",
    ),
    "an agent without a model": (
        changed(VALID["graph"], "nodes.0", {"name": "a", "agent": {"prompt": "p"}}),
        "exactly one of ref, model",
    ),
    "a tool twice": (changed(VALID["server"], "tools.1.name", "find"), "spec.tools[1]: Duplicate value"),
    "duplicate node": (changed(VALID["graph"], "nodes.1.name", "extract"), "spec.nodes[1]: Duplicate value"),
    "duplicate channel": (changed(VALID["graph"], "state", [{"name": "c", "schema": {}}] * 2), "Duplicate value"),
    "unknown field": (changed(VALID["graph"], "nodes.2.aftr", ["lines"]), 'unknown field "spec.nodes[2].aftr"'),
    "field of a node for later": (
        changed(VALID["graph"], "nodes.2.assurance", True),
        'unknown field "spec.nodes[2].assurance"',
    ),
    "name of a node": (changed(VALID["graph"], "nodes.2.name", "read-doc"), "spec.nodes[2].name"),
    "expression that is a map": (changed(VALID["graph"], "nodes.2.when", {"a": "b"}), "spec.nodes[2].when"),
    "expression that is a boolean": (changed(VALID["graph"], "nodes.2.when", True), "spec.nodes[2].when"),
    "expression beyond its bound": (changed(VALID["graph"], "nodes.2.when", "a" * 4097), "spec.nodes[2].when"),
    "too many entries": (
        changed(VALID["graph"], "nodes.2.with", {f"a{i}": "1" for i in range(33)}),
        "spec.nodes[2].with",
    ),
    "too many nodes": (
        changed(VALID["graph"], "nodes", [{"name": f"n{i}", "code": "1"} for i in range(129)]),
        "spec.nodes",
    ),
    "switch without cases": (changed(VALID["graph"], "nodes.4.switch.cases", []), "spec.nodes[4].switch.cases"),
    "case without nodes": (
        changed(VALID["graph"], "nodes.4.switch.cases.0", {"equals": "a"}),
        "spec.nodes[4].switch.cases[0].nodes: Required value",
    ),
    "word of onFailure": (changed(VALID["graph"], "nodes.5.onFailure", "ignore"), 'Unsupported value: "ignore"'),
    "zero seconds": (changed(VALID["graph"], "nodes.2.timeoutSeconds", 0), "spec.nodes[2].timeoutSeconds"),
    "form of a URL": (changed(VALID["openai"], "endpoint", "ftp://x"), "spec.endpoint"),
    "openai without endpoint": (
        resource("LLM", "x", {"protocol": "openai", "model": "m"}),
        "protocol openai needs model",
    ),
    "scripted without answers": (resource("LLM", "x", {"protocol": "scripted"}), "scripted must be set"),
    "answers for openai": (changed(VALID["openai"], "scripted", {}), "scripted must be set"),
    "runners": (changed(VALID["pool"], "runners.min", 9), "min must not exceed max"),
    "both inputs": (changed(VALID["run"], "inputFrom", {"uri": "s3://b/k"}), "at most one of input, inputFrom"),
    "name with a dot": (resource("TaskGraph", "a.b", GRAPH), "metadata.name"),
    "name that is too long": (resource("TaskGraph", "a" * 64, GRAPH), "metadata.name"),
}


@pytest.mark.parametrize(("obj", "says"), BROKEN.values(), ids=BROKEN.keys())
def test_what_the_server_refuses_is_refused_by_the_parser_too(dry: Namespace, obj: dict[str, Any], says: str) -> None:
    with refused(says):
        dry.create(obj, dry_run="All")
    assert parse_resource(obj)[0] is None


CHANGES: dict[str, tuple[str, object]] = {
    "graph": ("graph", "other"),
    "input deep inside": ("input.reports.0.deep.x.1.y", 3),
    "input added to": ("input.more", 1),
    "input removed": ("input", None),
    "overrides": ("overrides.llms.fast", "other"),
    "overrides removed": ("overrides", None),
    "pool": ("pool", "other"),
    "pool removed": ("pool", None),
}


@pytest.mark.parametrize(("path", "value"), CHANGES.values(), ids=CHANGES.keys())
def test_a_run_is_immutable_in_what_it_is(here: Namespace, path: str, value: object) -> None:
    here.create(VALID["run"])
    field = path.split(".")[0]
    edited = changed(VALID["run"], path, value)
    edited["spec"] = {key: below for key, below in edited["spec"].items() if below is not None}
    with refused(f"spec.{field}: Invalid value: {field} {IMMUTABLE}"):
        here.replace(edited)
    with refused(IMMUTABLE):
        here.patch("TaskGraphRun", "first", spec={field: edited["spec"].get(field)})


@pytest.mark.parametrize("field", ["input", "overrides", "pool"])
def test_what_a_run_did_not_have_cannot_be_added(here: Namespace, field: str) -> None:
    bare = resource("TaskGraphRun", "first", {"graph": "earnings"})
    here.create(bare)
    with refused(f"{field} {IMMUTABLE}"):
        here.replace(changed(bare, field, RUN[field]))


def test_control_fields_of_a_run_stay_free_and_cancel_is_for_good(here: Namespace) -> None:
    here.create(VALID["run"])
    for spec in (
        {"priority": 9},
        {"ttlSecondsAfterFinished": 60},
        {"ttlSecondsAfterFinished": None},
        {"cancel": "Cancel"},
    ):
        here.patch("TaskGraphRun", "first", spec=spec)
    with refused("cancel cannot be taken back"):
        here.patch("TaskGraphRun", "first", spec={"cancel": None})
    with refused("cancel cannot be taken back"):
        here.replace(VALID["run"])
    with refused("cancel cannot be taken back"):
        here.patch("TaskGraphRun", "first", spec={"cancel": "CancelAndFinally"})
    here.patch("TaskGraphRun", "first", spec={"priority": 1})
    assert here.get("TaskGraphRun", "first")["spec"]["cancel"] == "Cancel"
    here.patch("TaskGraphRun", "first", spec={"cancel": "Stop"})
    with refused("cancel cannot be taken back"):
        here.patch("TaskGraphRun", "first", spec={"cancel": "Cancel"})


def test_a_graph_handed_from_one_manager_to_another_is_the_second_file(here: Namespace) -> None:
    first = resource("TaskGraph", "g", {"nodes": [{"name": name, "code": "1"} for name in ("a", "b", "c")]})
    first["spec"]["nodes"][2] |= {"after": ["b"], "with": {"x": "nodes.a.output"}}
    first["spec"]["schemas"] = {"Report": {"type": "object", "properties": {"old": {"type": "string"}}}}
    second = copy.deepcopy(first)
    second["spec"]["nodes"][1]["name"] = "b2"
    second["spec"]["nodes"][2] |= {"after": ["b2"], "with": {"y": "nodes.a.output"}}
    second["spec"]["nodes"][0] = {"name": "a", "llm": {"ref": "fast", "prompt": "p"}}
    second["spec"]["schemas"] = {"Report": {"type": "object", "properties": {"new": {"type": "string"}}}}
    apply = ("apply", "--server-side", "--filename=-")
    here.kubectl(*apply, "--field-manager=helm", stdin=json.dumps(first))
    with pytest.raises(KubectlFailed, match="conflict with"):
        here.kubectl(*apply, "--field-manager=argocd", stdin=json.dumps(second))
    here.kubectl(*apply, "--field-manager=argocd", "--force-conflicts", stdin=json.dumps(second))
    assert here.get("TaskGraph", "g")["spec"] == second["spec"]


@pytest.mark.parametrize(
    "options", [("apply",), ("apply", "--server-side"), ("create",)], ids=["client-side", "server-side", "create"]
)
def test_a_manifest_means_what_the_server_stores_however_it_is_applied(
    here: Namespace, options: tuple[str, ...]
) -> None:
    text = """\
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: words}
spec:
  schemas:
    Point:
      type: object
      required: [x, y]
      properties: {x: {type: number, minimum: 7.0, maximum: 1e3}, y: {enum: [no, 0o17, 2026-01-01, 12:30:00, ~]}}
  input:
    on: {type: string, default: null, examples: [010, 1_000, 1.50, +5, .5, 0x1F, 9007199254740991, 1e21]}
    1.5: Point
  nodes:
    - name: a
      with: {n: 1, y: 'x', 12: "z"}
      code: |
        1
"""
    loaded = load_text(text, "words.yaml")
    assert [finding for finding in loaded.findings if finding.severity == "error"] == []
    here.kubectl(*options, "--filename=-", stdin=text)
    assert drop_nulls(here.get("TaskGraph", "words")["spec"]) == loaded.documents[0].raw["spec"]


def test_status_is_written_apart_and_shown_in_columns(here: Namespace) -> None:
    here.create(VALID["run"] | {"status": {"phase": "Succeeded"}})
    assert here.get("TaskGraphRun", "first")["status"] == {"observedGeneration": -1}
    status = {"observedGeneration": 1, "phase": "Running", "progress": "3/24", "reason": "StoreUnavailable"}
    here.patch_status("TaskGraphRun", "first", **status)
    header, row = here.kubectl("get", "tgr").splitlines()
    assert header.split() == ["NAME", "GRAPH", "PHASE", "PROGRESS", "REASON", "AGE"]
    assert row.split()[:-1] == ["first", "earnings", "Running", "3/24", "StoreUnavailable"]
    with refused('Unsupported value: "Runing"'):
        here.patch_status("TaskGraphRun", "first", phase="Runing")


def test_runs_are_found_by_graph_pool_and_phase(here: Namespace) -> None:
    here.create(VALID["run"])
    here.create(VALID["run from a file"])
    for selector, names in (
        ("spec.graph=earnings", ["first", "second"]),
        ("spec.pool=default", ["first"]),
        ("status.phase=Failed", []),
    ):
        found = here.kubectl_json("get", "tgr", f"--field-selector={selector}")
        assert [item["metadata"]["name"] for item in found["items"]] == names


def test_definitions_and_runs_are_listed_by_category(here: Namespace) -> None:
    for obj in VALID.values():
        here.create(obj)
    found = here.kubectl_json("get", "decurion")
    defined = [obj["kind"] for obj in VALID.values() if obj["kind"] != "TaskGraphRun"]
    assert sorted(item["kind"] for item in found["items"]) == sorted(defined)
    found = here.kubectl_json("get", "decurion-runs")
    assert [item["kind"] for item in found["items"]] == ["TaskGraphRun", "TaskGraphRun"]


def test_explain_describes_every_field(dry: Namespace) -> None:
    text = dry.kubectl("explain", "taskgraph.spec.templates.nodes.map")
    for field in ("items", "itemsFrom", "as", "key", "template", "concurrency", "tolerate"):
        assert f"  {field}\t<" in text
    assert "<no description>" not in dry.kubectl("explain", "tgr.spec")
    assert "templates" in dry.kubectl("explain", "tg", "--recursive")


def test_the_rules_could_cost_four_times_as_much(dry: Namespace, tmp_path: Path) -> None:
    """Bounds can never shrink, and a rule over too many nodes is refused: there is room for rules to come."""
    crd = next(crd for crd in crd_manifests() if crd["spec"]["names"]["kind"] == "TaskGraph")
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    spec["nodes"]["maxItems"] *= 4
    spec["templates"]["items"]["properties"]["nodes"]["maxItems"] *= 4
    file = tmp_path / "crd.json"
    file.write_text(json.dumps(crd))
    dry.kubectl("apply", "--server-side", "--force-conflicts", "--dry-run=server", f"--filename={file}")
    spec["templates"]["items"]["properties"]["nodes"]["maxItems"] *= 1_000
    file.write_text(json.dumps(crd))
    with pytest.raises(KubectlFailed, match="exceeds budget"):
        dry.kubectl("apply", "--server-side", "--force-conflicts", "--dry-run=server", f"--filename={file}")

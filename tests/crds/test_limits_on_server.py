"""Bounds of the language: what is just allowed and what is one too much, for API server, parser and compiler alike."""

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kubernetes
import pytest

from cluster.api_server import ApiServer
from cluster.errors import KubectlFailed
from decurion_crds.canonical import canonical
from decurion_crds.compile import Checker, compile_graph
from decurion_crds.structural import crd_manifests
from decurion_crds.v1alpha1 import (
    API_VERSION,
    GROUP,
    LLM,
    MAX_SPEC_BYTES,
    VERSION,
    TaskGraph,
    parse_resource,
)
from decurion_crds.v1alpha1.base import (
    MAX_CHANNELS,
    MAX_DESCRIPTION,
    MAX_ENTRIES,
    MAX_EXPRESSION,
    MAX_NODES,
    MAX_TEMPLATES,
    MAX_TEXT,
)

Spec = dict[str, Any]


def _nodes(count: int, *, first: str = "n") -> list[Spec]:
    return [{"name": f"{first}{i}", "transform": {"x": "1"}} for i in range(count)]


def _graph(**fields: Any) -> Spec:
    return {"nodes": [{"name": "a", "transform": {"x": "1"}}], "output": {"x": "nodes.a.output.x"}} | fields


def _node(**fields: Any) -> Spec:
    node = {"name": "a", "transform": {"x": "1"}} | fields
    return _graph(nodes=[{name: value for name, value in node.items() if value is not None}])


def _template(name: str, nodes: list[Spec]) -> Spec:
    return {"name": name, "nodes": nodes, "output": {"x": f"nodes.{nodes[0]['name']}.output.x"}}


def _texts(count: int) -> dict[str, str]:
    return {f"x{i}": "1" for i in range(count)}


def _llm(**fields: str) -> Spec:
    return _node(transform=None, llm={"ref": "fast", "prompt": "Hello"} | fields) | {
        "output": {"x": "nodes.a.output.text"}
    }


def _channels(count: int) -> Spec:
    return _graph(state=[{"name": f"c{i}", "schema": {"type": "integer"}, "initial": 1} for i in range(count)])


def _after(count: int) -> Spec:
    nodes = _nodes(count)
    return _graph(nodes=[*nodes, {"name": "a", "transform": {"x": "1"}, "after": [node["name"] for node in nodes]}])


def _writes(count: int) -> Spec:
    spec = _channels(count)
    return spec | {
        "nodes": [{"name": "a", "transform": {"x": "1"}, "writes": {f"c{i}": "output.x" for i in range(count)}}]
    }


def _cases(count: int) -> Spec:
    nodes = _nodes(count)
    switch = {"value": "run.id", "cases": [{"equals": f"{i}", "nodes": [f"n{i}"]} for i in range(count)]}
    return _graph(nodes=[*nodes, {"name": "s", "switch": switch}, {"name": "a", "transform": {"x": "1"}}])


BOUNDS: dict[str, tuple[int, str, Callable[[int], Spec]]] = {
    "nodes": (MAX_NODES, "nodes", lambda n: _graph(nodes=[*_nodes(n - 1), {"name": "a", "transform": {"x": "1"}}])),
    "templates": (
        MAX_TEMPLATES,
        "templates",
        lambda n: _graph(templates=[_template(f"t{i}", _nodes(1)) for i in range(n)]),
    ),
    "nodes of a template": (
        MAX_NODES,
        "templates[0].nodes",
        lambda n: _graph(templates=[_template("t", _nodes(n))]),
    ),
    "channels": (MAX_CHANNELS, "state", _channels),
    "entries of with": (MAX_ENTRIES, "nodes[0].with", lambda n: _node(**{"with": _texts(n)})),
    "entries of writes": (MAX_ENTRIES, "nodes[0].writes", _writes),
    "entries of after": (MAX_ENTRIES, f"nodes[{MAX_ENTRIES + 1}].after", _after),
    "entries of transform": (MAX_ENTRIES, "nodes[0].transform", lambda n: _node(transform={"x": "1"} | _texts(n - 1))),
    "entries of input": (
        MAX_ENTRIES,
        "input",
        lambda n: _graph(input={f"i{i}": {"type": "integer"} for i in range(n)}),
    ),
    "entries of output": (MAX_ENTRIES, "output", lambda n: _graph(output=_texts(n))),
    "cases": (MAX_ENTRIES, f"nodes[{MAX_ENTRIES + 1}].switch.cases", _cases),
    "shared schemas": (128, "schemas", lambda n: _graph(schemas={f"S{i}": {"type": "integer"} for i in range(n)})),
    "characters of an expression": (
        MAX_EXPRESSION,
        "nodes[0].transform.x",
        lambda n: _node(transform={"x": f"'{'x' * (n - 2)}'"}),
    ),
    "characters of a prompt": (MAX_TEXT, "nodes[0].llm.prompt", lambda n: _llm(prompt="x" * n)),
    "characters of a system text": (MAX_TEXT, "nodes[0].llm.system", lambda n: _llm(system="x" * n)),
    "characters of code": (
        MAX_TEXT,
        "nodes[0].code",
        lambda n: _node(transform=None, code="{'x': 1}" + " " * (n - 8), output={"x": {"type": "integer"}}),
    ),
    "characters of a description": (
        MAX_DESCRIPTION,
        "nodes[0].description",
        lambda n: _node(description="x" * n),
    ),
    "characters of a name": (
        63,
        "nodes[1].name",
        lambda n: _graph(nodes=[{"name": "a", "transform": {"x": "1"}}, {"name": "n" * n, "transform": {"x": "1"}}]),
    ),
}
LLM_SPEC = {"protocol": "scripted", "scripted": {"default": {"text": "ok"}}}


def _resource(kind: str, spec: Spec) -> Spec:
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": "fast"}, "spec": spec}


@pytest.fixture(scope="module")
def checker() -> Iterator[Checker]:
    with Checker() as opened:
        yield opened


@pytest.fixture(scope="module")
def create(api_server: ApiServer, _resource_definitions: None) -> Callable[[Spec], str]:
    """Asks the API server whether it takes a graph, without storing it; its reason, or nothing when it does."""
    client = kubernetes.config.new_client_from_config(config_file=str(api_server.kubeconfig))
    where = {"group": GROUP, "version": VERSION, "namespace": "default", "plural": "taskgraphs"}

    def ask(spec: Spec) -> str:
        try:
            kubernetes.client.CustomObjectsApi(client).create_namespaced_custom_object(
                **where, body=_resource("TaskGraph", spec), field_validation="Strict", dry_run="All"
            )
        except kubernetes.client.ApiException as refusal:
            return str(json.loads(refusal.body or "{}")["message"])
        return ""

    return ask


def _errors(spec: Spec, checker: Checker) -> list[tuple[str, str]]:
    """Code and path of what parser and compiler refuse."""
    graph, findings = parse_resource(_resource("TaskGraph", spec))
    if isinstance(graph, TaskGraph):
        llm = parse_resource(_resource("LLM", LLM_SPEC))[0]
        assert isinstance(llm, LLM)
        findings = compile_graph(graph, llms={"fast": llm}, checker=checker).findings
    return [(finding.code, finding.path) for finding in findings if finding.severity == "error"]


def _by_names(field: str, spec: Spec) -> str:
    """The path that a finding has for a field of the API server: names instead of indices."""
    here: Any = spec
    words: list[str] = []
    for step in field.replace("]", "").replace("[", ".").split("."):
        here = here[int(step)] if step.isdigit() else here[step]
        words.append(
            here["name"] if step.isdigit() and len(here["name"]) <= 63 else f"[{step}]" if step.isdigit() else step
        )
    return ".".join(words).replace(".[", "[")


@pytest.mark.parametrize(("bound", "field", "make"), BOUNDS.values(), ids=BOUNDS.keys())
def test_what_a_bound_allows_compiles_and_one_more_is_refused_at_its_field(
    bound: int, field: str, make: Callable[[int], Spec], checker: Checker
) -> None:
    assert _errors(make(bound), checker) == []
    code = "NAME" if field.endswith("name") else "FIELD-VALUE"
    assert _errors(make(bound + 1), checker) == [(code, _by_names(field, make(bound + 1)))]


@pytest.mark.parametrize(("bound", "field", "make"), BOUNDS.values(), ids=BOUNDS.keys())
def test_the_api_server_keeps_the_same_bound(
    bound: int, field: str, make: Callable[[int], Spec], create: Callable[[Spec], str]
) -> None:
    assert create(make(bound)) == ""
    assert f"spec.{field}: " in create(make(bound + 1))


def largest() -> Spec:
    """A graph of exactly as many bytes as a spec may have, with all nodes at the root, all templates and channels."""
    spec = _graph(
        nodes=[*_nodes(MAX_NODES - 1), {"name": "a", "with": _texts(MAX_ENTRIES), "transform": {"x": "1"}}],
        templates=[_template(f"t{i}", _nodes(MAX_NODES if i == 0 else 30)) for i in range(MAX_TEMPLATES)],
        **{"state": _channels(MAX_CHANNELS)["state"]},
    )
    spec["nodes"][0]["transform"]["x"] = "''"
    missing = MAX_SPEC_BYTES - len(canonical(spec))
    for node in spec["nodes"][: -(-missing // (MAX_EXPRESSION - 2))]:
        size = min(missing, MAX_EXPRESSION - 2)
        if node["transform"]["x"] == "1":
            node["transform"]["x"], size = f"'{'x' * max(size - 1, 0)}'", max(size, 1)
            missing -= size
        else:
            node["transform"]["x"] = f"'{'x' * size}'"
            missing -= size
    return spec


def test_the_largest_graph_is_taken_by_all(create: Callable[[Spec], str], checker: Checker) -> None:
    spec = largest()
    assert len(canonical(spec)) == MAX_SPEC_BYTES
    assert create(spec) == ""
    assert _errors(spec, checker) == []
    spec["output"] = {"x2": "nodes.a.output.x"}
    assert len(canonical(spec)) == MAX_SPEC_BYTES + 1
    assert _errors(spec, checker) == [("SPEC-TOO-LARGE", "spec")]


def _scaled(factor: float) -> Spec:
    """The definition of TaskGraphs with rules over `factor` times as many nodes, in as many templates."""
    crd = copy.deepcopy(next(crd for crd in crd_manifests() if crd["spec"]["names"]["kind"] == "TaskGraph"))
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    for nodes in (spec["nodes"], spec["templates"]["items"]["properties"]["nodes"]):
        nodes["maxItems"] = int(nodes["maxItems"] * factor)
    return crd


@pytest.mark.usefixtures("_resource_definitions")
def test_the_rules_have_a_budget_of_many_times_their_cost(api_server: ApiServer, tmp_path: Path) -> None:
    """Bounds can never shrink and rules are added: how many times their cost the API server allows, by bisection."""

    def refusal(factor: float) -> str:
        file = tmp_path / "crd.json"
        file.write_text(json.dumps(_scaled(factor)))
        options = ("--server-side", "--force-conflicts", "--dry-run=server", f"--filename={file}")
        try:
            api_server.kubectl("apply", *options)
        except KubectlFailed as error:
            return str(error)
        return ""

    assert refusal(4) == ""
    low, high = 4.0, 4_096.0
    assert "exceeds budget" in refusal(high)
    while high / low > 1.2:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if refusal(middle) else (middle, high)
    print(f"the API server allows {low:.0f} times the cost of the rules")

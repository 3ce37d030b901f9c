"""The CustomResourceDefinitions: made from the models, committed, and within the rules of Kubernetes and of ours."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from decurion_crds.loader.scalars import SAME, go_key, other_reading
from decurion_crds.structural import MANIFESTS, crd_manifests, main, manifest_text, structural_schema, violations
from decurion_crds.v1alpha1.parse import KINDS

CRDS = {crd["spec"]["names"]["kind"]: crd for crd in crd_manifests()}


def schema_of(kind: str) -> dict[str, Any]:
    schema: dict[str, Any] = CRDS[kind]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def test_the_committed_manifests_are_what_the_models_say(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0, capsys.readouterr().err
    assert {file.stem for file in MANIFESTS.glob("*.yaml")} == {model.plural for model in KINDS.values()}


def test_a_manifest_reads_back_as_the_definition() -> None:
    for crd in CRDS.values():
        assert yaml.safe_load(manifest_text(crd)) == crd


def test_check_fails_on_a_manifest_that_differs_is_missing_or_is_left_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path)]) == 0
    assert main(["--check", str(tmp_path)]) == 0
    (tmp_path / "llms.yaml").write_text("edited")
    (tmp_path / "taskgraphs.yaml").unlink()
    (tmp_path / "skills.yaml").write_text("left over")
    capsys.readouterr()
    assert main(["--check", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert all(name in said for name in ("llms.yaml", "taskgraphs.yaml", "skills.yaml"))
    assert "workerpools.yaml" not in said
    assert main([str(tmp_path)]) == 0
    assert main(["--check", str(tmp_path)]) == 0
    assert not (tmp_path / "skills.yaml").exists()


@pytest.mark.parametrize("kind", CRDS)
def test_the_definitions_keep_the_rules(kind: str) -> None:
    assert violations(CRDS[kind]) == []


def test_names_are_ours_alone() -> None:
    names = {kind: crd["spec"]["names"] for kind, crd in CRDS.items()}
    assert {kind: (name["shortNames"], name["categories"]) for kind, name in names.items()} == {
        "Agent": (["tga"], ["decurion"]),
        "Approval": (["tgap"], ["decurion-runs"]),
        "LLM": (["tgm"], ["decurion"]),
        "MCPServer": (["tgs"], ["decurion"]),
        "TaskGraph": (["tg"], ["decurion"]),
        "TaskGraphRun": (["tgr"], ["decurion-runs"]),
        "WorkerPool": (["tgw"], ["decurion"]),
    }


def test_definitions_are_owned_whole_and_runs_field_by_field() -> None:
    owned = {kind: schema_of(kind)["properties"]["spec"].get("x-kubernetes-map-type") for kind in CRDS}
    assert owned.pop("TaskGraphRun") is None
    assert set(owned.values()) == {"atomic"}
    run = schema_of("TaskGraphRun")["properties"]["spec"]["properties"]
    assert run["input"]["x-kubernetes-map-type"] == run["overrides"]["x-kubernetes-map-type"] == "atomic"


def test_bounds_are_those_of_the_language() -> None:
    spec = schema_of("TaskGraph")["properties"]["spec"]["properties"]
    template = spec["templates"]["items"]["properties"]
    node = spec["nodes"]["items"]["properties"]
    assert spec["nodes"]["maxItems"] == template["nodes"]["maxItems"] == 128
    assert spec["templates"]["maxItems"] == 32
    assert spec["state"]["maxItems"] == template["state"]["maxItems"] == 64
    assert node["with"]["maxProperties"] == node["writes"]["maxProperties"] == node["after"]["maxItems"] == 32
    assert node["when"]["maxLength"] == node["with"]["additionalProperties"]["maxLength"] == 4 * 1024
    assert node["code"]["maxLength"] == node["llm"]["properties"]["prompt"]["maxLength"] == 32 * 1024


def test_every_field_that_a_column_or_a_selector_reads_exists() -> None:
    for kind, crd in CRDS.items():
        version = crd["spec"]["versions"][0]
        paths = [column["jsonPath"] for column in version["additionalPrinterColumns"]]
        paths += [field["jsonPath"] for field in version.get("selectableFields", [])]
        for path in paths:
            steps = path.partition("[")[0].strip(".").split(".")
            here = schema_of(kind)
            if steps[0] == "metadata":
                continue
            for step in steps:
                assert step in here["properties"], path
                here = here["properties"][step]


def edited(path: str, **changes: Any) -> dict[str, Any]:
    """A copy of the TaskGraph definition with keywords changed (None: removed) in the schema at `path`."""
    crd = copy.deepcopy(CRDS["TaskGraph"])
    here = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for step in path.split("."):
        here = (
            here[{"[]": "items", "{}": "additionalProperties"}[step]]
            if step in ("[]", "{}")
            else here["properties"][step]
        )
    for key, value in changes.items():
        here.pop(key, None)
        if value is not None:
            here[key] = value
    return crd


VIOLATIONS: dict[str, tuple[dict[str, Any], str]] = {
    "type": (edited("spec.nodes.[].code", type=None), "spec.nodes.[].code: a structural schema has a type"),
    "reference": (edited("spec.nodes.[].llm", **{"$ref": "#/x"}), "spec.nodes.[].llm: $ref is not allowed"),
    "alternatives": (edited("spec.nodes.[].code", anyOf=[{}]), "spec.nodes.[].code: anyOf is not allowed"),
    "default": (
        edited("spec.nodes.[].code", default="1"),
        "spec.nodes.[].code: a default makes a difference to what was applied; keep defaults in the compiler",
    ),
    "default of a list": (
        edited("spec.nodes.[].after", default=[]),
        "spec.nodes.[].after: a default makes a difference to what was applied; keep defaults in the compiler",
    ),
    "description": (
        edited("spec.templates.[].nodes", description=None),
        "spec.templates.[].nodes: a description is missing",
    ),
    "text without bound": (
        edited("spec.nodes.[].code", maxLength=None),
        "spec.nodes.[].code: a text is bounded by maxLength",
    ),
    "list without bound": (edited("spec.nodes", maxItems=None), "spec.nodes: a list is bounded by maxItems"),
    "map without bound": (edited("spec.input", maxProperties=None), "spec.input: a map is bounded by maxProperties"),
    "list without owner": (
        edited("spec.nodes.[].after", **{"x-kubernetes-list-type": None}),
        "spec.nodes.[].after: a list says who owns it (x-kubernetes-list-type)",
    ),
    "key of a list": (
        edited("spec.nodes.[]", required=[]),
        "spec.nodes: name is a key of the list and must be required",
    ),
    "list without items": (
        edited("spec.nodes.[].after", items=None),
        "spec.nodes.[].after: a list says what its items are",
    ),
    "closed map": (
        edited("spec.nodes.[].retry", additionalProperties=False),
        "spec.nodes.[].retry: properties and additionalProperties exclude one another",
    ),
    "word of YAML": (
        edited("spec.nodes.[].retry", properties={"on": {"type": "integer", "description": "On."}}),
        "spec.nodes.[].retry.on: YAML reads this name as another word",
    ),
    "empty object": (
        edited("spec.nodes.[].retry", properties=None),
        "spec.nodes.[].retry: an object says what is in it",
    ),
}


@pytest.mark.parametrize(("crd", "says"), VIOLATIONS.values(), ids=VIOLATIONS.keys())
def test_what_breaks_a_rule_is_found(crd: dict[str, Any], says: str) -> None:
    assert says in violations(crd)


def test_no_field_is_a_word_that_yaml_reads_otherwise() -> None:
    def names(schema: dict[str, Any]) -> set[str]:
        below = [*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")]
        found = set(schema.get("properties", {}))
        return found.union(*(names(one) for one in below if isinstance(one, dict)))

    for name in set[str]().union(*(names(schema_of(kind)) for kind in CRDS)):
        assert go_key(name) == name
        assert other_reading(name) is SAME


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "contentEncoding": "base64"},
        {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        {"oneOf": []},
    ],
)
def test_a_schema_that_would_lose_something_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="structural"):
        structural_schema(schema, {})

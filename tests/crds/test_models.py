"""Resources to models, and what is said when they are wrong."""

import copy
import json
from typing import Any, get_args

import pytest

from decurion_crds.findings import CODES, Finding, listed
from decurion_crds.v1alpha1 import (
    LLM,
    MAX_SPEC_BYTES,
    TaskGraph,
    TaskGraphRun,
    TaskGraphRunStatus,
    parse_resource,
)
from decurion_crds.v1alpha1.base import Condition, Model, python_name
from decurion_crds.v1alpha1.llm import ScriptedError
from decurion_crds.v1alpha1.parse import KEY, KINDS, LATER_KINDS, Place
from decurion_crds.v1alpha1.taskgraph import BLOCKS
from decurion_worker.models.scripted import CUT_OFF, FAILURES

GRAPH: dict[str, Any] = {
    "apiVersion": "decurion.dev/v1alpha1",
    "kind": "TaskGraph",
    "metadata": {"name": "earnings"},
    "spec": {
        "schemas": {"Report": {"type": "object", "properties": {"id": {"type": "string"}}}},
        "input": {"reports": {"type": "array", "items": "Report"}, "note?": {"type": "string"}},
        "nodes": [
            {
                "name": "extract",
                "map": {"items": "input.reports", "as": "report", "template": "one", "tolerate": {"percent": 5}},
            },
            {
                "name": "check",
                "with": {"facts": "nodes.extract.output.items"},
                "code": "len(facts)\n",
                "output": "Report",
            },
        ],
        "templates": [{"name": "one", "nodes": [{"name": "read", "llm": {"ref": "fast", "prompt": "List {{ x }}"}}]}],
        "output": {"n": "nodes.check.output"},
    },
}


def graph(**spec: Any) -> dict[str, Any]:
    return GRAPH | {"spec": GRAPH["spec"] | spec}


def node(**fields: Any) -> dict[str, Any]:
    return graph(nodes=[{"name": "x", "code": "1"} | fields])


def llm(**spec: Any) -> dict[str, Any]:
    return {"apiVersion": "decurion.dev/v1alpha1", "kind": "LLM", "metadata": {"name": "fast"}, "spec": spec}


def run(**spec: Any) -> dict[str, Any]:
    metadata = {"generateName": "run-"}
    return {"apiVersion": "decurion.dev/v1alpha1", "kind": "TaskGraphRun", "metadata": metadata, "spec": spec}


def found(obj: object) -> list[str]:
    return [f"{finding.path} [{finding.code}] {finding.message}" for finding in parse_resource(obj)[1]]


def test_a_graph_round_trips_through_its_model() -> None:
    parsed, findings = parse_resource(GRAPH)
    assert findings == []
    assert isinstance(parsed, TaskGraph)
    assert parsed.to_json() == GRAPH
    assert parsed.spec.nodes[1].with_ == {"facts": "nodes.extract.output.items"}
    assert parsed.spec.nodes[0].map is not None
    assert parsed.spec.nodes[0].map.as_ == "report"


def test_a_default_that_is_written_out_is_the_same_as_none() -> None:
    written, _ = parse_resource(llm(protocol="scripted", structuredOutput="native", parameters={}, scripted={}))
    absent, _ = parse_resource(llm(protocol="scripted", scripted={}))
    assert isinstance(written, LLM)
    assert isinstance(absent, LLM)
    assert written.to_json() == absent.to_json()


def test_members_that_are_null_count_as_absent_and_nulls_in_lists_stay() -> None:
    parsed, findings = parse_resource(run(graph="g", pool=None, input={"a": None, "b": [None]}))
    assert findings == []
    assert isinstance(parsed, TaskGraphRun)
    assert parsed.spec.input == {"b": [None]}
    assert parsed.name == "run-"


def test_integers_are_expressions() -> None:
    parsed, findings = parse_resource(node(when=0, **{"with": {"a": -1}}))
    assert findings == []
    assert isinstance(parsed, TaskGraph)
    assert parsed.spec.nodes[0].when == "0"
    assert parsed.spec.nodes[0].with_ == {"a": "-1"}


CASES: dict[str, tuple[object, list[str]]] = {
    "misspelt field": (
        node(aftr=["y"]),
        ['nodes.x.aftr [FIELD-UNKNOWN] there is no field "aftr" here; did you mean "after"?'],
    ),
    "misspelt required field is one cause": (
        graph(nodes=[{"name": "x", "llm": {"ref": "fast", "promt": "p"}}]),
        ['nodes.x.llm.promt [FIELD-UNKNOWN] there is no field "promt" here; did you mean "prompt"?'],
    ),
    "field in snake case": (
        node(timeout_seconds=5),
        [
            'nodes.x.timeout_seconds [FIELD-UNKNOWN] there is no field "timeout_seconds" here; '
            'did you mean "timeoutSeconds"?'
        ],
    ),
    "unknown field without a likely one": (
        llm(protocol="scripted", scripted={}, auth={"secretKeyRef": {"name": "a", "key": "b"}, "zzz": 1}),
        ['auth.zzz [FIELD-UNKNOWN] there is no field "zzz" here; remove it, or write one of secretKeyRef'],
    ),
    "missing field": (
        graph(nodes=[{"name": "x", "llm": {"ref": "fast"}}]),
        [
            "nodes.x.llm [FIELD-MISSING] prompt is missing; add it "
            "(The prompt, with {{ expression }} over the names of with)"
        ],
    ),
    "misspelt value of an enum": (
        llm(protocol="opnai", model="m", endpoint="http://x"),
        ['protocol [FIELD-VALUE] "opnai" is not allowed here; did you mean "openai"? (write openai or scripted)'],
    ),
    "type": (node(code=5), ["nodes.x.code [FIELD-TYPE] a text is due, and this is a number; put it into quotes"]),
    "no coercion of texts": (
        node(timeoutSeconds="5"),
        ["nodes.x.timeoutSeconds [FIELD-TYPE] a number is due, and this is a text; write digits, without quotes"],
    ),
    "expression that YAML took apart": (
        node(when={"a": "b"}),
        [
            "nodes.x.when [FIELD-TYPE] an expression is due and YAML reads this as an object: "
            "put the expression into double quotes"
        ],
    ),
    "expression that is no text": (
        node(when=True, **{"with": {"a": 2.5}}),
        [
            'nodes.x.with.a [FIELD-TYPE] an expression is a text: write "2.5", with the quotes',
            'nodes.x.when [FIELD-TYPE] an expression is a text: write "True", with the quotes',
        ],
    ),
    "no block": (
        graph(nodes=[{"name": "x"}]),
        [f"nodes.x [ONE-OF] exactly one of {listed(BLOCKS)} must be set, and none is; add one"],
    ),
    "two blocks": (
        node(llm={"ref": "a", "prompt": "p"}),
        ["nodes.x [ONE-OF] code and llm are set, and only one of them may be; remove the other"],
    ),
    "both inputs": (
        run(graph="g", input={}, inputFrom={"uri": "file:///x"}),
        ["spec [ONE-OF] input and inputFrom are set, and only one of them may be; remove the other"],
    ),
    "items twice": (
        graph(nodes=[{"name": "x", "map": {"template": "t", "items": "a", "itemsFrom": {"jsonl": "b", "schema": {}}}}]),
        ["nodes.x.map [ONE-OF] items and itemsFrom are set, and only one of them may be; remove the other"],
    ),
    "kind of node that is not built": (
        node(assurance=True),
        ["nodes.x.assurance [NOT-SUPPORTED] assurance is not built yet; remove it"],
    ),
    "form of code that is not built": (
        node(code={"source": "1", "interpreter": "subprocess"}),
        ["nodes.x.code [NOT-SUPPORTED] the object form is not built yet; write the source itself, as a block of text"],
    ),
    "name of a node": (
        graph(nodes=[{"name": "read-doc", "code": "1"}]),
        [
            'nodes[0].name [NAME] "read-doc" is no name: a name here starts with a small letter '
            "and has at most 63 letters, digits and _; write read_doc"
        ],
    ),
    "word of Python": (
        graph(nodes=[{"name": "class", "code": "1"}]),
        ['nodes.class.name [NAME] "class" is no name: it is a word of Python; choose another, such as classValue'],
    ),
    "word of expressions": (
        node(**{"with": {"input": "1"}}),
        [
            'nodes.x.with.input [NAME] "input" is no name: it is a word that expressions use; '
            "choose another, such as inputValue"
        ],
    ),
    "name of a shared schema": (
        graph(schemas={"string": {}}),
        [
            'schemas.string [NAME] "string" is no name: it is the name of a type; '
            "choose another name, such as one with a capital letter"
        ],
    ),
    "duplicate names, each in its scope": (
        graph(
            nodes=[{"name": "x", "code": "1"}, {"name": "x", "code": "1"}],
            state=[{"name": "c", "schema": {}}, {"name": "c", "schema": {}}],
            templates=[{"name": "t", "nodes": [{"name": "x", "code": "1"}, {"name": "x", "code": "1"}]}] * 2,
        ),
        [
            'nodes.x.name [DUPLICATE-NAME] there is already a node "x" here; rename one of them',
            'state.c.name [DUPLICATE-NAME] there is already a channel "c" here; rename one of them',
            'templates.t.name [DUPLICATE-NAME] there is already a template "t" here; rename one of them',
            'templates.t.nodes.x.name [DUPLICATE-NAME] there is already a node "x" here; rename one of them',
            'templates.t.nodes.x.name [DUPLICATE-NAME] there is already a node "x" here; rename one of them',
        ],
    ),
    "openai without endpoint": (
        llm(protocol="openai", model="m"),
        ["spec [FIELD-MISSING] protocol openai needs model and endpoint; add what is missing"],
    ),
    "no name at all": (
        GRAPH | {"metadata": {}},
        ["metadata [FIELD-MISSING] metadata.name is missing; give the resource a name"],
    ),
    "name of a resource": (
        GRAPH | {"metadata": {"name": "My_Graph"}},
        [
            'metadata.name [NAME] "My_Graph" is no name: a resource name has at most 63 small letters, digits and -, '
            "and starts and ends with a letter or digit; write my-graph"
        ],
    ),
    "too many": (
        graph(nodes=[{"name": f"x{i}", "code": "1"} for i in range(129)]),
        ["nodes [FIELD-VALUE] at most 128 entries may stand here, and there are 129; shorten it, or split it up"],
    ),
    "too few": (
        graph(nodes=[]),
        ["nodes [FIELD-VALUE] at least 1 entries may stand here, and there are 0; add what is missing"],
    ),
    "too long": (
        node(when="a" * 4097),
        [
            "nodes.x.when [FIELD-VALUE] at most 4096 characters may stand here, and there are 4,097; "
            "shorten it, or split it up"
        ],
    ),
    "out of range": (
        node(timeoutSeconds=0),
        ["nodes.x.timeoutSeconds [FIELD-VALUE] 0 is out of bounds: it must be greater than 0"],
    ),
    "form of a text": (
        run(graph="g", inputFrom={"uri": "http://x"}),
        [
            'inputFrom.uri [FIELD-VALUE] "http://x" does not have the form that is due here; '
            "write s3://bucket/key or file:///folder/file"
        ],
    ),
    "another version": (
        GRAPH | {"apiVersion": "decurion.dev/v1"},
        ['apiVersion [KIND] apiVersion is "decurion.dev/v1"; write apiVersion: decurion.dev/v1alpha1'],
    ),
    "misspelt kind": (
        GRAPH | {"kind": "Taskgraph"},
        ['kind [KIND] there is no kind "Taskgraph"; did you mean "TaskGraph"?'],
    ),
    "no kind": (
        {"apiVersion": "decurion.dev/v1alpha1"},
        [
            "kind [KIND] kind is missing; write kind: Agent, Approval, LLM, MCPServer, TaskGraph, TaskGraphRun or "
            "WorkerPool"
        ],
    ),
    "no object": ([], [" [KIND] a resource is an object with apiVersion and kind, and this is a list"]),
}


@pytest.mark.parametrize(("obj", "expected"), CASES.values(), ids=CASES.keys())
def test_what_is_wrong_is_said_in_one_sentence_with_its_remedy(obj: object, expected: list[str]) -> None:
    assert parse_resource(obj)[0] is None
    assert found(obj) == expected


def test_everything_is_said_at_once() -> None:
    broken = copy.deepcopy(GRAPH)
    broken["metadata"] = {"nme": "x"}
    broken["spec"]["nodes"][0]["map"]["tolerate"] = {"count": 1, "percent": 2}
    broken["spec"]["nodes"][1] |= {"aftr": [], "timeoutSeconds": "1"}
    broken["spec"]["templates"][0]["nodes"][0]["llm"]["ref"] = 5
    broken["spec"]["outptu"] = {}
    assert [line.split("]")[0] for line in found(broken)] == [
        "metadata.nme [FIELD-UNKNOWN",
        "nodes.extract.map.tolerate [ONE-OF",
        "nodes.check.timeoutSeconds [FIELD-TYPE",
        "nodes.check.aftr [FIELD-UNKNOWN",
        "templates.one.nodes.read.llm.ref [FIELD-TYPE",
        "outptu [FIELD-UNKNOWN",
    ]


def test_every_code_is_documented() -> None:
    assert {line.split(" [")[1].split("]")[0] for _, lines in CASES.values() for line in lines} <= CODES.keys()


def test_a_fix_is_offered_for_what_is_misspelt() -> None:
    (finding,) = parse_resource(node(aftr=["y"]))[1]
    assert finding.to_json() == {
        "code": "FIELD-UNKNOWN",
        "path": "nodes.x.aftr",
        "message": 'there is no field "aftr" here; did you mean "after"?',
        "severity": "error",
        "fix": {"old": "aftr", "new": "after"},
    }


@pytest.mark.parametrize("kind", LATER_KINDS)
def test_kinds_of_the_language_that_are_not_built_say_what_to_use(kind: str) -> None:
    (line,) = found(GRAPH | {"kind": kind})
    assert line == f"kind [NOT-SUPPORTED] kind {kind} is not built yet; {LATER_KINDS[kind]}"


def _models(of: type[Model] = Model) -> list[type[Model]]:
    below = [sub for direct in of.__subclasses__() for sub in [direct, *_models(direct)]]
    return [model for model in below if model.__module__.startswith("decurion_crds")]


def test_no_field_is_both_built_and_announced_for_later() -> None:
    for model in _models():
        aliases = {field.alias for field in model.model_fields.values()}
        assert not aliases & model.later.keys(), model


def test_every_field_has_a_description_and_a_name_that_leads_back_to_it() -> None:
    for model in _models():
        for name, field in model.model_fields.items():
            assert field.description, f"{model.__name__}.{name}"
            assert field.alias, f"{model.__name__}.{name}"
            if not name.endswith("_"):
                assert python_name(field.alias) == name


def test_positions_are_asked_for_by_index_and_for_unknown_fields_at_the_key() -> None:
    asked: list[Place] = []

    def locate(place: Place) -> tuple[str, int, int]:
        asked.append(place)
        return "g.yaml", 7, 3

    _, findings = parse_resource(node(aftr=["y"], timeoutSeconds="5"), locate=locate)
    assert asked == [("spec", "nodes", 0, "timeoutSeconds"), ("spec", "nodes", 0, "aftr", KEY)]
    assert findings[0].text().startswith("g.yaml:7:3 nodes.x.timeoutSeconds [FIELD-TYPE] ")


def test_a_spec_beyond_its_bound_is_refused_before_anything_else_is_read() -> None:
    rest = len(json.dumps({"input": {"t": ""}, "graph": "g"}, separators=(",", ":")))
    text = "x" * (MAX_SPEC_BYTES - rest)
    assert found(run(graph="g", input={"t": text})) == []
    (line,) = found(run(graph="G", input={"t": text + "x"}))
    assert line == (
        "spec [SPEC-TOO-LARGE] the spec has 98,305 bytes of compact JSON and may have 98,304; "
        "pass the input by inputFrom"
    )


def test_a_spec_of_hostile_depth_is_refused() -> None:
    deep: Any = "x"
    for _ in range(5_000):
        deep = [deep]
    (line,) = found(run(graph="g", input={"t": deep}))
    assert line == "spec [SPEC-TOO-LARGE] the spec is nested deeper than 64 levels; flatten it"


def test_a_number_that_readers_read_differently_is_refused_in_free_values() -> None:
    (line,) = found(run(graph="g", input={"a": [{"id": 2**53}]}))
    assert line == (
        "input [FIELD-VALUE] $.a[0].id: an integer beyond ±(2^53-1) is read differently by different readers; "
        "write it as a text"
    )


def test_what_is_no_json_is_refused() -> None:
    (line,) = found(run(graph="g", input={"t": "\ud800"}))
    assert line.startswith("spec [FIELD-VALUE] the spec holds what is no JSON: ")


def test_a_status_leaves_out_what_is_not_set() -> None:
    condition = Condition(
        type="Completed", status="False", reason="Running", last_transition_time="2026-12-01T00:00:00Z"
    )
    status = TaskGraphRunStatus(phase="Running", conditions=[condition])
    assert status.to_json() == {
        "phase": "Running",
        "conditions": [
            {
                "type": "Completed",
                "status": "False",
                "reason": "Running",
                "lastTransitionTime": "2026-12-01T00:00:00Z",
            }
        ],
    }


def test_objects_of_the_api_server_parse_with_their_metadata_and_status() -> None:
    for kind, model in KINDS.items():
        assert model.plural
        assert model.short_name.startswith("tg")
        assert kind == model.__name__
    live = GRAPH | {
        "metadata": {
            "name": "earnings",
            "namespace": "team",
            "uid": "1",
            "generation": 3,
            "resourceVersion": "12",
            "creationTimestamp": "2026-12-01T00:00:00Z",
            "labels": {"a": "b"},
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"},
            "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {}}}],
            "ownerReferences": [{"kind": "X"}],
            "finalizers": ["x/y"],
        },
        "status": {"observedGeneration": -1},
    }
    parsed, findings = parse_resource(live)
    assert findings == []
    assert isinstance(parsed, TaskGraph)
    assert parsed.metadata.generation == 3
    assert parsed.status is not None
    assert parsed.status.observed_generation == -1


def test_a_finding_reads_as_one_line() -> None:
    finding = Finding("EXPR-FIELD", "nodes.a.with.x", "no field idd.", file="g.yaml", line=31, column=18)
    assert finding.text() == "g.yaml:31:18 nodes.a.with.x [EXPR-FIELD] no field idd."
    assert Finding("CYCLE", "", "a waits for b.").text() == "[CYCLE] a waits for b."


def test_the_errors_of_a_scripted_reply_are_those_that_the_worker_knows() -> None:
    assert set(get_args(ScriptedError)) == {*FAILURES, CUT_OFF}

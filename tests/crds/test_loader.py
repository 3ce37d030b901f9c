"""Manifests from files: values and places as kubectl reads them, and what is said of accidents."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from decurion_crds.canonical import drop_nulls
from decurion_crds.loader import KEY, Document, Loaded, load, load_text
from decurion_crds.v1alpha1 import TaskGraph

HEAD = "apiVersion: decurion.dev/v1alpha1\nkind: TaskGraph\nmetadata: {name: x}\n"


def of(spec: str) -> Loaded:
    return load_text(f"{HEAD}spec:\n" + "".join(f"  {line}\n" for line in spec.splitlines()), "g.yaml")


def document(spec: str) -> Document:
    loaded = of(spec)
    assert [finding.text() for finding in loaded.findings if finding.severity == "error"] == []
    return loaded.documents[0]


def said(spec: str) -> list[str]:
    return [finding.text() for finding in of(spec).findings]


SAME_AS_KUBECTL: dict[str, tuple[str, Any]] = {
    "flow": ("a: {b: c, d: [e, f]}", {"a": {"b": "c", "d": ["e", "f"]}}),
    "nulls of objects go and nulls of lists stay": ("a: {b: ~, c: [null, 1]}\nd:", {"a": {"c": [None, 1]}}),
    "anchors": ("a: &x {b: 1}\nc: *x", {"a": {"b": 1}, "c": {"b": 1}}),
    "merge below wins": ("a: &x {b: 1}\nd: {<<: *x, b: 2}", {"a": {"b": 1}, "d": {"b": 2}}),
    "merge writes over what stands above": ("a: &x {b: 1}\nd:\n  b: 9\n  <<: *x", {"a": {"b": 1}, "d": {"b": 1}}),
    "null below a merge takes away": ("a: &x {b: 1, c: 2}\nd: {<<: *x, b: ~}", {"a": {"b": 1, "c": 2}, "d": {"c": 2}}),
    "merge of several": (
        "l: [&p {a: 1}, &q {a: 2, b: 2}]\nd: {<<: [*p, *q]}",
        {"l": [{"a": 1}, {"a": 2, "b": 2}], "d": {"a": 1, "b": 2}},
    ),
    "an alias as key": ("a: &k key\nb: {*k : 1}", {"a": "key", "b": {"key": 1}}),
    "quoted words stay texts": ("a: 'yes'\nb: \"1e3\"\nc: ''", {"a": "yes", "b": "1e3", "c": ""}),
    "escapes": ('a: "x\\ty\\u00e9\\U0001F600"', {"a": "x\tyé😀"}),
    "blocks": ("a: |\n  x\n   y\nb: |-\n  z\nc: >\n  f\n  g\n\n  h", {"a": "x\n y\n", "b": "z", "c": "f g\nh\n"}),
    "plain texts of several lines": ("a: b\n  c\n  d", {"a": "b c d"}),
    "standard tags": ('a: !!str 5\nb: !!int "5"\nc: !!bool "yes"\nd: !!float 5', {"a": "5", "b": 5, "c": True, "d": 5}),
    "colons in texts": ("a: u://x\nb: {u: u://x}\nc: [a:b]", {"a": "u://x", "b": {"u": "u://x"}, "c": ["a:b"]}),
    "comments": ("a: b # c\nd: e#f", {"a": "b", "d": "e#f"}),
    "keys that are no texts": ("yes: 3\n1: 4\n1.5: 5", {"true": 3, "1": 4, "1.5": 5}),
    "keys without values": ("? a\n? b\n: c", {"b": "c"}),
    "pairs in lists": ("a: [x: 1, z]", {"a": [{"x": 1}, "z"]}),
    "json": ('a: {"b": 1.0, "c": null, "d": [1, null]}', {"a": {"b": 1, "d": [1, None]}}),
    "numbers": ("a: 7.0\nb: 1e3\nc: 2026-01-01", {"a": 7, "b": 1000, "c": "2026-01-01"}),
}  # fmt: skip
REFUSED_AS_BY_KUBECTL = {
    "tab": "a: b\n\tc: d",
    "at sign": "a: @x",
    "backtick": "a: `x`",
    "percent": "a: %x",
    "open brace": "a: {b: c",
    "open quote": "a: 'x",
    "unknown anchor": "a: *nope",
    "colon in a text": "a: b: c",
    "two words in quotes": "a: 'x'y",
    "question mark between braces": "a: {note?: {type: string}}",
    "map as key": "a: {[b]: c}",
    "null as key": "~: a",
    "not a number": "a: .nan",
    "half a surrogate pair": 'a: "\\ud800"',
    "unknown escape": 'a: "\\q"',
    "recursion": "a: &x\n  b: *x",
    "wrong tag": "a: !!int x",
    "dash between brackets": "a: [ - ]",
    "interpolation": "a: {{ x }}",
}


@pytest.mark.parametrize(("spec", "expected"), SAME_AS_KUBECTL.values(), ids=SAME_AS_KUBECTL.keys())
def test_a_spec_is_read_as_kubectl_reads_it(spec: str, expected: Any) -> None:
    assert document(spec).raw["spec"] == expected


@pytest.mark.parametrize("spec", REFUSED_AS_BY_KUBECTL.values(), ids=REFUSED_AS_BY_KUBECTL.keys())
def test_what_kubectl_cannot_read_is_an_error(spec: str) -> None:
    findings = of(spec).findings
    assert [finding.code for finding in findings if finding.severity == "error"] == ["YAML"]
    assert all(finding.file == "g.yaml" and finding.line and finding.column for finding in findings)


@pytest.fixture
def kubectl(tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    """Reads one spec with kubectl, without any server: its value, or None when it is refused."""
    program = shutil.which("kubectl") or str(request.getfixturevalue("api_server").kubectl_command)

    def read(spec: str) -> Any:
        file = tmp_path / "g.yaml"
        file.write_text(f"{HEAD}spec:\n" + "".join(f"  {line}\n" for line in spec.splitlines()))
        command = [program, "annotate", "--local", f"--filename={file}", "a=b", "--output=json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        return json.loads(done.stdout)["spec"] if done.returncode == 0 else None

    return read


def test_kubectl_itself_reads_specs_so(kubectl: Any) -> None:
    for name, (spec, expected) in SAME_AS_KUBECTL.items():
        assert drop_nulls(kubectl(spec)) == expected, name
    for name, spec in REFUSED_AS_BY_KUBECTL.items():
        assert kubectl(spec) is None, name


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        (
            "nodes: [{map: {items: input.reports.map(r, r.id)}}]",
            "g.yaml:5:25 nodes[0].map [YAML] between braces YAML cuts input.reports.map(r at the comma; "
            "put the whole text into double quotes, or write it as a block with |",
        ),
        (
            'a: f("x #y")',
            "g.yaml:5:6 a [YAML] YAML takes the rest from # on for a comment; "
            "put the whole text into double quotes, or write it as a block with |",
        ),
        (
            "when: !has(x)",
            "g.yaml:5:9 when [YAML] YAML takes the text that starts with ! for a tag (!has(x)); "
            "write not instead of !, or put the whole text into double quotes, or write it as a block with |",
        ),
        (
            "prompt: {{ x }}",
            "g.yaml:5:12 prompt [YAML] YAML takes {{ for two objects; "
            "put the whole text into double quotes, or write it as a block with |",
        ),
        (
            "a: x if y else z: 1",
            'g.yaml:5:19 [YAML] a ": " inside a text ends it for YAML; '
            "put the whole text into double quotes, or write it as a block with |",
        ),
        ("a:\n\tb: 1", "g.yaml:6:3 [YAML] YAML does not allow tabs for indentation; use spaces"),
        (
            "input: {note?: {type: string}}",
            'g.yaml:5:11 input [YAML] between braces kubectl does not read note?; write it in quotes, as "note?"',
        ),
        ("a: 1\na: 2", 'g.yaml:6:3 a [YAML] "a" stands here twice (before in line 5); remove one of them'),
        (
            "retry: {on: 1}",
            'g.yaml:5:11 retry.true [YAML001] as a key kubectl reads on as "true", '
            'and other readers as something else; write "on"',
        ),
        (
            "required: [x, y]",
            "g.yaml:5:17 required[1] [YAML001] kubectl reads y as true, and other readers as text; "
            'write "y" for the text, or true for that',
        ),
        (
            "a: 2026-01-01",
            "g.yaml:5:6 a [YAML001] kubectl reads 2026-01-01 as text, and other readers as a date; "
            'write "2026-01-01" for the text',
        ),
        (
            "a: !!binary aGk=",
            "g.yaml:5:6 a [YAML] the tag !!binary is not read here; remove it and write the value as a text",
        ),
    ],
)
def test_an_accident_is_named_with_its_remedy(spec: str, line: str) -> None:
    assert said(spec) == [line]


@pytest.mark.parametrize(
    "spec", ["a: x # y", "a: issue (see b) # c", "a: {b: f(x)}", "a: 'f(x, y'", "a: it's # fine", "a: [don't, won't]"]
)
def test_what_is_no_accident_is_left_alone(spec: str) -> None:
    assert said(spec) == []


def test_a_warning_offers_its_fix_and_is_no_error() -> None:
    (finding,) = of("a: yes").findings
    assert finding.severity == "warning"
    assert finding.to_json()["fix"] == {"old": "yes", "new": '"yes"'}


def test_an_anchor_cannot_contain_itself() -> None:
    (finding,) = of("a: &x\n  b: *x").findings
    assert finding.message == "an anchor's value cannot contain itself; write it out"


def test_aliases_cannot_multiply_without_bound() -> None:
    levels = "\n".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9))
    (finding,) = of(f"a0: &a0 [{', '.join('x' * 10)}]\n{levels}").findings
    assert "with aliases in place there are more than 200,000 values" in finding.message


@pytest.mark.parametrize("spec", ["a: " + "[" * 5_000 + "]" * 5_000, "a: " + "{x: " * 5_000 + "}" * 5_000])
def test_nesting_is_bounded(spec: str) -> None:
    assert [finding.code for finding in of(spec).findings] == ["YAML"]


NODES = """\
nodes:
  - name: check   # first
    when: len(x) > 0
    with:
      facts: "[f for f in x.y]"
      quote: "a == \\"b\\" and c"
      single: 'it''s'
    code: |
      bad = 1

        indented
    prompt: >-
      folded text
    after: [a,
      b]
"""


@pytest.mark.parametrize(
    ("place", "offset", "expected"),
    [
        ((), None, (1, 1)),
        (("spec", "nodes"), None, (6, 5)),
        (("spec", "nodes", 0), None, (6, 7)),
        (("spec", "nodes", 0, "name"), None, (6, 13)),
        (("spec", "nodes", 0, "name", KEY), None, (6, 7)),
        (("spec", "nodes", 0, "when"), 9, (7, 22)),
        (("spec", "nodes", 0, "with", "facts"), None, (9, 16)),
        (("spec", "nodes", 0, "with", "facts"), 3, (9, 20)),
        (("spec", "nodes", 0, "with", "quote"), 8, (10, 27)),
        (("spec", "nodes", 0, "with", "single"), 2, (11, 17)),
        (("spec", "nodes", 0, "code"), 0, (13, 9)),
        (("spec", "nodes", 0, "code"), 13, (15, 13)),
        (("spec", "nodes", 0, "prompt"), 3, (16, 15)),
        (("spec", "nodes", 0, "after", 1), None, (19, 9)),
        (("spec", "nodes", 0, "llm", "prompt"), None, (6, 7)),
        (("spec", "nodes", 7), 3, (6, 5)),
    ],
)
def test_every_value_has_its_place(place: Any, offset: int | None, expected: tuple[int, int]) -> None:
    assert document(NODES).position(place, offset) == expected


def test_documents_are_cut_as_kubectl_cuts_them() -> None:
    secret = "kind: Secret\napiVersion: v1\nmetadata: {name: s}\n"
    text = f"# only a comment\n---\n{HEAD}spec: {{a: 1}}\n--- # next\n\n---\n{secret}"
    loaded = load_text(text, "g.yaml")
    assert [(one.kind, one.name, one.ours, one.position(())) for one in loaded.documents] == [
        ("TaskGraph", "x", True, (3, 1)),
        ("Secret", "s", False, (10, 1)),
    ]
    assert loaded.findings == []


def test_one_broken_document_does_not_hide_the_others() -> None:
    loaded = load_text(f"a: b: c\n---\n{HEAD}spec: {{}}\n---\n- 1\n---\nx: [\n", "g.yaml")
    assert [(finding.code, finding.line) for finding in loaded.findings] == [("YAML", 1), ("KIND", 8), ("YAML", 11)]
    assert len(loaded.documents) == 1


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        (f"{HEAD}--- spec\na: 1\n", "YAML", 4),
        (f"{HEAD}...\na: 1\n", "YAML", 5),
        ("apiVersion: v1\nkind: List\nitems: [{apiVersion: decurion.dev/v1alpha1, kind: LLM}]\n", "NOT-SUPPORTED", 1),
    ],
)
def test_what_kubectl_would_pass_over_is_an_error(text: str, code: str, line: int) -> None:
    (finding,) = load_text(text, "g.yaml").findings
    assert (finding.code, finding.line) == (code, line)


def test_words_in_resources_of_others_are_not_our_concern() -> None:
    assert load_text("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {on: yes}\n", "c.yaml").findings == []


def test_files_and_folders_are_read_in_order(tmp_path: Path) -> None:
    graph = HEAD + "spec: {nodes: [{name: a, code: '1'}]}\n"
    (tmp_path / "b.yaml").write_text(graph)
    (tmp_path / "a.yml").write_bytes(
        b"\xef\xbb\xbf" + graph.replace("name: x", "name: w").replace("\n", "\r\n").encode()
    )
    (tmp_path / "c.json").write_text(json.dumps({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}))
    (tmp_path / "d.txt").write_text("not: [read")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "e.yaml").write_text("not: [read")
    extra = tmp_path / "extra"
    extra.write_text(graph.replace("name: x", "name: z"))
    loaded = load([tmp_path, extra])
    models, findings = loaded.parse()
    assert findings == []
    assert [one.name for one in loaded.documents] == ["w", "x", "s", "z"]
    assert [type(model) for _, model in models] == [TaskGraph] * 3


def test_what_is_wrong_with_files_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "latin.yaml").write_bytes(b"a: \xe9\n")
    (tmp_path / "nul.yaml").write_bytes(b"a: \x00\n")
    loaded = load([tmp_path / "none.yaml", tmp_path / "empty", tmp_path / "latin.yaml", tmp_path / "nul.yaml"])
    assert [(finding.code, finding.message) for finding in loaded.findings] == [
        ("FILE", "there is no such file, or it is a link that leads nowhere; check its name"),
        ("FILE", "there is no YAML or JSON file in this folder; name another"),
        ("FILE", "the byte 0xe9 is no UTF-8; save the file as UTF-8"),
        ("YAML", "the character U+0000 may not stand in YAML; save it as plain UTF-8 text"),
    ]


def test_one_name_twice_is_found_across_files(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(HEAD)
    (tmp_path / "b.yaml").write_text(f"\n{HEAD}")
    (finding,) = load([tmp_path]).findings
    assert finding.text() == (
        f"{tmp_path}/b.yaml:4:18 metadata.name [DUPLICATE-NAME] there is already a TaskGraph "
        f'"x" at {tmp_path}/a.yaml:3; rename one of them'
    )


def test_findings_of_a_resource_carry_their_place_in_file_order() -> None:
    loaded = of("nodes:\n  - name: a\n    aftr: [b]\n    code: 5\n  - name: a\n    code: yes\noutptu: {}")
    _, findings = loaded.parse()
    assert [(finding.line, finding.column, finding.code) for finding in findings] == [
        (7, 7, "FIELD-UNKNOWN"),
        (8, 13, "FIELD-TYPE"),
        (9, 13, "DUPLICATE-NAME"),
        (10, 13, "FIELD-TYPE"),
        (11, 3, "FIELD-UNKNOWN"),
    ]

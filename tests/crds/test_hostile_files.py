"""Files that nobody meant as manifests, or that somebody made to do harm: a sentence for each, never a traceback."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from decurion_crds.findings import MAX_MESSAGE, MAX_PATH, Finding
from decurion_crds.loader import Loaded, load, load_text

HEAD = "apiVersion: decurion.dev/v1alpha1\nkind: TaskGraph\n"
BODY = "spec: {nodes: [{name: a, transform: {x: '1'}}], output: {x: nodes.a.output.x}}\n"
GRAPH = f"{HEAD}metadata: {{name: good}}\n{BODY}"


def found(loaded: Loaded) -> list[Finding]:
    return loaded.parse()[1]


def said(text: str) -> list[str]:
    return [finding.text() for finding in found(load_text(text, "g.yaml"))]


HOSTILE = {
    "no name": (HEAD + BODY, "g.yaml:1:1 [FIELD-MISSING] metadata is missing; add it"),
    "name of a number": (
        f"{HEAD}metadata: {{name: 5}}\n{BODY}",
        'g.yaml:3:18 metadata.name [FIELD-TYPE] a text is due, and this is a number; write "5", in quotes',
    ),
    "name that YAML reads as a boolean": (
        f"{HEAD}metadata: {{name: no}}\n{BODY}",
        'g.yaml:3:18 metadata.name [FIELD-TYPE] a text is due, and this is a boolean; write "no", in quotes',
    ),
    "name that colours a terminal": (
        f'{HEAD}metadata: {{name: "a\\e[31m"}}\n{BODY}',
        'g.yaml:3:18 metadata.name [NAME] "a\\x1b[31m" is no name',
    ),
    "name that turns the text around": (
        GRAPH.replace("name: a", 'name: "a\\u202eb"'),
        'g.yaml:4:23 nodes[0].name [NAME] "a\\u202eb" is no name',
    ),
    "name with a letter of another script": (
        GRAPH.replace("name: a", "name: \u0430bc"),
        'g.yaml:4:23 nodes[0].name [NAME] "\u0430bc" (in which \u0430 is U+0430, cyrillic small letter a) is no name',
    ),
    "name of 10,000 letters": (
        GRAPH.replace("name: a", f"name: {'b' * 10_000}"),
        'g.yaml:4:23 nodes[0].name [NAME] "bbb',
    ),
    "field of another script": (
        GRAPH.replace("nodes: [{name", "nоdes: [{name"),
        'g.yaml:4:8 nоdes [FIELD-UNKNOWN] there is no field "nоdes" (in which о is U+043E, cyrillic small letter o) '
        'here; did you mean "nodes"?',
    ),
    "escape in an unknown field": (
        GRAPH.replace("output:", '"no\\e]0;x\\adez":'),
        'g.yaml:4:49 ["no\\x1b]0;x\\x07dez"] [FIELD-UNKNOWN]',
    ),
    "kind of 5,000 letters": (GRAPH.replace("TaskGraph", "k" * 5_000), "g.yaml:2:7 kind [KIND] there is no kind"),
    "kind that is a list": (GRAPH.replace("TaskGraph", "[a]"), "g.yaml:2:7 kind [KIND] there is no kind"),
    "misspelt group": (
        GRAPH.replace("decurion.dev", "decurio.dev"),
        'g.yaml:1:13 apiVersion [KIND] apiVersion is "decurio.dev/v1alpha1"; write apiVersion: decurion.dev/v1alpha1',
    ),
    "version without group": (GRAPH.replace("decurion.dev/", ""), "g.yaml:1:13 apiVersion [KIND] apiVersion is"),
    "control character": (
        GRAPH.replace("name: a", "name: a\x1b[31m"),
        "g.yaml:4:24 [YAML] the character U+001B may not stand in YAML; "
        'remove it, or write "\\x1b" in double quotes',
    ),
    "NUL": (GRAPH + "\0", "g.yaml:5:1 [YAML] the character U+0000 may not stand in YAML"),
    "directive": (f"%YAML 1.2\n---\n{GRAPH}", "g.yaml:2:1 [YAML] kubectl reads no YAML directives; remove the line"),
    "tab in a list": (
        f"{HEAD}metadata: {{name: x}}\nspec:\n  nodes:\n  -\tname: a\n",
        "g.yaml:6:4 [YAML] YAML does not allow tabs for indentation; use spaces",
    ),
    "object of another language": (
        f"{HEAD}metadata: {{name: !!python/object/apply:os.system [ls]}}\n{BODY}",
        "g.yaml:3:18 metadata.name [YAML] the tag !!os.system is not read here",
    ),
    "number of 5,000 digits": (
        GRAPH.replace("transform", f"timeoutSeconds: {'9' * 5_000}, transform"),
        "g.yaml:4:42 nodes.a.timeoutSeconds [FIELD-TYPE] a number is due, and this is a text",
    ),
    "merge into itself": (f"{HEAD}spec: &a\n  <<: *a\n", "g.yaml:4:7 [YAML] an anchor's value cannot contain itself"),
    "Helm template": (
        f"{{{{- if .Values.on }}}}\n{GRAPH}{{{{- end }}}}\n",
        "g.yaml:1:3 [YAML] this looks like a template of Helm; render it first",
    ),
    "Helm value": (
        GRAPH.replace("{name: good}", "{name: {{ .Release.Name }}}"),
        "g.yaml:3:19 metadata.name [YAML] YAML takes {{ for two objects; put the whole text into double quotes",
    ),
    "kustomization without kind": (
        "resources:\n- graph.yaml\n",
        "g.yaml:1:1 [KIND] apiVersion and kind are missing; write apiVersion: decurion.dev/v1alpha1 and a kind, "
        "or name only files that are manifests",
    ),
    "list of ours": (
        "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: decurion.dev/v1alpha1, kind: LLM}\n",
        "g.yaml:1:1 [NOT-SUPPORTED] lists of resources are not read here; write the items as documents",
    ),
    "text": ("hello\n", "g.yaml:1:1 [KIND] a resource is an object with apiVersion and kind"),
    "list as spec": (
        f"{HEAD}metadata: {{name: x}}\nspec: []\n",
        "g.yaml:4:7 spec [FIELD-TYPE] an object is due, and this is a list",
    ),
    "nodes by name": (
        f"{HEAD}metadata: {{name: x}}\nspec: {{nodes: {{a: {{code: '1'}}}}}}\n",
        "g.yaml:4:15 nodes [FIELD-TYPE] a list is due, and this is an object; "
        "write its members as items: - name: …",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "line"), HOSTILE.values(), ids=HOSTILE.keys())
def test_what_cannot_be_a_manifest_gets_one_sentence(text: str, line: str) -> None:
    findings = [finding for finding in found(load_text(text, "g.yaml")) if finding.severity == "error"]
    assert [finding.text()[: len(line)] for finding in findings] == [line]
    assert all(finding.text().isprintable() for finding in findings)
    assert all(len(finding.message) <= MAX_MESSAGE and len(finding.path) <= MAX_PATH for finding in findings)


def test_a_message_that_is_shortened_keeps_its_end() -> None:
    finding = Finding("NAME", "p" * 10_000, "m" * 10_000 + "; do this")
    assert finding.message.endswith("; do this")
    assert (len(finding.message), len(finding.path)) == (999, 399)


def test_a_file_name_cannot_reach_the_terminal_raw() -> None:
    finding = Finding("FILE", "", "no", file="a\x1b[31m\udcff.yaml")
    assert finding.text() == "a\\x1b[31m\\udcff.yaml [FILE] no"
    assert finding.to_json()["file"] == "a\\x1b[31m\\udcff.yaml"


OTHERS = {
    "kustomization": "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [g.yaml]\n",
    "config map": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndata: {on: yes}\n",
    "list of others": "apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}]\n",
    "another product's LLM": "apiVersion: ai.example.com/v1\nkind: LLM\nmetadata: {name: x}\nspec: {yes: 1}\n",
    "nothing": "",
    "comment": "# later\n",
    "byte order mark": "\ufeff# later\n",
}


@pytest.mark.parametrize("text", OTHERS.values(), ids=OTHERS.keys())
def test_what_belongs_to_others_is_passed_over(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(text)
    (tmp_path / "b.yaml").write_text(GRAPH)
    models, findings = load([tmp_path]).parse()
    assert findings == []
    assert [model.name for _, model in models] == ["good"]


BOMBS = {
    "aliases of lists": "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12)),
    "aliases of objects": "a0: &a0 {x: 1}\n"
    + "".join(f"a{i}: &a{i} {{l: *a{i - 1}, r: *a{i - 1}}}\n" for i in range(1, 40)),
    "aliases of a long text": f"a: &a {'x' * 1_000_000}\nb: [{', '.join(['*a'] * 10_000)}]\n",
    "merges": "a0: &a0 {x: 1}\n"
    + "".join(f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}, *a{i - 1}]}}\n" for i in range(1, 40)),
    "brackets": "a: " + "[" * 100_000,
    "braces": "a: " + "{x: " * 100_000,
    "indents": "".join(" " * i + "a:\n" for i in range(2_000)),
    "dashes": "- " * 100_000,
    "question marks": "? " * 50_000,
    "documents": "---\n" * 100_000,
    "quotes": "a: " + '"' * 100_001,
    "anchors": "".join(f"- &a{i} x\n" for i in range(100_000)),
}


@pytest.mark.parametrize("text", BOMBS.values(), ids=BOMBS.keys())
def test_a_bomb_ends_in_a_sentence_before_it_fills_the_memory(text: str) -> None:
    loaded = load_text(text, "g.yaml")
    if text.startswith("---"):
        assert loaded == Loaded()
        return
    assert [(finding.code, bool(finding.line)) for finding in loaded.findings] in ([("YAML", True)], [("KIND", True)])


FLOODS = {
    "unknown fields": ("metadata:\n" + "".join(f"  k{i}: 1\n" for i in range(20_000)), 201),
    "keys twice": ("spec:\n" + "  k: 1\n" * 20_000, 201),
    "words": ("metadata:\n  labels: [" + "yes, " * 20_000 + "]\n", 201),
}


@pytest.mark.parametrize(("text", "most"), FLOODS.values(), ids=FLOODS.keys())
def test_a_flood_of_faults_is_cut(text: str, most: int) -> None:
    findings = found(load_text(HEAD + text, "g.yaml"))
    assert 0 < len(findings) <= most + 1


def test_files_that_cannot_be_read_are_told_and_the_others_are_read(tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text(GRAPH)
    (tmp_path / "again.yaml").symlink_to("good.yaml")
    (tmp_path / "gone.yaml").symlink_to("nowhere.yaml")
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "up").symlink_to(tmp_path, target_is_directory=True)
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"a: 1\nb: caf\xe9\n")
    (tmp_path / "utf16.yaml").write_bytes("a: 1\n".encode("utf-16"))
    (tmp_path / "huge.yaml").write_bytes(b"#" * (8 * 1024 * 1024 + 1))
    long = tmp_path / ("x" * 300)
    loaded = load([tmp_path, tmp_path / "up" / "good.yaml", long, tmp_path / "loop.yaml" / "x"])
    assert [document.name for document in loaded.documents] == ["good"]
    told = [
        (Path(finding.file or "").name[:5], finding.line, finding.column, finding.message.partition(";")[0])
        for finding in loaded.findings
    ]
    assert told == [
        ("gone.", None, None, "there is no such file, or it is a link that leads nowhere"),
        ("huge.", None, None, "the file has more than 8,388,608 bytes"),
        ("latin", 2, 7, "the byte 0xe9 is no UTF-8"),
        ("loop.", None, None, "the file cannot be read (Too many levels of symbolic links)"),
        ("utf16", 1, 1, "the byte 0xff is no UTF-8"),
        ("xxxxx", None, None, "the file cannot be read (File name too long)"),
        ("x", None, None, "the file cannot be read (Too many levels of symbolic links)"),
    ]


NOBODY = 65534


@contextmanager
def nobody() -> Iterator[None]:
    """Root may read everything: what it may not is tried as nobody."""
    was = os.geteuid()
    if was == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(was)


def test_rights_that_are_missing_are_told() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        file = Path(folder) / "a.yaml"
        file.write_text(GRAPH)
        file.chmod(0)
        with nobody():
            (finding,) = load([file]).findings
    assert finding.message == "the file may not be read; check its rights"

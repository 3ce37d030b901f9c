"""What YAML does to expressions and words: read as kubectl reads it, or refused with the sentence that mends it."""

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cluster.api_server import ApiServer
from cluster.errors import KubectlFailed
from decurion_crds.canonical import drop_nulls
from decurion_crds.compile import Checker, compile_graph
from decurion_crds.loader import load_text
from decurion_crds.v1alpha1 import TaskGraph, parse_resource

NOTHING = object()
"""What kubectl reads where it drops a value, or the whole file."""


@dataclass(frozen=True)
class Accident:
    """`written` is the line `x: …` of a transform, or several. `kubectl` is what kubectl reads there (NOTHING when it
    refuses the file). `says` is how our finding goes on behind its place; empty when we read what kubectl reads.
    """

    written: str
    kubectl: Any
    says: str = ""


QUOTE = "put the whole text into double quotes, or write it as a block with |"
AT = "nodes.a.transform.x"
LIST = f"{AT} [FIELD-TYPE] an expression is due and YAML reads this as a list: put the expression into double quotes"
COLON = f'[YAML] a ": " inside a text ends it for YAML; {QUOTE}'
COMMENT = f"{AT} [YAML] YAML takes the rest from # on for a comment; {QUOTE}"
KEY = "nodes.a.transform [YAML] a key is a text, and this is"
OBJECT = LIST.replace("a list", "an object")
ACCIDENTS = {
    # expressions of which YAML makes something else
    "list comprehension": Accident("x: [r.id for r in rows]", ["r.id for r in rows"], LIST),
    "call in a list, cut at the comma": Accident("x: [max(1, 2)]", ["max(1", "2)"], f"{AT} [YAML] between braces YAML"),
    "call in braces, cut at the comma": Accident(
        "y2: {x: max(1, 2)}",
        NOTHING,
        f"nodes.a.transform.y2 [YAML] between braces YAML cuts max(1 at the comma; {QUOTE}",
    ),
    "object": Accident("x: {id: word}", {"id": "word"}, OBJECT),
    "not by a tag": Accident("x: !len(rows)", "", f"{AT} [YAML] YAML takes the text that starts with ! for a tag"),
    "text first": Accident("x: 'a' + word", NOTHING, "[YAML] this is no YAML: did not find expected key"),
    "item first": Accident('x: "a" in rows', NOTHING, "[YAML] this is no YAML: did not find expected key"),
    "colon and a space": Accident('x: {"k": 1}["k"]', NOTHING, "[YAML] this is no YAML: did not find expected key"),
    "lambda": Accident("x: sorted(rows, key=lambda r: r.id)", NOTHING, COLON),
    "condition of C": Accident("x: word ? 1 : 2", NOTHING, COLON),
    "interpolation": Accident("x: {{ word }}", NOTHING, f"{AT} [YAML] YAML takes {{{{ for two objects; {QUOTE}"),
    "comment inside": Accident('x: word.split(" #")', 'word.split("', COMMENT),
    "comment behind": Accident("x: len(rows) # how many", "len(rows)"),
    "hash without a space": Accident("x: word.count('#')", "word.count('#')"),
    "star first": Accident("x: *rows", NOTHING, "[YAML] *rows refers to an anchor that does not exist; put a text"),
    "ampersand first": Accident("x: &rows", None, f"{AT} [YAML] YAML takes the text that starts with & for an anchor"),
    "at sign first": Accident("x: @word", NOTHING, f"[YAML] a text cannot start with @; {QUOTE}"),
    "percent first": Accident("x: %s", NOTHING, f"[YAML] a text cannot start with %; {QUOTE}"),
    "backtick first": Accident("x: `word`", NOTHING, f"[YAML] a text cannot start with `; {QUOTE}"),
    "block in braces": Accident("x: {source: |\n  1}", NOTHING, f"[YAML] a text cannot start with |; {QUOTE}"),
    "tab": Accident("x:\n\t1", NOTHING, "[YAML] YAML does not allow tabs for indentation; use spaces"),
    "quote left open": Accident("x: 'word", NOTHING, "[YAML] a quote or bracket that is opened here is never closed"),
    "bracket left open": Accident("x: [1, 2", NOTHING, "[YAML]"),
    "lines of one expression": Accident("x: len(rows)\n  + 1", "len(rows) + 1"),
    "minus first": Accident("x: -len(rows)", "-len(rows)"),
    # words that are no texts
    "integer": Accident("x: 10", 10),
    "whole float": Accident("x: 7.0", 7),
    "power of ten": Accident("x: 1e3", 1000),
    "octal": Accident("x: 0o17", 15),
    "old octal": Accident("x: 010", 8),
    "underscore": Accident("x: 1_000", 1000),
    "hexadecimal": Accident("x: 0x1F", 31),
    "float": Accident("x: .5", 0.5, f'{AT} [FIELD-TYPE] an expression is a text: write "0.5", with the quotes'),
    "true": Accident("x: true", True, f'{AT} [FIELD-TYPE] an expression is a text: write "True", with the quotes'),
    "yes": Accident("x: yes", True, f'{AT} [FIELD-TYPE] an expression is a text: write "True", with the quotes'),
    "off": Accident("x: off", False, f'{AT} [FIELD-TYPE] an expression is a text: write "False", with the quotes'),
    "null": Accident("x: null", None),
    "nothing": Accident("x:", None),
    "date": Accident("x: 2026-01-01", "2026-01-01"),
    "time": Accident("x: 12:30:00", "12:30:00"),
    "not a number": Accident("x: .nan", NOTHING, f'{AT} [YAML] JSON has no .nan; write ".nan" for the text'),
    # keys
    "y as key": Accident("x: 1\ny: 2", 1, 'nodes.a.transform.true [NAME] "true" is no name: YAML makes it of words'),
    "on as key": Accident("x: 1\non: 2", 1, 'nodes.a.transform.true [NAME] "true" is no name: YAML makes it of words'),
    "null as key": Accident("x: 1\n~: 2", NOTHING, KEY + ' null; write "~"'),
    "list as key": Accident("x: 1\n[a]: 2", NOTHING, f"{KEY} an object or a list; {QUOTE}"),
    "mark between braces": Accident("x: {note?: 1}", NOTHING, f"{AT} [YAML] between braces kubectl does not read"),
    "one key twice": Accident("x: 1\nx: 2", 2, f'{AT} [YAML] "x" stands here twice (before in line 8); remove one'),
}  # fmt: skip


def manifest(written: str) -> str:
    head = "apiVersion: decurion.dev/v1alpha1\nkind: TaskGraph\nmetadata: {name: accident}\nspec:\n  nodes:\n"
    lines = "".join(f"        {line}\n" for line in written.split("\n"))
    return f"{head}    - name: a\n      transform:\n{lines}"


@pytest.mark.parametrize("accident", ACCIDENTS.values(), ids=ACCIDENTS.keys())
def test_an_accident_is_read_as_kubectl_does_or_refused_with_its_remedy(accident: Accident) -> None:
    loaded = load_text(manifest(accident.written), "g.yaml")
    errors = [finding for finding in loaded.parse()[1] if finding.severity == "error"]
    if not accident.says:
        assert [finding.text() for finding in errors] == []
        node = loaded.documents[0].raw["spec"]["nodes"][0]
        assert node.get("transform", {}).get("x") == accident.kubectl
        return
    assert [finding.text().partition(" ")[2][: len(accident.says)] for finding in errors] == [accident.says]
    assert errors[0].line in range(8, 11)


@pytest.fixture
def kubectl(request: pytest.FixtureRequest) -> str:
    return shutil.which("kubectl") or str(request.getfixturevalue("api_server").kubectl_command)


@pytest.mark.parametrize("accident", ACCIDENTS.values(), ids=ACCIDENTS.keys())
def test_kubectl_itself_makes_this_of_it(accident: Accident, kubectl: str, tmp_path: Path) -> None:
    file = tmp_path / "g.yaml"
    file.write_text(manifest(accident.written))
    command = [kubectl, "annotate", "--local", f"--filename={file}", "a=b", "--output=json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if accident.kubectl is NOTHING and done.returncode == 0:
        read = json.loads(done.stdout)["spec"]["nodes"][0]["transform"]
        assert "x" not in read
        return
    assert (done.returncode != 0) == (accident.kubectl is NOTHING), done.stderr
    if done.returncode == 0:
        read = json.loads(done.stdout)["spec"]["nodes"][0].get("transform") or {}
        assert read.get("x") == accident.kubectl
        assert isinstance(read.get("x"), bool) == isinstance(accident.kubectl, bool)


WORDS = """\
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: words}
spec:
  schemas:
    Point:
      type: object
      required: [x]
      properties: {x: {type: number, minimum: 7.0, maximum: 1e3}, y: {enum: [no, 0o17, 2026-01-01, ~]}, off: {type: integer}}
      description: null
  input:
    point: Point
    "note?": {type: string, default: null, examples: [010, 1_000, 1.50, +5, .5, 0x1F, 1e21]}
  state: [{name: rows, schema: {type: array, items: {type: number}}, merge: append, initial: [7.0, 1e3]}]
  nodes:
    - name: a
      with: {point: input.point, limit: 1e3, "y": 7.0}
      transform: {total: point.x + limit + y}
      writes: {rows: "[output.total]"}
      timeoutSeconds: 1e1
    - name: b
      after: [a]
      llm: {ref: fast, prompt: Hello, parameters: {temperature: 1.0, stop: [no, ~], seed: null, logit_bias: {1: 7.0}}}
  output: {total: nodes.a.output.total, text: nodes.b.output.text, rows: state.rows}
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: fast}
spec:
  protocol: scripted
  parameters: {y: 1e3, n: null, 1.50: 7.0}
  scripted: {default: {text: ok, off: [yes, null, 1e3]}}
"""  # noqa: E501


def _digest(graph: TaskGraph, llm: Any) -> str:
    with Checker() as checker:
        return compile_graph(graph, llms={"fast": llm}, checker=checker).result().digest


@pytest.mark.parametrize(
    "options",
    [("create",), ("apply",), ("apply", "--server-side"), ("replace", "--force")],
    ids=["create", "client-side", "server-side", "replace"],
)
def test_a_graph_has_one_digest_however_it_is_applied(
    options: tuple[str, ...], api_server: ApiServer, namespace: str
) -> None:
    loaded = load_text(WORDS, "words.yaml")
    models, findings = loaded.parse()
    assert [finding.text() for finding in findings if finding.severity == "error"] == []
    here = {type(model).__name__: model for _, model in models}
    api_server.kubectl("--namespace", namespace, *options, "--filename=-", stdin=WORDS)
    there = {}
    for kind, name in (("TaskGraph", "words"), ("LLM", "fast")):
        text = api_server.kubectl("--namespace", namespace, "get", kind, name, "--output=json")
        there[kind], told = parse_resource(json.loads(text))
        assert told == []
    assert drop_nulls(loaded.documents[0].raw["spec"]) == loaded.documents[0].raw["spec"]
    digests = [_digest(found["TaskGraph"], found["LLM"]) for found in (here, there)]  # type: ignore[arg-type]
    assert digests[0] == digests[1]


def test_a_null_where_the_language_has_a_field_is_refused_by_server_side_apply_alone(
    api_server: ApiServer, namespace: str
) -> None:
    text = WORDS.replace("timeoutSeconds: 1e1", "description: ~")
    api_server.kubectl("--namespace", namespace, "apply", "--filename=-", stdin=text)
    with pytest.raises(KubectlFailed, match=r"spec\.nodes\[0\]\.description: Invalid value: \"null\""):
        api_server.kubectl(
            "--namespace", namespace, "apply", "--server-side", "--force-conflicts", "--filename=-", stdin=text
        )
    (warning,) = [one for one in load_text(text, "words.yaml").parse()[1] if one.path == "nodes.a.description"]
    assert (warning.severity, warning.line) == ("warning", 20)
    assert warning.message == "description is null, which server-side apply refuses; remove it, or write a value"

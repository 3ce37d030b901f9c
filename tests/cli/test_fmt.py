"""`decurion graph fmt`: the house style, with comments and meaning kept; bodies in place and templates."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from decurion_cli.main import app
from decurion_crds.loader import load_text
from decurion_crds.loader.form import formatted
from pages import ROOT, blocks, pages

LOOSE = """\
# header

# second
apiVersion: decurion.dev/v1alpha1   # version
metadata: {name: g}
kind: TaskGraph


spec:
    # input comes first
    input: {text: {type: string},
            "more?": {type: integer}}   # wide
    nodes:
    # the first
    -   code: |
          # not a comment

          {"a": len(text), "b": "#x"}   # nor this

        # what it is called
        name: a   # name
        output: {a: {type: integer}, b: {type: string}}
        with: {text: 'input.text'}
        # end of a

    - {with: {x: nodes.a.output.a, y: 'nodes.a.output.b'}, transform: {z: x + 1, w: "y"}, name: b}  # flow
    - name: c
      with: {p: "[x, 1]", q: nodes.b.output.z}
      when: nodes.b.output.z > 1 or nodes.a.output.b == 'x'
      transform:
        $value: >
          p[0] +
          q
      description: "It's long
        and goes on"
    # end of nodes
    output: {r: nodes.c.output}
    # end of spec
# the end
"""
STRICT = """\
# header

# second
apiVersion: decurion.dev/v1alpha1   # version
kind: TaskGraph
metadata: {name: g}

spec:
  # input comes first
  input:
    text: {type: string}
    "more?": {type: integer}    # wide
  nodes:
    # the first
    # what it is called
    - name: a   # name
      with: {text: input.text}
      code: |
        # not a comment

        {"a": len(text), "b": "#x"}   # nor this
      output: {a: {type: integer}, b: {type: string}}
      # end of a

    - {name: b, with: {x: nodes.a.output.a, y: nodes.a.output.b}, transform: {z: x + 1, w: "y"}}  # flow
    - name: c
      description: "It's long and goes on"
      when: "nodes.b.output.z > 1 or nodes.a.output.b == 'x'"
      with:
        p: "[x, 1]"
        q: nodes.b.output.z
      transform:
        $value: >
          p[0] +
          q
  # end of nodes
  output: {r: nodes.c.output}
  # end of spec
# the end
"""
FLAT = """\
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: words}
spec:
  input: {texts: {type: array, items: {type: string}}}
  nodes:
    - name: each                # all of them
      map: {items: input.texts, as: text, template: eachBody}
  output: {all: nodes.each.output.items}
  templates:
    # what happens to each
    - name: eachBody            # inside
      input: {text: {type: string}}
      nodes:
        - name: count
          with: {text: input.text}
          transform: {many: len(text.split())}
        - name: twice
          with: {many: nodes.count.output.many}
          graph: {template: twiceBody}
      output: {m: nodes.twice.output.v}
    - name: twiceBody
      input: {many: {type: integer}}
      nodes:
        # doubles
        - {name: x, with: {m: input.many}, transform: {v: m * 2}}
      output: {v: nodes.x.output.v}
"""
NESTED = """\
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: words}
spec:
  input: {texts: {type: array, items: {type: string}}}
  nodes:
    - name: each                # all of them
      map:
        items: input.texts
        as: text
        # what happens to each
        body:  # inside
          input: {text: {type: string}}
          nodes:
            - name: count
              with: {text: input.text}
              transform: {many: len(text.split())}
            - name: twice
              with: {many: nodes.count.output.many}
              graph:
                body:
                  input: {many: {type: integer}}
                  nodes:
                    # doubles
                    - {name: x, with: {m: input.many}, transform: {v: m * 2}}
                  output: {v: nodes.x.output.v}
          output: {m: nodes.twice.output.v}
  output: {all: nodes.each.output.items}
"""


def fmt(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["graph", "fmt", *map(str, arguments)])


def digest(file: Path) -> str:
    done = CliRunner().invoke(app, ["validate", str(file)])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_loose_file_gets_the_house_style(tmp_path: Path) -> None:
    file = tmp_path / "g.yaml"
    file.write_text(LOOSE)
    checked = fmt("--check", file)
    assert (checked.exit_code, checked.stdout) == (1, f"would write {file}\n")
    assert file.read_text() == LOOSE
    shown = fmt("--diff", file)
    assert shown.exit_code == 0
    assert "-    # end of spec\n" in shown.stdout
    assert file.read_text() == LOOSE
    written = fmt(file)
    assert (written.exit_code, written.stdout, written.stderr) == (0, f"wrote {file}\n", "")
    assert file.read_text() == STRICT
    assert (fmt("--check", file).exit_code, fmt(file).stdout) == (0, "")


def sources() -> list[tuple[str, str]]:
    folders = [ROOT / "examples", ROOT / "tests" / "crds" / "refused"]
    files = [file for folder in folders for file in sorted(folder.rglob("*.yaml"))]
    found = [(str(file.relative_to(ROOT)), file.read_text()) for file in files]
    return found + [(b.where, b.text) for page in pages() for b in blocks(page) if b.language == "yaml"]


def documents() -> list[tuple[str, str]]:
    """Every manifest of the repository that is YAML, one by one."""
    parts = [(f"{name}#{i}", part) for name, text in sources() for i, part in enumerate(text.split("\n---\n"))]
    return [(name, part) for name, part in parts if is_manifest(part)]


def is_manifest(text: str) -> bool:
    loaded = load_text(text, "")
    return bool(loaded.documents) and not any(finding.severity == "error" for finding in loaded.findings)


def test_every_manifest_of_the_repository_has_a_form_that_is_stable_and_means_the_same() -> None:
    every = documents()
    assert len(every) > 150
    for name, text in every:
        new = formatted(text)
        assert formatted(new) == new, name
        assert load_text(new, "").documents[0].raw == load_text(text, "").documents[0].raw, name


@pytest.mark.parametrize(
    ("loose", "strict"),
    [
        ("a: 'it''s'", 'a: "it\'s"'),
        ("a: ['x', y]", 'a: ["x", y]'.replace('"x"', "x")),
        ("a:   &k  {b: 1}\nc: *k", "a: &k {b: 1}\nc: *k"),
        ("a: &k |\n   x\nb: *k", "a: &k |\n  x\nb: *k"),
        ("a:\n- b\n-   c: 1\n    d: 2", "a:\n  - b\n  - c: 1\n    d: 2"),
        ("a:\n\n\n  b: 1\n\n\n\n  c: 2", "a:\n  b: 1\n\n  c: 2"),
        ("a: 'yes'", 'a: "yes"'),
        ("a:\nb: ~", "a:\nb: ~"),
        ("- - 1\n  - 2\n- []", "- - 1\n  - 2\n- []"),
        ("a: {}   # none", "a: {}   # none"),
        ('a: "x\\ny"', 'a: "x\\ny"'),
    ],
)
def test_values_are_written_in_one_way(loose: str, strict: str) -> None:
    assert formatted(loose) == f"{strict}\n"
    assert formatted(strict) == f"{strict}\n"


def test_only_manifests_of_this_group_are_written_anew_and_their_line_ends_stay(tmp_path: Path) -> None:
    other = "apiVersion: v1\nkind: ConfigMap\nmetadata:   {name: x}\n"
    file = tmp_path / "g.yaml"
    file.write_bytes(f"\ufeff{other}--- # next\n{LOOSE}".replace("\n", "\r\n").encode())
    assert fmt(file).exit_code == 0
    assert file.read_bytes().decode() == f"\ufeff{other}--- # next\n{STRICT}".replace("\n", "\r\n")


def test_what_cannot_be_kept_is_left_alone_and_said(tmp_path: Path) -> None:
    file = tmp_path / "g.yaml"
    text = f"{other_document()}---\n{LOOSE.replace('kind: TaskGraph', 'kind: !!str TaskGraph')}"
    file.write_text(text)
    done = fmt(file)
    assert (done.exit_code, file.read_text()) == (0, text)
    assert f"note: {file}:5 TaskGraph g: it has tags, whose form is left alone" in done.stderr


def other_document() -> str:
    return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n"


def test_a_file_that_is_no_yaml_ends_with_2_and_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(LOOSE)
    (tmp_path / "b.yaml").write_text("a: [")
    done = fmt(tmp_path)
    assert (done.exit_code, "[YAML]" in done.stderr) == (2, True)
    assert (tmp_path / "a.yaml").read_text() == LOOSE
    assert fmt("--nested", "--flat", tmp_path).exit_code == 2


def test_resources_of_one_name_are_formatted_as_any(tmp_path: Path) -> None:
    for environment in ("a", "b"):
        (tmp_path / f"{environment}.yaml").write_text(LOOSE)
    done = fmt(tmp_path)
    assert (done.exit_code, done.stderr) == (0, "")
    assert [(tmp_path / name).read_text() for name in ("a.yaml", "b.yaml")] == [STRICT, STRICT]


def test_the_examples_are_in_the_house_style() -> None:
    done = fmt("--check", *sorted((ROOT / "examples").glob("*/*.yaml")))
    assert (done.exit_code, done.output) == (0, "")


def test_templates_go_into_place_and_back_with_their_comments(tmp_path: Path) -> None:
    file = tmp_path / "g.yaml"
    file.write_text(FLAT)
    before = digest(file)
    assert fmt("--nested", file).exit_code == 0
    assert file.read_text() == NESTED
    assert digest(file) == before
    assert fmt("--flat", file).exit_code == 0
    assert digest(file) == before
    assert load_text(file.read_text(), "").documents[0].raw == load_text(FLAT, "").documents[0].raw
    assert all(f"# {comment}" in file.read_text() for comment in ("all of them", "what happens", "inside", "doubles"))


def test_inputs_that_were_not_written_are_inferred_for_templates(tmp_path: Path) -> None:
    file = tmp_path / "g.yaml"
    bare = NESTED.replace("          input: {text: {type: string}}\n", "")
    file.write_text(bare.replace("                  input: {many: {type: integer}}\n", ""))
    before = digest(file)
    assert fmt("--flat", file).exit_code == 0
    assert digest(file) == before
    assert load_text(file.read_text(), "").documents[0].raw == load_text(FLAT, "").documents[0].raw


def test_a_template_that_several_nodes_run_or_of_another_name_stays_one(tmp_path: Path) -> None:
    file = tmp_path / "g.yaml"
    for text in (
        FLAT.replace("twiceBody", "double").replace("eachBody", "perText"),
        FLAT.replace("  output: {all", "    - {name: more, map: {items: input.texts, as: text, template: eachBody}}\n"
                     "  output: {b: nodes.more.output.items, all").replace("twiceBody", "double"),
    ):  # fmt: skip
        file.write_text(text)
        digest(file)
        assert fmt("--nested", file).exit_code == 0
        assert "body:" not in file.read_text()


def test_a_template_that_a_tool_or_finally_uses_too_stays_one(tmp_path: Path) -> None:
    file = tmp_path / "g.yaml"
    more = (
        "    - {name: more, agent: {model: fast, tools: [{template: eachBody}], prompt: Go}}\n",
        "  finally:\n    - {name: last, with: {text: \"'x'\"}, graph: {template: eachBody}}\n",
    )
    for text in (FLAT.replace("  output: {all", f"{one}  output: {{all", 1) for one in more):
        file.write_text(text)
        assert fmt("--nested", file).exit_code == 0
        assert "template: eachBody" in file.read_text(), text


def test_a_body_in_finally_becomes_a_template_and_back(tmp_path: Path) -> None:
    file = tmp_path / "g.yaml"
    nested = (
        "apiVersion: decurion.dev/v1alpha1\nkind: TaskGraph\nmetadata: {name: g}\nspec:\n"
        '  nodes:\n    - {name: a, transform: {t: "1"}}\n'
        "  finally:\n    - name: tidy\n      graph:\n        body:\n          nodes:\n"
        '            - {name: x, transform: {t: "2"}}\n          output: {t: nodes.x.output.t}\n'
        "  output: {a: nodes.a.output.t}\n"
    )
    file.write_text(nested)
    before = digest(file)
    assert fmt("--flat", file).exit_code == 0
    assert "template: tidyBody" in file.read_text()
    assert digest(file) == before
    assert fmt("--nested", file).exit_code == 0
    assert "body:" in file.read_text()
    assert digest(file) == before

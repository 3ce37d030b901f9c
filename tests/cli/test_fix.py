"""`decurion fix`: what has a fix is mended, and nothing else in the file changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from decurion_cli.checking import every_finding
from decurion_cli.main import app
from refused import refused

HEAD = "apiVersion: decurion.dev/v1alpha1\nkind: TaskGraph\nmetadata: {name: g}\nspec:\n"
BROKEN = (
    HEAD
    + """\
  input: {titel: {type: string}}   # as in "input.title"
  nodes:
    - name: a
      with: {t: input.title, u:   input.title}
      transfrm: {x: len(t) + len(u)}
  output: {x: nodes.a.output.x}
"""
)


def told(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["fix", *map(str, arguments)])


@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["unix", "windows"])
def test_all_is_mended_and_the_rest_of_the_file_stays_byte_for_byte(tmp_path: Path, end: str) -> None:
    file = tmp_path / "g.yaml"
    file.write_bytes(("\ufeff" + BROKEN.replace("\n", end)).encode())
    done = told(file)
    assert done.exit_code == 0, done.output
    good = BROKEN.replace("input.title,", "input.titel,").replace("   input.title}", "   input.titel}")
    assert file.read_bytes().decode() == "\ufeff" + good.replace("transfrm", "transform").replace("\n", end)
    assert done.stdout.splitlines() == [
        f"{file}:9:7 wrote transform for transfrm",
        f"{file}:8:23 wrote titel for title",
        f"{file}:8:41 wrote titel for title",
    ]
    assert told(file).stdout == "nothing to mend\n"


def test_a_dry_run_and_a_diff_write_nothing(tmp_path: Path) -> None:
    file = tmp_path / "g.yaml"
    file.write_text(BROKEN)
    dry = told(file, "--dry-run")
    assert (dry.exit_code, dry.stdout.splitlines()[0]) == (1, f"{file}:9:7 would write transform for transfrm")
    diff = told(file, "--diff")
    assert "\n-      transfrm: {x: len(t) + len(u)}\n" in diff.stdout
    assert "\n+      transform: {x: len(t) + len(u)}\n" in diff.stdout
    assert file.read_text() == BROKEN


def test_what_cannot_be_mended_is_told_and_left(tmp_path: Path) -> None:
    file = tmp_path / "g.yaml"
    file.write_text(BROKEN.replace("len(t) +", "nothing +"))
    done = told(file, "-o", "json")
    assert done.exit_code == 2
    shown = json.loads(done.stdout)
    assert len(shown["mended"]) == 3
    assert [one["code"] for one in shown["left"] if one["severity"] == "error"] == ["EXPR-NAME"]


WITH_FIX = [one for one in refused() if one.mend is None]


@pytest.mark.parametrize("one", [pytest.param(one, id=one.name) for one in WITH_FIX])
def test_every_broken_manifest_with_a_fix_is_mended(one: object, tmp_path: Path) -> None:
    file = tmp_path / "broken.yaml"
    file.write_text(one.path.read_text())  # type: ignore[attr-defined]
    assert told(file).exit_code == 0
    assert [f.text() for f in every_finding({file: file.read_text()}) if f.severity == "error"] == []


def test_there_are_never_more_errors_than_before(tmp_path: Path) -> None:
    """The name that is meant is taken: with it there would be two of one name."""
    file = tmp_path / "g.yaml"
    text = HEAD + "  nodes:\n    - {name: a_b, code: '1', output: {type: integer}}\n"
    text += "    - {name: a-b, code: '1', output: {type: integer}}\n  output: {x: nodes.a_b.output}\n"
    file.write_text(text)
    done = told(file)
    assert done.exit_code == 2
    before, after = every_finding({file: text}), every_finding({file: file.read_text()})
    assert sum(f.severity == "error" for f in after) <= sum(f.severity == "error" for f in before)


def test_validate_says_what_it_looked_at_where_there_is_no_graph(tmp_path: Path) -> None:
    file = tmp_path / "model.yaml"
    file.write_text(
        "apiVersion: decurion.dev/v1alpha1\nkind: LLM\nmetadata: {name: fast}\n"
        "spec: {protocol: scripted, scripted: {default: hi}}\n---\n"
        "apiVersion: decurion.dev/v1alpha1\nkind: TaskGraphRun\nmetadata: {name: first}\nspec: {graph: elsewhere}\n"
    )
    done = CliRunner().invoke(app, ["validate", str(file)])
    assert (done.exit_code, done.stdout.splitlines()) == (0, ["LLM fast: ok", "TaskGraphRun first: ok"]), done.output

"""Graphs that are made to cost: what is found stays as long as the graph, and what would take too long is refused."""

from __future__ import annotations

from pathlib import Path

from decurion_cli.checking import every_finding
from decurion_crds.findings import Finding
from decurion_crds.globs import overlap

HEAD = "apiVersion: decurion.dev/v1alpha1\nkind: TaskGraph\nmetadata: {name: g}\nspec:\n"


def errors(spec: str) -> list[Finding]:
    return [one for one in every_finding({Path("g.yaml"): HEAD + spec}) if one.severity == "error"]


def writing(globs: list[list[str]]) -> str:
    nodes = "".join(
        f"    - name: x{i}\n      workspace: {{write: [{', '.join(map(repr, some))}]}}\n"
        "      tool: {server: workspace, name: write, arguments: {path: a, text: b}}\n"
        for i, some in enumerate(globs)
    )
    return f"  nodes:\n{nodes}  output: {{v: nodes.x0.output.bytes}}\n"


def test_each_of_many_writers_of_one_channel_is_told_once() -> None:
    nodes = "".join(f"    - {{name: x{i}, transform: {{v: '1'}}, writes: {{c: output.v}}}}\n" for i in range(60))
    found = errors(f"  state: [{{name: c, schema: {{type: integer}}}}]\n  nodes:\n{nodes}  output: {{v: state.c}}\n")
    assert [one.path for one in found] == [f"nodes.x{i}.writes.c" for i in range(1, 60)]
    assert found[0].message.startswith("x0 and x1 write c in no order")
    assert found[-1].message.startswith("x55, x56, x57, x58 and x59, and more, write c in no order")


def test_globs_of_many_stars_are_compared() -> None:
    assert overlap("*a" * 60 + "b", "*b" * 60)
    assert not overlap("*a" * 60 + "b", "*b" * 60 + "c")
    assert overlap("**/" * 60 + "a", "b/" * 60 + "a")
    found = errors(writing([["*a" * 40 + str(i), "**/" * 20 + f"b{i}"] for i in range(40)]))
    assert [one.code for one in found] == ["WRITE-RACE"] * 39


def test_more_globs_than_can_be_compared_are_refused() -> None:
    found = errors(writing([[f"*{'ab' * 60}{i:03}{j:03}" for j in range(16)] for i in range(30)]))
    assert [(one.code, one.message) for one in found] == [
        (
            "FIELD-VALUE",
            "its nodes write by too many globs to tell whether two meet; give each node a folder of its own",
        )
    ]
    assert errors(writing([[f"x{i}/*{'ab' * 60}{j:03}" for j in range(16)] for i in range(30)])) == []

"""The page for coding models: small enough for a context, each example run, each trap a finding with its code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from decurion_cli.main import app
from pages import ROOT, blocks
from specs import AROUND, manifest, output_of

PAGE = ROOT / "docs" / "for-models.md"
MOST_BYTES = 6 * 1024
EXAMPLES = [block for block in blocks(PAGE) if block.language == "yaml"]
DOCS = '{"id": "a", "text": "one"}\n{"id": "b", "text": "two"}\n'

RUNS: dict[str, tuple[dict[str, Any], Any]] = {
    "Writing graphs, for a coding model": ({"text": "Long ago."}, {"summary": "a summary"}),
    "Optional step": ({"text": "Long ago."}, {"text": "Long ago."}),
    "Router, and approval": ({"letter": "My money back, please."}, {"reply": "Paid back."}),
    "Refine loop": ({"text": "Long ago."}, {"text": "from fast"}),
    "Map and reduce, over a file": ({"file": "docs.jsonl"}, {"text": "from smart", "failed": []}),
    "Sub-graph, and A/B of two models": ({"text": "Long ago."}, {"grades": [1, 2]}),
    "Chat": (
        {"history": [], "message": "Hello"},
        {
            "text": "from fast",
            "history": [{"who": "user", "text": "Hello"}, {"who": "model", "text": "from fast"}],
        },
    ),
}

TRAPS = [
    ("with: {size: 'input.flag + 1'}\n    transform: {size: size}", "EXPR-NONE"),
    ("with: {size: input.size}\n    transform: {rows: \"[{'size': size}]\"}", "TYPE-DECLARE"),
    ("with: {size: input.size}\n    code: |\n      {'size': size}", "TYPE-DECLARE"),
    ("with: {size: input.size}\n    transform: {size: input.size + size}", "EXPR-NAME"),
    ("with: {size: input.size}\n    transform: {size: size / 2}\n    output: {size: {type: integer}}", "OUTPUT-TYPE"),
    ("with: {size: input.size}\n    transform: {text: \"'size ' + size\"}", "EXPR-TYPE"),
    (
        "with: {row: input.row}\n    code: |\n      {'size': row.size}\n    output: {size: {type: integer}}",
        "EXPR-FIELD",
    ),
    ("with: {n: input.size}\n    transform: {size: 1}", "NAME"),
]


IDIOMS = [
    "Optional step",
    "Router",
    "approval",
    "Refine loop",
    "Map and reduce",
    "batch",
    "a file",
    "Sub-graph",
    "A/B",
    "Chat",
]


def headings() -> dict[str, int]:
    """Heading → line of it."""
    lines = enumerate(PAGE.read_text().splitlines(), 1)
    return {found[1]: at for at, line in lines if (found := re.match(r"#{1,2} (.*)", line))}


def test_the_page_fits_into_six_kilobytes() -> None:
    assert len(PAGE.read_bytes()) <= MOST_BYTES


def test_the_ten_idioms_are_there() -> None:
    lines = PAGE.read_text().splitlines()
    shown = "\n".join(lines[at] for at in headings().values() for at in (at - 1, at + 1))
    assert [idiom for idiom in IDIOMS if idiom not in shown] == []
    assert len(IDIOMS) == 10


def test_every_heading_has_one_example_and_each_is_run_below() -> None:
    assert len(EXAMPLES) == len(headings())
    assert list(RUNS) == list(headings())


@pytest.mark.parametrize("heading", RUNS)
def test_an_example_gives_what_it_should(heading: str, tmp_path: Path) -> None:
    (tmp_path / "docs.jsonl").write_text(DOCS)
    example = EXAMPLES[list(RUNS).index(heading)]
    given, due = RUNS[heading]
    assert output_of(example, given, folder=tmp_path, approve="*=yes") == due


@pytest.mark.parametrize(("rest", "code"), TRAPS, ids=[f"{code}-{at}" for at, (_, code) in enumerate(TRAPS)])
def test_a_trap_is_a_finding(rest: str, code: str, tmp_path: Path) -> None:
    spec = (
        "input: {size: {type: integer}, 'flag?': {type: integer}, row: {type: object, required: [size], "
        "properties: {size: {type: integer}}}}\n"
        f"nodes:\n  - name: node\n    {rest}\n"
        "output: {all: nodes.node.output}\n"
    )
    (tmp_path / "graph.yaml").write_text(manifest(spec))
    done = CliRunner().invoke(app, ["validate", str(tmp_path / "graph.yaml"), str(AROUND)])
    assert done.exit_code == 2, done.stderr
    errors = [line for line in done.stderr.splitlines() if not line.startswith("warning:")]
    assert [re.search(r"\[([A-Z0-9-]+)\]", line)[1] for line in errors] == [code], errors  # type: ignore[index]

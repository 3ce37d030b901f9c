"""The reference: its pages are made from the models, and every construct of the language has its place in the index."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from decurion_crds.v1alpha1 import (
    BLOCKS,
    KINDS,
    ApprovalBlock,
    GraphBlock,
    MapBlock,
    Model,
    Node,
    TaskGraphRunSpec,
    TaskGraphSpec,
)
from decurion_crds.v1alpha1.taskgraph import LoopBlock
from pages import ROOT
from reference import FOLDER, main, pages

INDEX = (FOLDER / "index.md").read_text()
WORKS: dict[str, type[Model]] = {
    "": Node,
    "map.": MapBlock,
    "graph.": GraphBlock,
    "loop.": LoopBlock,
    "approval.": ApprovalBlock,
    "spec.": TaskGraphSpec,
    "run.": TaskGraphRunSpec,
}
NO_CONSTRUCTS = {"name", "description"}


def test_the_pages_are_what_the_models_say(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0, capsys.readouterr().err


def test_check_fails_on_a_page_that_differs_is_missing_or_is_left_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "index.md").write_text("by hand")
    assert main([str(tmp_path)]) == 0
    assert main(["--check", str(tmp_path)]) == 0
    (tmp_path / "llm.md").write_text("edited")
    (tmp_path / "taskgraph.md").unlink()
    (tmp_path / "skill.md").write_text("left over")
    capsys.readouterr()
    assert main(["--check", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert [name for name in ("llm", "taskgraph", "skill", "index") if f"{name}.md differs" in said] == [
        "llm",
        "taskgraph",
        "skill",
    ]
    assert main([str(tmp_path)]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"index.md", *pages()}


def test_every_kind_has_a_page_that_the_index_names() -> None:
    for kind in KINDS:
        assert f"[{kind}]({kind.lower()}.md)" in INDEX
        assert f"{kind.lower()}.md" in pages()


def fields(model: type[Model]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield field.alias or name


def test_every_field_is_in_one_table_with_its_meaning() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*) \| (.*) \| (.*) \| (.*) \|$", "\n".join(pages().values()), re.MULTILINE)
    assert {name for name, *_ in rows} >= {name for model in WORKS.values() for name in fields(model)}
    assert [name for name, kind, _, _, meaning in rows if not kind.strip() or not meaning.strip()] == []


def test_every_object_stands_in_one_place() -> None:
    headings = re.findall(r"^## (\w+)$", "\n".join(pages().values()), re.MULTILINE)
    assert len(headings) == len(set(headings))
    assert {"Node", "Condition", "SecretKeyRef", "ObjectMeta"} <= set(headings)


def test_every_construct_is_in_the_index_with_a_page_that_shows_it() -> None:
    rows = re.findall(r"^\| (`.*`) \| .* \| \[.*?\]\((\.\./[^)]*)\) \| \[.*?\]\([^)]*\) \|$", INDEX, re.MULTILINE)
    listed = [name for names, _ in rows for name in re.findall(r"`([^`]*)`", names)]
    due = {prefix + name for prefix, model in WORKS.items() for name in fields(model) if name not in NO_CONSTRUCTS}
    assert len(listed) == len(set(listed))
    assert set(listed) == due, "docs/reference/index.md has a row for each construct, and no other"
    assert set(BLOCKS) <= set(listed)


def test_the_page_that_shows_a_construct_names_it() -> None:
    for names, target in re.findall(r"^\| (`.*`) \| .* \| \[.*?\]\(\.\./([^)#]*)[^)]*\) \|", INDEX, re.MULTILINE):
        text = (ROOT / "docs" / target).read_text()
        for name in re.findall(r"`(?:\w+\.)?(\w+)`", names):
            assert re.search(rf"\b{name}\b", text), f"docs/{target} does not show {name}"

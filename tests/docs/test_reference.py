"""The reference: its pages are made from the models, and every construct of the language has its place in the index."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

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
    Template,
)
from decurion_crds.v1alpha1.taskgraph import LoopBlock
from pages import ROOT, blocks
from pages import pages as documents
from reference import FOLDER, fields_of, main, models_of, pages, places_of
from specs import graph_of

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
NOT_SHOWN = {
    ("ForkFrom", "uid"): "for a run whose resource is deleted; its text says so",
    ("RetryFrom", "uid"): "for a run whose resource is deleted; its text says so",
    ("WorkerPoolSpec", "allowedNamespaces"): "has one value, its default",
}
"""Model and field → why no manifest of the pages has it."""


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


def manifests() -> Iterator[dict[str, Any]]:
    """Every manifest of the examples and the pages that a test compiles."""
    texts = [file.read_text() for file in sorted((ROOT / "examples").rglob("*.yaml"))]
    texts += [
        graph_of(block)
        for page in documents()
        for block in blocks(page)
        if block.language == "yaml" and not {"refused", "no-test"} & (block.flags | block.options.keys())
        if "spec" in block.flags or block.text.startswith("apiVersion:")
    ]
    for text in texts:
        yield from (document for document in yaml.safe_load_all(text) if document["kind"] in KINDS)


def used(model: type[Model], value: Any) -> Iterator[tuple[str, str]]:
    """Model and field of what an object of a manifest says, and of all below it."""
    for _, alias, hint in fields_of(model):
        if not isinstance(value, dict) or alias not in value:
            continue
        yield model.__name__, alias
        below = [(Template, "")] if alias == "body" else models_of(hint, "")
        for inner, place in below:
            here = value[alias]
            for one in here if place == "[]" else here.values() if place == "{}" else [here]:
                yield from used(inner, one)


def test_every_field_that_a_person_writes_is_shown_in_a_manifest_that_is_compiled() -> None:
    shown = {found for document in manifests() for found in used(KINDS[document["kind"]], document)}
    due = {
        (model.__name__, alias)
        for kind in KINDS.values()
        for model, places in places_of(kind).items()
        if any(place.startswith("`spec") for place in places)
        for _, alias, _ in fields_of(model)
    }
    assert due - shown - NOT_SHOWN.keys() == set(), "show these in an example on a page"
    assert NOT_SHOWN.keys() <= due - shown, "these are shown now"

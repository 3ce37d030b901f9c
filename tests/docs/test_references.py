"""What the pages refer to is there: links with their anchors, commands with their options, targets of make, tests."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from decurion_cli.main import app
from decurion_operator import conditions
from pages import ROOT, blocks, pages

_LINK = re.compile(r"\]\((?!https?://|mailto:)([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
_FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`\n]+)`")
_MAKE = re.compile(r"^([a-z-]+):.*## ", re.MULTILINE)
_FILE = re.compile(r"`((?:tests|hack|examples|docs|crds|ledger|worker|operator|cli)/[\w./-]*)(?:::(test_\w+))?`")
EVERY = pytest.mark.parametrize("page", pages(), ids=[str(page.relative_to(ROOT)) for page in pages()])


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    text = _FENCED.sub("", page.read_text())
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in _HEADING.findall(text)}


def said(page: Path) -> Iterator[str]:
    """Everything in a page that a reader may type: code in the text, and lines of console blocks."""
    yield from _CODE.findall(_FENCED.sub("", page.read_text()))
    for block in blocks(page):
        if block.language == "console":
            yield from (line[2:] for line in block.text.splitlines() if line.startswith("$ "))


@EVERY
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in _LINK.findall(_FENCED.sub("", page.read_text())):
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), f"{page.relative_to(ROOT)}: {target} leads nowhere"
        if anchor:
            assert anchor in anchors(file), f"{page.relative_to(ROOT)}: {target}: there is no such heading"


def test_every_page_is_reached_from_the_readme() -> None:
    seen: set[Path] = set()
    todo = [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        seen.add(page)
        for target in _LINK.findall(page.read_text()):
            file = (page.parent / target.partition("#")[0]).resolve()
            if file.suffix == ".md" and file.exists() and file not in seen:
                todo.append(file)
    unreached = {page for page in pages() if page not in seen and "decisions" not in page.parts}
    assert unreached == set()


def decurion_calls(text: str) -> Iterator[list[str]]:
    """The words after each `decurion` of a command line."""
    for part in re.split(r"[|;&<>]|\$\(", text.partition(" #")[0]):
        words = part.split()
        for at, word in enumerate(words):
            if word in ("decurion", ".venv/bin/decurion"):
                yield words[at + 1 :]
                break


@EVERY
def test_every_command_exists_with_its_options(page: Path) -> None:
    for text in said(page):
        for words in decurion_calls(text):
            command: Any = typer.main.get_command(app)
            path = "decurion"
            for word in words:
                if hasattr(command, "commands") and re.fullmatch(r"[a-z][a-z-]*(\|[a-z][a-z-]*)*", word):
                    names = word.split("|")
                    assert all(name in command.commands for name in names), f"{page.name}: `{path} {word}`: no such"
                    command, path = command.commands[names[0]], f"{path} {word}"
                elif word.startswith("-"):
                    known = {option for parameter in command.params for option in parameter.opts} | {"--help", "-h"}
                    assert word.partition("=")[0] in known, f"{page.name}: `{path}` has no {word}"


@EVERY
def test_every_target_of_make_exists(page: Path) -> None:
    known = set(_MAKE.findall((ROOT / "Makefile").read_text()))
    for text in said(page):
        if found := re.match(r"make ([a-z-]+)", text):
            assert found[1] in known, f"{page.relative_to(ROOT)}: there is no make {found[1]}"


@EVERY
def test_every_file_and_test_that_is_named_exists(page: Path) -> None:
    for name, test in _FILE.findall(_FENCED.sub("", page.read_text())):
        file = ROOT / name
        assert file.exists() or "NNNN" in name, f"{page.relative_to(ROOT)}: there is no {name}"
        if test:
            found = re.search(rf"^(async )?def {test}\(", file.read_text(), re.MULTILINE)
            assert found, f"{page.relative_to(ROOT)}: {name} has no {test}"


def test_make_help_lists_every_target() -> None:
    phony = set(re.findall(r"^\.PHONY: ([a-z-]+)$", (ROOT / "Makefile").read_text(), re.MULTILINE))
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert phony
    for target in phony:
        assert re.search(rf"make {target}\s+\S", shown), f"make help does not list {target}"


def test_every_condition_and_reason_of_the_operator_is_explained() -> None:
    said = "\n".join(page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    types = [value for name, value in vars(conditions).items() if name.isupper() and isinstance(value, str)]
    reasons = [value for name, value in vars(conditions.Reason).items() if name.isupper()]
    assert len(types) >= 9
    assert len(reasons) >= 30
    assert [word for word in [*types, *reasons] if f"`{word}`" not in said and f"`{word}=" not in said] == []

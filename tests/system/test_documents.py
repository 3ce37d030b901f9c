"""What the documents show is what there is: examples, targets, commands and links."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(document: Path, language: str) -> list[str]:
    return [text for name, text in _FENCE.findall(document.read_text()) if name == language]


def commands(document: Path) -> list[str]:
    """The lines that a reader types, without their comments."""
    lines = [line for text in blocks(document, "console") for line in text.splitlines()]
    return [line.removeprefix("$ ").partition(" #")[0].strip() for line in lines if line.startswith("$ ")]


@pytest.fixture(params=DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def document(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def test_yaml_in_a_document_is_part_of_an_example(document: Path) -> None:
    examples = [path.read_text() for path in (ROOT / "examples").rglob("*.yaml")]
    for block in blocks(document, "yaml"):
        assert any(block in example for example in examples), f"no file of examples/ holds:\n{block}"


def test_make_targets_exist(document: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z-]+)", "\n".join(commands(document))))
    named |= set(re.findall(r"`make ([a-z-]+)", document.read_text()))
    assert named <= targets


def test_links_lead_to_files(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text()):
        if "://" not in target:
            assert (document.parent / target).exists(), f"{target} does not exist"


def test_commands_of_decurion_take_the_options_shown(document: Path) -> None:
    program = ROOT / ".venv" / "bin" / "decurion"
    for command in commands(document):
        if not command.startswith(".venv/bin/decurion"):
            continue
        words = command.split()[1:]
        verbs = words[:2] if words[0] in {"ledger", "graph", "worker", "operator", "storage"} else words[:1]
        help_text = subprocess.run(
            [program, *verbs, "--help"], env={"COLUMNS": "200"}, capture_output=True, text=True, check=False
        )
        assert help_text.returncode == 0, f"{command}: {help_text.stderr}"
        for option in re.findall(r"(--[a-z-]+)", command):
            assert option in help_text.stdout, f"{command}: {option} is not an option"


def test_make_help_lists_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = set(re.findall(r"^\.PHONY: ([a-z-]+)$", makefile, re.MULTILINE))
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert phony
    for target in phony:
        assert re.search(rf"make {target}\s+\S", shown), f"make help does not list {target}"

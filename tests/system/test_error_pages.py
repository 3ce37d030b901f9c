"""The index of errors names every finding and every class of error that there is, and nothing else."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from decurion_crds.findings import CODES
from refused import refused

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "errors" / "index.md"
PACKAGES = ["crds", "ledger", "worker", "operator", "cli"]

_ROW = re.compile(r"^\| `([A-Za-z0-9-]+)` \| (.+) \| (.+) \|$", re.MULTILINE)


def _section(title: str) -> str:
    found = re.search(rf"^## {re.escape(title)}$(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None, f"the page has no section {title}"
    return found[1]


def _classes(package: str) -> Iterator[tuple[str, list[str]]]:
    """Names and bases of the classes of a package."""
    for file in sorted((ROOT / package / f"decurion_{package}").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef):
                yield node.name, [base.id for base in node.bases if isinstance(base, ast.Name)]


def _errors() -> dict[str, set[str]]:
    """Package → names of the public classes below `DecurionError`."""
    classes = {package: list(_classes(package)) for package in PACKAGES}
    known = {"DecurionError"}
    while True:
        more = {name for found in classes.values() for name, bases in found if known.intersection(bases)} - known
        if not more:
            break
        known |= more
    return {
        package: {
            n for n, bases in found if not n.startswith("_") and (known.intersection(bases) or n == "DecurionError")
        }
        for package, found in classes.items()
    }


def test_every_code_of_a_finding_has_its_cause_and_remedy() -> None:
    assert {name for name, _, _ in _ROW.findall(_section("Findings"))} == CODES.keys()


NOT_BY_A_MANIFEST = {
    "BUNDLE-TOO-LARGE": ("what is too large is not minimal", "tests/crds/test_compile_refs.py"),
    "FILE": ("the file itself is missing or unreadable", "tests/crds/test_hostile_files.py"),
    "INPUT": ("the input of a run that is started by a command", "tests/cli/test_commands.py"),
    "SNAPSHOT": ("what a node is given by a command for tests", "tests/cli/test_node.py"),
    "SPEC-TOO-LARGE": ("what is too large is not minimal", "tests/crds/test_models.py"),
    "UNUSED": ("a warning, which refuses nothing", "tests/crds/test_bodies.py"),
    "YAML001": ("a warning, which refuses nothing", "tests/crds/test_loader.py"),
}
"""Code → why no broken manifest has it, and the tests that do."""


def test_every_code_of_a_finding_has_a_broken_manifest_or_is_tested_elsewhere() -> None:
    found = {re.search(r"\[([A-Z][A-Z0-9-]+)\]", one.says) for one in refused()}
    shown = {match[1] for match in found if match is not None}
    assert shown | NOT_BY_A_MANIFEST.keys() == CODES.keys()
    assert shown.isdisjoint(NOT_BY_A_MANIFEST), "these have a broken manifest now"
    for code, (_, file) in NOT_BY_A_MANIFEST.items():
        assert code in (ROOT / file).read_text(), f"{file} does not test {code}"


@pytest.mark.parametrize("package", PACKAGES)
def test_every_class_of_error_has_its_cause_and_remedy(package: str) -> None:
    rows = [name for name, _, _ in _ROW.findall(_section(f"Errors of decurion_{package}"))]
    assert len(rows) == len(set(rows))
    assert set(rows) == _errors()[package], f"correct the table of decurion_{package} in {PAGE.relative_to(ROOT)}"

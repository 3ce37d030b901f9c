"""`operator/` shares its name with a module of the standard library and must never be importable itself."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_operator_folder_holds_the_package_and_nothing_that_python_or_pytest_would_import() -> None:
    modules = [path.name for path in (ROOT / "operator").iterdir() if path.suffix in {".py", ".pyi", ".so"}]
    assert modules == [], "a module directly in operator/ can shadow the standard library; put it in the package"
    tests = [path for path in (ROOT / "operator").rglob("*.py") if path.name.startswith(("test_", "conftest"))]
    assert tests == [], "tests of the operator live in tests/operator/"


@pytest.mark.parametrize("arguments", [["-c"], ["-I", "-c"], ["-S", "-c"]])
def test_import_operator_from_the_repository_root_is_the_standard_one(arguments: list[str]) -> None:
    # The interpreter imports `operator` while it starts: a fresh import shows what a later one would find.
    code = (
        "import sys; sys.modules.pop('operator', None); import operator; "
        "print(operator.itemgetter(0)('x'), operator.__file__)"
    )
    done = subprocess.run([sys.executable, *arguments, code], cwd=ROOT, capture_output=True, text=True, check=True)
    value, file = done.stdout.split(maxsplit=1)
    assert value == "x"
    assert not Path(file.strip()).is_relative_to(ROOT / "operator")

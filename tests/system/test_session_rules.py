"""What `make test` does with a test that cannot run."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

_SKIPPED_TEST = """
import pytest

def test_needs_something():
    pytest.skip("something is missing")
"""

_SKIPPED_MODULE = """
import pytest

pytest.importorskip("no_such_module")
"""

_EXPECTED_FAILURE = """
import pytest

@pytest.mark.xfail(reason="known")
def test_known():
    assert False
"""


def run_session(folder: Path, test: str, *, ci: str) -> subprocess.CompletedProcess[str]:
    """Run one test file under this repository's conftest and settings."""
    shutil.copy(ROOT / "tests" / "conftest.py", folder)
    (folder / "test_it.py").write_text(test)
    options = ["-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(folder)]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-o", f"pythonpath={ROOT / 'hack'}", folder],
        env={**os.environ, "CI": ci},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("test", [_SKIPPED_TEST, _SKIPPED_MODULE], ids=["test", "module"])
def test_a_skip_fails_in_continuous_integration_and_keeps_its_reason(tmp_path: Path, test: str) -> None:
    done = run_session(tmp_path, test, ci="true")
    assert done.returncode != 0
    assert "nothing may be skipped" in done.stdout
    assert "missing" in done.stdout or "no_such_module" in done.stdout


def test_a_skip_elsewhere_passes_and_is_printed_with_its_reason(tmp_path: Path) -> None:
    done = run_session(tmp_path, _SKIPPED_TEST, ci="")
    assert done.returncode == 0, done.stdout
    assert "1 skipped" in done.stdout
    assert "something is missing" in done.stdout


def test_an_expected_failure_is_not_a_skip(tmp_path: Path) -> None:
    done = run_session(tmp_path, _EXPECTED_FAILURE, ci="true")
    assert done.returncode == 0, done.stdout

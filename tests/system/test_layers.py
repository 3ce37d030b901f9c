"""Which package may import which, and what must import without the extras."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

_IMPORT_WITHOUT_EXTRAS = """
import importlib, importlib.abc, pkgutil, sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"boto3", "botocore", "ray", "kopf", "kubernetes"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
ONLY_WITH_EXTRA = {"decurion_ledger.stores.s3", "decurion_worker.executors.ray", "decurion_worker.serve_ray"}
imported = 0
for root in ("decurion_crds", "decurion_ledger", "decurion_worker", "decurion_cli"):
    package = importlib.import_module(root)
    for module in pkgutil.walk_packages(package.__path__, f"{root}."):
        if module.name not in ONLY_WITH_EXTRA and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
            imported += 1
print(imported)
"""


def test_layers_and_third_party_clients_stay_where_they_belong() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_module_but_those_of_an_extra_imports_without_the_extras() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _IMPORT_WITHOUT_EXTRAS],
        cwd=ROOT / "tests",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0


def test_what_tests_import_from_one_another_has_a_name_of_its_own() -> None:
    """Of two files of one name the one that was loaded first would be found: a folder alone passes, all fail."""
    files = [path for kind in ("tests/*/*.py", "hack/*.py", "hack/demo/*.py") for path in ROOT.glob(kind)]
    places: dict[str, list[Path]] = {}
    for path in files:
        places.setdefault(path.stem, []).append(path.relative_to(ROOT))
    imported = {
        name.partition(".")[0]
        for path in files
        if path.is_relative_to(ROOT / "tests")
        for name in re.findall(r"^(?:from|import) ([\w.]+)", path.read_text(), re.MULTILINE)
    }
    shared = {name: places[name] for name in imported & set(places) if len(places[name]) > 1}
    assert shared == {}

"""Where the Kubernetes binary of the tests is, and how it is built.

Standard library only: continuous integration starts the build before anything is installed.

    python3 hack/cluster/binary.py build    build it unless it is there
    python3 hack/cluster/binary.py path     print where it is, or would be
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

SOURCES = Path(__file__).parent / "kube"

# Without debug data, which the linker would drop anyway, the compiler needs a tenth less time.
_FLAGS = ("-trimpath", "-gcflags=all=-dwarf=false")
_COMPILERS_AT_ONCE = "2"
_COMMANDS = ("kubectl", "helm")


class BuildFailed(Exception):
    """The binary could not be built; the message says why and what to do."""


def kubernetes_version() -> str:
    """Version that `go.mod` pins, as `1.37.2`."""
    found = re.search(r"^require k8s\.io/kubernetes v(\S+)$", (SOURCES / "go.mod").read_text(), re.MULTILINE)
    if found is None:
        raise BuildFailed(f"{SOURCES / 'go.mod'} has no line `require k8s.io/kubernetes v…`; restore it.")
    return found[1]


def binary_path() -> Path:
    """Place of the binary for these sources: outside the checkout, shared by all clones of a machine."""
    digest = hashlib.sha256(" ".join(_FLAGS).encode())
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "decurion" / f"kube-{digest.hexdigest()[:16]}" / "kube"


def build() -> Path:
    """Build the binary unless it is there. A second caller waits for the first. Raises `BuildFailed`."""
    path = binary_path()
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with (path.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            _compile(path)
    return path


def _compile(path: Path) -> None:
    version = kubernetes_version()
    _check_go()
    print(
        f"Building Kubernetes {version} from source for the tests: 7 to 10 minutes on two cores the first\n"
        f"time, a minute with a warm Go cache. It downloads about 200 MB, leaves 4 GB in the Go caches\n"
        f"(`go clean -cache` removes most of that) and 200 MB in {path.parent}.",
        flush=True,
    )
    begin = time.monotonic()
    fresh = path.with_name("kube.new")
    variable = "k8s.io/component-base/version"
    major, minor, _ = version.split(".", 2)
    stamps = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor}
    linker = "-s -w " + " ".join(f"-X {variable}.{name}={value}" for name, value in stamps.items())
    command = [
        "nice",
        "-n",
        "10",
        "go",
        "build",
        "-p",
        _COMPILERS_AT_ONCE,
        *_FLAGS,
        "-ldflags",
        linker,
        "-o",
        str(fresh),
        ".",
    ]
    if subprocess.run(command, cwd=SOURCES, check=False).returncode != 0:
        raise BuildFailed("`go build` in hack/cluster/kube failed: see above; `make cluster` goes on from there.")
    for name in _COMMANDS:
        link = path.with_name(name)
        link.unlink(missing_ok=True)
        link.symlink_to(path.name)
    fresh.replace(path)
    print(f"Built {path} ({path.stat().st_size >> 20} MB) in {time.monotonic() - begin:.0f} s.", flush=True)


def _check_go() -> None:
    wanted = re.search(r"^go (\S+)$", (SOURCES / "go.mod").read_text(), re.MULTILINE)
    needs = f"Go {wanted[1]} or newer" if wanted else "Go"
    if shutil.which("go") is None:
        raise BuildFailed(
            f"Building the API server of the tests needs {needs} and there is no `go` on the PATH; "
            f"install it, or run `make test` without: it skips what needs the API server."
        )


def main(arguments: list[str]) -> int:
    match arguments:
        case ["build"]:
            try:
                build()
            except BuildFailed as error:
                print(error, file=sys.stderr)
                return 3
        case ["path"]:
            print(binary_path())
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

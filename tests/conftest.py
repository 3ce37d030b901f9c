"""The real servers of a test session: one of each, started when the first test asks for it.

With `CI=true` a test that is skipped fails: what cannot run there must not pass unseen.
"""

import os
import secrets
import subprocess
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cluster.api_server import ApiServer, adopt
from cluster.binary import binary_path, build
from cluster.control_plane import ControlPlane
from cluster.errors import KubectlFailed
from cluster.process import wait_until
from cluster.s3 import S3Server

if TYPE_CHECKING:
    from cluster.ray_runtime import RayRuntime

ROOT = Path(__file__).parent.parent
MANIFESTS = ROOT / "crds" / "manifests"
CI = os.environ.get("CI") == "true"
_MARKERS = {"s3_server": "s3", "ray_runtime": "ray", "api_server": "cluster"}


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 server (SeaweedFS). Tests share its bucket and keep to a prefix of their own."""
    server = S3Server(tmp_path_factory.mktemp("s3"))
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def ray_runtime(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[RayRuntime]":
    """A real Ray of two CPUs to which this process is connected. Tests name their actors differently."""
    from cluster.ray_runtime import RayRuntime  # importing Ray takes a second that other sessions need not wait

    runtime = RayRuntime(tmp_path_factory.mktemp("ray"))
    try:
        runtime.start()
        yield runtime
    finally:
        runtime.stop()


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """A real Kubernetes API server with its controllers, without nodes.

    It is the one that `make cluster` builds (with `CI=true` it is built here), or the cluster of
    `DECURION_TEST_KUBECONFIG` if that holds our marker; never the one that `KUBECONFIG` happens to name.
    """
    folder = tmp_path_factory.mktemp("kubernetes")
    own = os.environ.get("DECURION_TEST_KUBECONFIG")
    if own:
        yield adopt(Path(own), folder=folder)
        return
    binary = build() if CI else binary_path()
    if not binary.exists():
        pytest.skip("the Kubernetes API server is not built: `make cluster` builds it")
    plane = ControlPlane(binary=binary, folder=folder)
    try:
        yield plane.start()
    finally:
        plane.stop()


@pytest.fixture(scope="session")
def _resource_definitions(api_server: ApiServer) -> None:
    """Install our CustomResourceDefinitions and wait until objects of theirs can be stored."""
    api_server.kubectl("apply", "--server-side", "--force-conflicts", "--filename", MANIFESTS)
    plurals = [path.stem for path in sorted(MANIFESTS.glob("*.yaml"))]
    names = [f"customresourcedefinition/{plural}.decurion.dev" for plural in plurals]
    api_server.kubectl("wait", "--for=condition=Established", "--timeout=30s", *names)

    def stored() -> bool:
        """For about a second after Established the server answers 429: its storage is being made."""
        try:
            api_server.kubectl("get", ",".join(f"{plural}.decurion.dev" for plural in plurals))
        except KubectlFailed as error:
            if "429" in str(error) or "initializ" in str(error) or "doesn't have a resource type" in str(error):
                return False
            raise
        return True

    wait_until(stored, seconds=30, what="The storage of the resource definitions", every=0.2)


@pytest.fixture
def namespace(api_server: ApiServer, _resource_definitions: None) -> Iterator[str]:
    """A new namespace on the API server, where our kinds are known; it is deleted after the test."""
    name = f"test-{secrets.token_hex(4)}"
    api_server.kubectl("create", "namespace", name)
    yield name
    api_server.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB of its own."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"only root may mount a small disk: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test by the servers it uses; those of the API server come last, it may still be building."""
    for item in items:
        for fixture, marker in _MARKERS.items():
            if fixture in getattr(item, "fixturenames", ()):
                item.add_marker(marker)
    items.sort(key=lambda item: item.get_closest_marker("cluster") is not None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if not hasattr(report, "wasxfail"):
        _fail_if_skipped(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _fail_if_skipped(report)
    return report


def _fail_if_skipped(report: pytest.TestReport | pytest.CollectReport) -> None:
    if CI and report.outcome == "skipped":
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"{reason} (with CI=true nothing may be skipped)"

"""The real servers of the session: that they are what the other tests take them for, and touch nothing else."""

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
import ray
from botocore.exceptions import ClientError

from cluster.api_server import MARKER, ApiServer, adopt
from cluster.errors import NotATestCluster, ServerDied
from cluster.process import Server, wait_until
from cluster.ray_runtime import RayRuntime
from cluster.s3 import S3Server

ROOT = Path(__file__).parents[2]


def test_s3_server_creates_an_object_once_when_asked_to(s3_server: S3Server) -> None:
    client = boto3.client(
        "s3",
        endpoint_url=s3_server.endpoint_url,
        region_name=s3_server.region,
        aws_access_key_id=s3_server.access_key,
        aws_secret_access_key=s3_server.secret_key,
    )
    key = f"servers/{secrets.token_hex(4)}"
    client.put_object(Bucket=s3_server.bucket, Key=key, Body=b"first", IfNoneMatch="*")
    with pytest.raises(ClientError, match="PreconditionFailed"):
        client.put_object(Bucket=s3_server.bucket, Key=key, Body=b"second", IfNoneMatch="*")
    assert client.get_object(Bucket=s3_server.bucket, Key=key)["Body"].read() == b"first"


def test_s3_server_refuses_another_key(s3_server: S3Server) -> None:
    client = boto3.client(
        "s3",
        endpoint_url=s3_server.endpoint_url,
        region_name=s3_server.region,
        aws_access_key_id=s3_server.access_key,
        aws_secret_access_key="0" * 40,
    )
    with pytest.raises(ClientError, match=r"SignatureDoesNotMatch|AccessDenied"):
        client.put_object(Bucket=s3_server.bucket, Key="servers/forbidden", Body=b"")


def test_ray_runs_in_processes_of_its_own(ray_runtime: RayRuntime) -> None:
    @ray.remote
    def process() -> int:
        return os.getpid()

    assert ray.get(process.remote()) != os.getpid()
    assert ray.get_runtime_context().gcs_address == ray_runtime.address


def test_a_server_that_ends_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    server = Server("short", ["/bin/sh", "-c", "echo no such flag; exit 7"], folder=tmp_path, env={})

    def ended() -> bool:
        server.check_alive()
        return False

    with pytest.raises(ServerDied, match=r"short ended with status 7(.|\n)*no such flag"):
        wait_until(ended, seconds=20, what="short")


def test_building_the_api_server_without_go_says_what_to_install(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "hack" / "cluster" / "binary.py", "build"],
        env={"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert "needs Go 1." in done.stderr


class TestApiServer:
    """On the real API server."""

    def test_kubectl_goes_to_the_server_of_the_tests_whatever_the_environment_names(
        self, api_server: ApiServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("KUBECONFIG", "/nonexistent/kubeconfig")
        assert api_server.url in api_server.kubectl("cluster-info")

    def test_namespace_is_new_and_knows_our_kinds(self, api_server: ApiServer, namespace: str) -> None:
        found = api_server.kubectl("get", "taskgraphs.decurion.dev", f"--namespace={namespace}", "--output=name")
        assert found == ""
        assert "default" in api_server.kubectl("get", "serviceaccounts", f"--namespace={namespace}", "--output=name")

    def test_a_cluster_of_ones_own_is_used_only_with_the_marker(
        self, api_server: ApiServer, tmp_path: Path, unmarked: None
    ) -> None:
        with pytest.raises(NotATestCluster, match=f"create configmap {MARKER}"):
            adopt(api_server.kubeconfig, folder=tmp_path)
        api_server.kubectl("create", "configmap", MARKER, "--namespace=default")
        adopted = adopt(api_server.kubeconfig, folder=tmp_path)
        assert adopted.url == api_server.url
        assert adopted.token == api_server.token

    @pytest.fixture
    def unmarked(self, api_server: ApiServer) -> Iterator[None]:
        if "DECURION_TEST_KUBECONFIG" in os.environ:
            pytest.skip("takes the marker away, which a cluster of one's own must keep")
        api_server.kubectl("delete", "configmap", MARKER, "--namespace=default", "--ignore-not-found")
        yield
        api_server.kubectl("delete", "configmap", MARKER, "--namespace=default", "--ignore-not-found")

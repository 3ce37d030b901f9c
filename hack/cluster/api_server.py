"""A Kubernetes API server that tests may use, as its clients see it."""

import base64
import os
import shutil
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cluster.errors import KubectlFailed, NotATestCluster

MARKER = "decurion-test-cluster"
"""Name of the ConfigMap in namespace `default` by which a cluster of one's own says that tests may use it."""


@dataclass(frozen=True, slots=True)
class ApiServer:
    """Address and credentials of one API server, and a kubectl that goes there and nowhere else.

    `kubeconfig` is the file for child processes, `token` the administrator's bearer token (empty where the
    kubeconfig holds another kind of credential), `certificate_authority` the PEM text to trust.
    """

    kubeconfig: Path
    url: str
    token: str
    certificate_authority: str
    kubectl_command: Path

    @property
    def env(self) -> dict[str, str]:
        """The environment of this process with this cluster in it; the user's own kubectl caches stay out."""
        cache = self.kubeconfig.parent / "kubectl-cache"
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig), "KUBECACHEDIR": str(cache), "KUBERC": "off"}

    def kubectl(self, *arguments: str | Path, stdin: str | None = None, seconds: float = 60) -> str:
        """Run kubectl and return what it wrote to stdout.

        Raises `KubectlFailed` with its error output, also when it has not ended after `seconds`.
        """
        command = [str(part) for part in (self.kubectl_command, *arguments)]
        shown = " ".join(["kubectl", *command[1:]])
        try:
            done = subprocess.run(
                command,
                input=stdin,
                env=self.env,
                capture_output=True,
                text=True,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise KubectlFailed(f"`{shown}` did not end within {seconds:g} s.") from error
        if done.returncode != 0:
            raise KubectlFailed(f"`{shown}` ended with status {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def ssl_context(self) -> ssl.SSLContext:
        """For clients in Python that speak to `url` themselves."""
        return ssl.create_default_context(cadata=self.certificate_authority or None)


def adopt(kubeconfig: Path, *, folder: Path) -> ApiServer:
    """The cluster of the current context of `kubeconfig`, if it holds the ConfigMap `MARKER`.

    A copy of that context alone goes to `folder`. Raises `NotATestCluster`.
    """
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise NotATestCluster(f"{kubeconfig} needs a kubectl and there is none on the PATH; install it.")
    view = [kubectl, "config", "view", "--minify", "--flatten", "--raw", "--output=yaml"]
    done = subprocess.run(
        [*view, f"--kubeconfig={kubeconfig}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise NotATestCluster(f"{kubeconfig} cannot be read: {done.stderr.strip()}")
    copy = folder / "kubeconfig"
    copy.touch(mode=0o600)
    copy.write_text(done.stdout)
    config: dict[str, Any] = yaml.safe_load(done.stdout)
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    server = ApiServer(
        kubeconfig=copy,
        url=cluster["server"],
        token=user.get("token", ""),
        certificate_authority=base64.b64decode(cluster.get("certificate-authority-data", "")).decode(),
        kubectl_command=Path(kubectl),
    )
    try:
        server.kubectl("get", "configmap", MARKER, "--namespace=default", seconds=20)
    except KubectlFailed as error:
        raise NotATestCluster(
            f"The cluster of {kubeconfig} does not say that tests may use it ({error}); if they may, run "
            f"`kubectl create configmap {MARKER} --namespace=default` there."
        ) from error
    return server

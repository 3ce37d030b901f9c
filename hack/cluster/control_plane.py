"""A real Kubernetes control plane on loopback: etcd, API server, controller manager.

There is no kubelet and no scheduler: pods stay Pending, and a test that needs one to run patches its status
as a kubelet would. Whatever was stored is thrown away when it stops.

    PYTHONPATH=hack .venv/bin/python -m cluster.control_plane    one to try things on, until Ctrl-C
"""

import base64
import http.client
import os
import secrets
import ssl
import sys
import tempfile
import threading
from pathlib import Path

import yaml

from cluster.api_server import ApiServer
from cluster.binary import BuildFailed, build
from cluster.certificates import Authority, write_signing_key
from cluster.process import Server, free_ports, wait_until

_SECONDS_TO_READY = 90
_CONTROLLER_MANAGER = "system:kube-controller-manager"


class ControlPlane:
    """One control plane whose state, keys and logs lie in `folder`.

    `servers` holds its processes by name (`etcd`, `kube-apiserver`, `kube-controller-manager`), to pause or
    to kill.
    """

    def __init__(self, *, binary: Path, folder: Path) -> None:
        self.servers: dict[str, Server] = {}
        self._binary = binary
        self._folder = folder
        self._etcd, self._etcd_peer, self._api, self._manager = free_ports(4)

    @property
    def etcd_url(self) -> str:
        """Where etcd answers, in JSON under /v3 too."""
        return f"http://127.0.0.1:{self._etcd}"

    def start(self) -> ApiServer:
        """Start and wait until namespaces, RBAC and service accounts are there. Raises `ServerDied`."""
        self._folder.mkdir(parents=True, exist_ok=True)
        authority = Authority(self._folder)
        authority.issue_server("apiserver")
        write_signing_key(self._folder, "service-accounts")
        admin, manager = secrets.token_hex(16), secrets.token_hex(16)
        _write_private(
            self._folder / "tokens.csv",
            f'{admin},admin,admin,"system:masters"\n{manager},{_CONTROLLER_MANAGER},manager,\n',
        )
        url = f"https://127.0.0.1:{self._api}"
        kubeconfig = self._kubeconfig("kubeconfig", url=url, token=admin, authority=authority)
        self._kubeconfig("manager.kubeconfig", url=url, token=manager, authority=authority)
        server = ApiServer(
            kubeconfig=kubeconfig,
            url=url,
            token=admin,
            certificate_authority=authority.certificate,
            kubectl_command=self._binary.with_name("kubectl"),
        )
        self._start("etcd", self._etcd_flags())
        self._start("kube-apiserver", self._api_server_flags())
        self._wait_for(server, "/readyz")
        self._start("kube-controller-manager", self._controller_manager_flags())
        self._wait_for(server, "/api/v1/namespaces/default/serviceaccounts/default")
        return server

    def stop(self) -> None:
        """Kill everything: a graceful stop takes 8 s and there is nothing to keep."""
        for server in reversed(self.servers.values()):
            server.kill()
        self.servers.clear()

    def _start(self, name: str, flags: list[str]) -> None:
        env = {"HOME": str(self._folder), "PATH": os.defpath}
        self.servers[name] = Server(name, [self._binary, name, *flags], folder=self._folder, env=env)

    def _wait_for(self, server: ApiServer, path: str) -> None:
        context = server.ssl_context()

        def ready() -> bool:
            for each in self.servers.values():
                each.check_alive()
            return _answers(self._api, path, token=server.token, context=context)

        wait_until(ready, seconds=_SECONDS_TO_READY, what=f"The API server (GET {path}; logs in {self._folder})")

    def _kubeconfig(self, name: str, *, url: str, token: str, authority: Authority) -> Path:
        trusted = base64.b64encode(authority.certificate.encode()).decode()
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "tests",
            "clusters": [{"name": "tests", "cluster": {"server": url, "certificate-authority-data": trusted}}],
            "users": [{"name": "tests", "user": {"token": token}}],
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "tests", "namespace": "default"}}],
        }
        path = self._folder / name
        _write_private(path, yaml.safe_dump(config))
        return path

    def _etcd_flags(self) -> list[str]:
        client, peer = f"http://127.0.0.1:{self._etcd}", f"http://127.0.0.1:{self._etcd_peer}"
        return [
            "--name=tests",
            "--data-dir=etcd",
            "--log-level=warn",
            "--unsafe-no-fsync",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=tests={peer}",
        ]

    def _api_server_flags(self) -> list[str]:
        return [
            f"--etcd-servers=http://127.0.0.1:{self._etcd}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._api}",
            "--advertise-address=127.0.0.1",
            # A loopback address may not be an endpoint of the Service `kubernetes`.
            "--endpoint-reconciler-type=none",
            "--tls-cert-file=apiserver.crt",
            "--tls-private-key-file=apiserver.key",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-account-key-file=service-accounts.pub",
            "--service-account-signing-key-file=service-accounts.key",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--token-auth-file=tokens.csv",
            "--anonymous-auth=false",
            "--authorization-mode=RBAC",
            "--allow-privileged=true",
        ]

    def _controller_manager_flags(self) -> list[str]:
        credentials = "manager.kubeconfig"
        return [
            f"--kubeconfig={credentials}",
            f"--authentication-kubeconfig={credentials}",
            f"--authorization-kubeconfig={credentials}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._manager}",
            "--leader-elect=false",
            "--use-service-account-credentials=true",
            # With the default client limits the first service account takes 6 s longer.
            "--kube-api-qps=1000",
            "--kube-api-burst=1000",
            "--service-account-private-key-file=service-accounts.key",
            "--root-ca-file=ca.crt",
        ]


def _answers(port: int, path: str, *, token: str, context: ssl.SSLContext) -> bool:
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=5, context=context)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _write_private(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text)


def main() -> int:
    try:
        binary = build()
    except BuildFailed as error:
        print(error, file=sys.stderr)
        return 3
    with tempfile.TemporaryDirectory(prefix="decurion-cluster-") as folder:
        plane = ControlPlane(binary=binary, folder=Path(folder))
        try:
            server = plane.start()
            print(f"export KUBECONFIG={server.kubeconfig}", flush=True)
            threading.Event().wait()
        except KeyboardInterrupt:
            return 0
        finally:
            plane.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())

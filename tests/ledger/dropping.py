"""A gateway before an S3 server that drops headers: what a proxy or an incomplete S3 server does to conditions."""

import http.client
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from cluster.s3 import S3Server

_OF_ONE_CONNECTION = {"authorization", "host", "connection", "expect", "transfer-encoding", "x-amz-date"}


class DroppingGateway:
    """Passes requests on to `server` without the headers `drop`, signed anew, as gateways do; signatures cover headers,
    so that who only cuts them out is found out by the store itself.
    """

    def __init__(self, server: S3Server, drop: Iterable[str] = ("if-none-match",)) -> None:
        left_out = _OF_ONE_CONNECTION | {name.lower() for name in drop}
        target = urlsplit(server.endpoint_url)
        signer = S3SigV4Auth(Credentials(server.access_key, server.secret_key), "s3", server.region)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                kept = {name: value for name, value in self.headers.items() if name.lower() not in left_out}
                request = AWSRequest(self.command, server.endpoint_url + self.path, headers=kept, data=body)
                signer.add_auth(request)
                onward = http.client.HTTPConnection(target.hostname or "", target.port, timeout=30)
                try:
                    onward.request(self.command, self.path, body=body, headers=dict(request.headers.items()))
                    answer = onward.getresponse()
                    data = answer.read()
                finally:
                    onward.close()
                self.send_response_only(answer.status, answer.reason)
                for name, value in answer.getheaders():
                    if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                        self.send_header(name, value)
                length = answer.getheader("content-length") if self.command == "HEAD" else str(len(data))
                self.send_header("Content-Length", length or "0")
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

            do_GET = do_PUT = do_HEAD = do_DELETE = handle_one

            def log_message(self, format: str, *args: object) -> None:
                """Tests read what failed from the client."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint_url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

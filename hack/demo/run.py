"""The demo: facts out of real filings, by the graph of examples/filings and a small real model on this machine.

    make demo
    make demo ARGS="--documents 3"
    make demo ARGS="--endpoint http://127.0.0.1:11434/v1 --model llama3.2"

Exit codes are those of `decurion run`: 0 succeeded, 1 the run failed, 2 the input is wrong, 3 something around is.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from typing import Any

import orjson
import yaml
from inputs import EXAMPLE, ROOT, documents, graph_input
from model import NAME, PROCESSES, ModelFailed, small_model
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

WORK = ROOT / ".decurion" / "demo"
NODE = "/extract[00000]/facts[00000]/choose"
"""A node worth looking at: the first choice of the model."""
ENVIRONMENT = 3
"""Exit code: not the run, but something around it is wrong."""

say = Console(highlight=False, soft_wrap=True).print


async def demo(*, count: int, endpoint: str, model: str) -> int:
    """Runs the example and prints what came of it. Returns the exit code. Raises `ModelFailed`."""
    WORK.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    async with AsyncExitStack() as stack:
        spec: dict[str, Any] = {"endpoint": endpoint, "model": model}
        if not endpoint:
            spec = {"endpoint": await stack.enter_async_context(small_model(WORK)), "model": NAME}
            spec["limits"] = {"concurrency": 2 * PROCESSES}
            say(f"{NAME} answers at {spec['endpoint']} after {time.monotonic() - begin:.1f} s.")
        ready = time.monotonic()
        run = f"demo-{datetime.now():%Y%m%d-%H%M%S}"
        code, output = await _run(run, write_inputs(count=count, spec=spec))
        took = time.monotonic() - ready
    if code != 0 or output is None:
        return code
    show_facts(output["rows"])
    show_sentences(output["sentences"])
    show_accuracy(output["accuracy"], spec["model"])
    say(f"\nThe run took {took:.0f} s, set-up of the model {ready - begin:.0f} s apart.")
    say("Its ledger is in .decurion/ledger. One node of it, the first choice of the model:")
    say(f"  .venv/bin/decurion ledger show {run} '{NODE}'")
    return 0


def write_inputs(*, count: int, spec: Mapping[str, Any]) -> Sequence[str]:
    """The files of the run, and the arguments that name them. `spec` goes over that of the example's LLM."""
    lines = WORK / "documents.jsonl"
    lines.write_bytes(documents(count))
    (WORK / "input.json").write_bytes(graph_input(str(lines)))
    llm = yaml.safe_load((EXAMPLE / "llm.yaml").read_text())
    llm["spec"] |= spec
    (WORK / "llm.yaml").write_text(yaml.safe_dump(llm, sort_keys=False))
    return [str(EXAMPLE / "graph.yaml"), str(WORK / "llm.yaml"), "--input", f"@{WORK / 'input.json'}"]


async def _run(run: str, arguments: Sequence[str]) -> tuple[int, dict[str, Any] | None]:
    """Exit code and output of `decurion run`, whose progress goes to the terminal."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "decurion_cli",
        "run",
        *arguments,
        "--run-id",
        run,
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    return process.returncode or 0, orjson.loads(output) if output else None


def show_facts(rows: Sequence[Mapping[str, Any]]) -> None:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in ("fact", "value", "unit", "period", "checked", "right"):
        table.add_column(name, justify="right" if name == "value" else "left", no_wrap=True, max_width=20)
    last = ""
    for row in rows:
        if row["id"] != last:
            table.add_row(f"[bold]{escape(row['company'])}[/bold]")
        table.add_row(
            f"  {row['field']}",
            amount(row["value"], row["unit"]),
            row["unit"],
            row["period"],
            "yes" if row["checked"] else "-",
            "yes" if row["correct"] else "[bold]NO[/bold]",
        )
        last = row["id"]
    say(table)


def amount(value: float, unit: str) -> str:
    return f"{value:,.2f}" if unit == "USD per share" else f"{value:,.0f}"


def show_sentences(sentences: Sequence[Mapping[str, Any]]) -> None:
    say("\nSentences (! marks one whose numbers are not those of the facts)")
    for sentence in sentences:
        say(f"{' ' if sentence['checked'] else '!'} {sentence['text']}", markup=False)


def show_accuracy(accuracy: Mapping[str, int], model: str) -> None:
    def part(name: str) -> str:
        return f"{accuracy[name]:3} of {accuracy['of']}  {accuracy[name] / accuracy['of']:4.0%}"

    say("\nFacts that are right: value, unit and period as the company itself tagged them")
    say(f"  {part('model')}  as {model} chose at first")
    say(f"  {part('graph')}  as the graph has them, after checks and one repair")
    say(f"  {part('rules')}  as the rules alone have them, without a model")
    if accuracy["wrongPeriod"]:
        say(f"  {accuracy['wrongPeriod']} of the wrong ones are right for another period")


def main() -> int:
    parser = argparse.ArgumentParser(description="Facts out of real filings, by a graph and a small real model.")
    parser.add_argument(
        "--documents", type=int, choices=range(1, 25), default=12, metavar="N", help="filings, 1 to 24 (default 12)"
    )
    parser.add_argument("--endpoint", default="", help="another model: its OpenAI-compatible base URL")
    parser.add_argument("--model", default="", help="its name there")
    options = parser.parse_args()
    if bool(options.endpoint) != bool(options.model):
        parser.error("--endpoint and --model belong together: give both, or neither")
    try:
        return asyncio.run(demo(count=options.documents, endpoint=options.endpoint, model=options.model))
    except ModelFailed as error:
        print(f"demo: {error}", file=sys.stderr)
        return ENVIRONMENT
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())

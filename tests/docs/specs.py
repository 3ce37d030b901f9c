"""Blocks that are the `spec` of a graph, as files that can be compiled and run."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from pages import Block

AROUND = Path(__file__).with_name("around.yaml")
_HEAD = "apiVersion: decurion.dev/v1alpha1\nkind: TaskGraph\nmetadata: {name: graph-of-the-page}\nspec:\n"


def manifest(spec: str) -> str:
    """The resource whose `spec` this is."""
    return _HEAD + textwrap.indent(spec, "  ")


def graph_of(block: Block) -> str:
    """The TaskGraph of a block, which is whole or a spec."""
    return manifest(block.text) if "spec" in block.flags else block.text


def decurion(*arguments: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "decurion_cli", *map(str, arguments)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def output_of(block: Block, given: dict[str, Any], *, folder: Path, approve: str) -> Any:
    """What the graph of a block gives for an input, in a folder where the files that it reads are."""
    (folder / "graph.yaml").write_text(graph_of(block))
    [name] = [line.split()[-1].strip("}") for line in graph_of(block).splitlines() if line.startswith("metadata:")]
    options = [f"--graph={name}", f"--input={json.dumps(given)}", f"--approve={approve}", "--quiet"]
    done = decurion("run", "graph.yaml", AROUND, *options, folder=folder)
    assert done.returncode == 0, f"{block.where}: {done.stderr}"
    return json.loads(done.stdout)

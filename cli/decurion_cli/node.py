"""`decurion node`: one node alone."""

from __future__ import annotations

import asyncio
import difflib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import orjson
import typer

from decurion_cli.exits import RUN_FAILED, exits
from decurion_cli.rewriting import diff_of, rewrite
from decurion_cli.value_files import read_values
from decurion_crds.errors import InputError
from decurion_crds.findings import CompileFailed

if TYPE_CHECKING:
    from decurion_worker.rehearsal import Outcome

app = typer.Typer(no_args_is_help=True, help="Try and change single nodes.")

COMPARED = ("status", "output", "writes")
"""What `--expect` may hold."""


@app.callback()
def node_commands() -> None:
    """Try and change single nodes."""


@app.command("test")
def try_alone(
    file: Annotated[Path, typer.Argument(help="File or folder with the graph and its models.", metavar="FILE")],
    node: Annotated[
        str,
        typer.Argument(help="The node: its name, or TEMPLATE.NAME for one inside a template.", metavar="NODE"),
    ],
    snapshot: Annotated[
        Path | None,
        typer.Option(
            "--snapshot",
            metavar="FILE",
            help="YAML or JSON: values of the node's with by name, and of the scope as input, nodes, state, run.",
        ),
    ] = None,
    expect: Annotated[
        Path | None,
        typer.Option("--expect", metavar="FILE", help="YAML or JSON with output, writes or status to compare with."),
    ] = None,
    graph: Annotated[str, typer.Option("--graph", help="The TaskGraph, where the file holds several.")] = "",
    bind: Annotated[
        list[str] | None,
        typer.Option("--bind", help="Another LLM in a model's place, such as fast=claude. Repeatable.", metavar="A=B"),
    ] = None,
    output: Annotated[Literal["text", "json"], typer.Option("--output", "-o", help="Form of the answer.")] = "text",
) -> None:
    """Run one node with a given snapshot, without the graph around it, a ledger or a cluster.

    Exit codes: 0 as expected (without --expect: it did not fail), 1 failed or other than expected, 2 wrong input.
    """
    with exits():
        logging.getLogger("decurion_worker").setLevel(logging.ERROR)
        swaps = dict(_pair(pair) for pair in bind or [])
        outcome = _tried(file, node, snapshot, graph=graph, bind=swaps)
        wanted = _wanted(expect)
    difference = compare(outcome, wanted)
    if output == "json":
        shown = outcome.to_json() | ({"asExpected": not difference} if wanted else {})
        typer.echo(orjson.dumps(shown, option=orjson.OPT_INDENT_2).decode())
    else:
        typer.echo(describe(outcome))
    if difference:
        typer.echo(difference, err=True)
    if difference or (not wanted and outcome.status == "failed"):
        raise typer.Exit(RUN_FAILED)


@app.command("set-kind")
def set_kind(
    file: Annotated[Path, typer.Argument(help="File or folder with the graph.", metavar="FILE")],
    node: Annotated[str, typer.Argument(help="The node: its name, or TEMPLATE.NAME.", metavar="NODE")],
    kind: Annotated[str, typer.Argument(help="transform, code, tool, llm, agent, graph or map.", metavar="KIND")],
    ref: Annotated[str, typer.Option("--ref", help="The LLM, MCPServer, Agent or TaskGraph that it names.")] = "",
    tool: Annotated[str, typer.Option("--tool", help="The tool, for kind tool.")] = "",
    template: Annotated[str, typer.Option("--template", help="The template, for kinds graph and map.")] = "",
    items: Annotated[str, typer.Option("--items", help="Expression for the list, for kind map.")] = "",
    graph: Annotated[str, typer.Option("--graph", help="The TaskGraph, where the file holds several.")] = "",
    dry_run: Annotated[bool, typer.Option("--diff", help="Show the change as a diff; write nothing.")] = False,
) -> None:
    """Give a node another kind: its block is replaced in the file, its contract stays as it is.

    What carries over from the old block is kept, what does not is said. What the new one needs besides is taken from
    the files where they leave one choice. Nothing is written where more than the block would change, or where the graph
    would not compile.

    Example: decurion node set-kind graph.yaml classify llm --ref fast --diff
    """
    with exits():
        from decurion_cli.set_kind import KINDS
        from decurion_cli.set_kind import set_kind as changed_by
        from decurion_crds.convert import Choices

        if kind not in KINDS:
            raise InputError(f"{kind} is no kind that a node can move to; write {', '.join(KINDS)}")
        choices = Choices(ref=ref, tool=tool, template=template, items=items)
        changed = changed_by(file, node, kind, choices, graph=graph)
        if not dry_run:
            rewrite({changed.file: changed.after})
    typer.echo(diff_of(str(changed.file), changed.before, changed.after, around=1), nl=False)
    for note in changed.notes:
        typer.echo(f"note: {note}", err=True)


def _tried(file: Path, node: str, snapshot: Path | None, *, graph: str, bind: Mapping[str, str]) -> Outcome:
    """What comes of the node; what is wrong with the file of the snapshot is told at its place there."""
    from decurion_worker.snapshot import SnapshotRefused

    given = read_values(snapshot) if snapshot is not None else None
    try:
        return try_node(file, node, given.value if given is not None else {}, graph=graph, bind=bind)
    except SnapshotRefused as refused:
        if given is None:
            raise
        raise CompileFailed([given.placed(finding) for finding in refused.findings]) from refused


def try_node(
    file: Path,
    node: str,
    snapshot: Mapping[str, Any],
    *,
    graph: str = "",
    bind: Mapping[str, str] | None = None,
) -> Outcome:
    """What comes of one node of a file with `snapshot`. Raises `CompileFailed`, `NoSuchNode`, `SnapshotRefused` or
    another `InputError`, `SecretNotFound`.
    """
    from decurion_cli.manifests import compilation, secrets_for
    from decurion_worker.rehearsal import rehearse

    manifests, found = compilation([file], graph, bind=bind, use_run=False, as_used=True)
    base = file if file.is_dir() else file.parent
    return asyncio.run(
        rehearse(
            found.result(),
            node,
            snapshot,
            seen=found.seen,
            secrets=lambda whole: secrets_for(whole, manifests.secrets),
            base=str(base.resolve()),
        )
    )


def _wanted(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    wanted = read_values(file).value
    if not wanted or not wanted.keys() <= set(COMPARED):
        raise InputError(f"{file}: what is expected stands under output, writes or status; write output: …")
    return wanted


def compare(outcome: Outcome, wanted: Mapping[str, Any]) -> str:
    """How an outcome differs from what is wanted of it, as lines of a diff; empty when it does not."""
    found = {name: getattr(outcome, name) for name in wanted}
    one, other = (_lines({name: _one_spelling(value) for name, value in side.items()}) for side in (wanted, found))
    if one == other:
        return ""
    return "\n".join(difflib.unified_diff(one, other, "expected", f"{outcome.node}", lineterm="", n=2))


def _one_spelling(value: Any) -> Any:
    """A value whose whole numbers are integers, since 8 is 8.0, and whose members are there: null is absent."""
    if isinstance(value, dict):
        return {name: _one_spelling(member) for name, member in value.items() if member is not None}
    if isinstance(value, list):
        return [_one_spelling(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _lines(value: Any) -> list[str]:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS).decode().splitlines()


def describe(outcome: Outcome) -> str:
    """An outcome as text."""
    lines = [f"{outcome.node} ({outcome.kind}): {outcome.status}"]
    for part in outcome.left_out:
        lines.append(f"  {part}: left out, since the snapshot has not all that it reads")
    if outcome.failure is not None:
        lines.append(f"  {outcome.failure.get('code', outcome.failure.get('reason', 'failed'))}: ")
        lines[-1] += str(outcome.failure.get("message", ""))
    for number, attempt in enumerate(outcome.attempts, 1):
        lines.append(f"  failed try {number} at {attempt['path']}: {attempt.get('message', attempt.get('code', ''))}")
    lines += _shown("output", outcome.output)
    for channel, value in outcome.writes.items():
        lines += _shown(f"writes {channel}", value)
    if outcome.usage:
        lines.append("  usage: " + ", ".join(f"{name} {value}" for name, value in outcome.usage.items()))
    return "\n".join(lines)


def _shown(name: str, value: Any) -> list[str]:
    first, *rest = _lines(value)
    return [f"  {name}: {first}", *(f"  {line}" for line in rest)]


def _pair(text: str) -> tuple[str, str]:
    swapped, equals, other = text.partition("=")
    if not equals or not swapped or not other:
        raise InputError(f"--bind {text}: write NAME=OTHER, such as fast=claude")
    return swapped, other

"""`decurion run`: a graph from start to end in this process, on a ledger of one's choice."""

from __future__ import annotations

import asyncio
import logging
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import unquote, urlsplit

import orjson
import typer

from decurion_cli.exits import RUN_FAILED, WAITING, exits, fail
from decurion_cli.places import LEDGER
from decurion_cli.revealing import SHOWN, SealKeyOption
from decurion_cli.revealing import seal_key as seal_key_of
from decurion_crds.errors import DecurionError, InputError
from decurion_crds.findings import printable

if TYPE_CHECKING:
    from decurion_cli.manifests import Manifests
    from decurion_crds.v1alpha1 import Place
    from decurion_worker.earlier import Earlier
    from decurion_worker.errors import BadInput
    from decurion_worker.opening import OpenRequest
    from decurion_worker.runkeys import GiveSealKey


_MAX_PLACED_BYTES = 1024 * 1024
"""Reading places in larger inputs takes seconds; of these the file alone is told."""


class RunOwned(DecurionError):
    """Whoever opened the run last goes before somebody with a keyboard: an operator, or another `--take-over`."""

    def __init__(self, run: str, resume: str) -> None:
        super().__init__(
            f"run {run} belongs to an operator, or to someone who took it over; leave it there, or take it from there "
            f"with: {resume} --take-over"
        )


def run(
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Files or folders of manifests; not needed with --resume.", metavar="FILE..."),
    ] = None,
    graph: Annotated[str, typer.Option("--graph", help="The TaskGraph to run, where the files hold several.")] = "",
    input: Annotated[
        str,
        typer.Option("--input", help="The input: a JSON object, or @FILE with one. Goes before a TaskGraphRun's."),
    ] = "",
    ledger: Annotated[
        str,
        typer.Option("--ledger", envvar="DECURION_LEDGER", help="Where records go: a folder, or s3://bucket/prefix."),
    ] = LEDGER,
    bind: Annotated[
        list[str] | None, typer.Option("--bind", help="Use another LLM or MCPServer: NAME=OTHER. May be repeated.")
    ] = None,
    resume: Annotated[str, typer.Option("--resume", help="Go on with this run (its id) where its ledger ends.")] = "",
    take_over: Annotated[
        bool, typer.Option("--take-over", help="With --resume: take a run from the driver that has it.")
    ] = False,
    cancel: Annotated[
        Literal["", "Cancel", "CancelAndFinally", "Stop"],
        typer.Option(
            "--cancel",
            metavar="FORM",
            help="With --resume: end the run. Cancel takes away what runs, CancelAndFinally then runs its finally, "
            "Stop breaks that off too.",
        ),
    ] = "",
    retry_from: Annotated[
        str, typer.Option("--retry-from", help="Run again what failed of this run (its id), and keep what went well.")
    ] = "",
    fork_from: Annotated[
        tuple[str, str],
        typer.Option(
            "--fork-from",
            metavar="RUN PATH",
            help="Run again this path of a run, such as /extract[00003], and all that depends on it; keep the rest.",
        ),
    ] = ("", ""),
    retention: Annotated[
        str,
        typer.Option(
            "--retention",
            metavar="AGE",
            help="How long the run's ledger is kept after its end, such as 90d, whatever `decurion ledger gc` is told "
            "of others.",
        ),
    ] = "",
    run_id: Annotated[str, typer.Option("--run-id", help="Id of the new run; a fresh one by default.")] = "",
    branches: Annotated[int, typer.Option("--branches", min=1, max=4096, help="Branches that run side by side.")] = 256,
    store_patience: Annotated[
        float,
        typer.Option(
            "--store-patience",
            min=0.0,
            help="Seconds that a store without an answer is waited for. What somebody must mend, such as a full disk "
            "or a missing bucket, stops the run within 2 s.",
        ),
    ] = 300.0,
    approve: Annotated[
        list[str] | None,
        typer.Option(
            "--approve",
            help="Answer what the run asks people: NODE=yes or NODE=no. NODE is a path, a node's name, or *. May be "
            "repeated; what it does not name is asked at the terminal.",
        ),
    ] = None,
    sign: Annotated[
        Path | None,
        typer.Option("--sign", help="Sign the run's log: FILE is the private key that appoints this process, as PEM."),
    ] = None,
    seal_key: SealKeyOption = None,
    reveal: Annotated[bool, typer.Option("--reveal", help="Print the output also where it is sensitive.")] = False,
    output: Annotated[Literal["json", "none"], typer.Option("--output", "-o", help="What goes to stdout.")] = "json",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")] = False,
) -> None:
    """Run a graph here. The output goes to stdout, progress to stderr.

    Exit codes: 0 succeeded, 1 the run failed, 2 the input is wrong, 3 something around is (with the line that resumes),
    4 it waits for people, and nobody is at a terminal here.
    """
    from decurion_cli.asking import Desk, answers_of, check_answers
    from decurion_cli.paths import written
    from decurion_cli.progress import RunDisplay
    from decurion_worker.errors import RunWaits

    # What ends a run is this command's last sentence; the driver's log would say it a second time.
    logging.getLogger("decurion_worker").setLevel(logging.ERROR)
    with exits():
        if cancel and not resume:
            raise InputError("--cancel ends a run that is there: name it with --resume")
        given = answers_of(approve or [])
        earlier = _earlier(retry_from, (fork_from[0], written(fork_from[1])), resume)
        request, manifests = _request(files or [], graph, input, bind or [], resume, take_over, run_id, earlier)
        check_answers(given, request.graph)
        request = _kept(request, retention, resume, manifests if not input else None)
        request = _signed(request, sign)
    line = f"decurion run --resume {request.run} --ledger {shlex.quote(ledger)}"
    line += f" --seal-key {shlex.quote(str(seal_key))}" if seal_key is not None else ""
    line += f" --sign {shlex.quote(str(sign))}" if sign is not None else ""
    display = RunDisplay(request.run, enabled=not quiet)
    desk = Desk(given, pause=display.paused)
    try:
        with exits(resume=lambda: line if display.begun else ""), display:
            keys = seal_key_of(ledger, seal_key)
            end = asyncio.run(
                _run(request, ledger, manifests, branches, store_patience, display, line, cancel, desk, keys)
            )
    except RunWaits as waits:
        decide = f"decurion approve {request.run} {shlex.quote(waits.path)} --ledger {shlex.quote(ledger)}"
        for name in sorted(desk.unused):
            typer.echo(f"decurion: --approve {printable(name)}: nothing that it asks now has this name", err=True)
        fail(f"{waits}\ndecide with: {decide}\nthen go on with: {line}", WAITING)
    display.ended(end.projection, ledger)
    if output == "json" and end.output is not None:
        shown = SHOWN if end.sensitive and not reveal else end.output
        typer.echo(orjson.dumps(shown, option=orjson.OPT_INDENT_2).decode())
    if end.projection["phase"] != "Succeeded":
        raise typer.Exit(RUN_FAILED)


def _signed(request: OpenRequest, sign: Path | None) -> OpenRequest:
    from decurion_cli.trust import private_key

    return request if sign is None else replace(request, appointed=private_key(sign))


async def _run(
    request: OpenRequest,
    ledger: str,
    manifests: Manifests,
    branches: int,
    patience: float,
    display: Any,
    resume: str,
    cancel: Literal["", "Cancel", "CancelAndFinally", "Stop"],
    desk: Any,
    seal_key: GiveSealKey,
) -> Any:
    from decurion_cli.manifests import secrets_for
    from decurion_ledger import Settings as LogSettings
    from decurion_ledger.errors import StaleLeader
    from decurion_ledger.patience import Patience
    from decurion_worker.driver import DriverSettings
    from decurion_worker.embedded import run_embedded

    log = LogSettings(patience=Patience(total=patience), opening=Patience(total=min(patience, 15.0)), interval=0.02)
    settings = DriverSettings(log=log)
    try:
        return await run_embedded(
            request,
            ledger=ledger,
            secrets=lambda graph: secrets_for(graph, manifests.secrets),
            progress=display.update,
            branches=branches,
            settings=settings,
            cancel=cancel or None,
            people=desk,
            seal_key=seal_key,
        )
    except StaleLeader as error:
        raise RunOwned(request.run, resume) from error


def _request(
    files: list[Path],
    graph: str,
    given: str,
    bind: list[str],
    resume: str,
    take_over: bool,
    run_id: str,
    earlier: Earlier | None,
) -> tuple[OpenRequest, Manifests]:
    import uuid_utils

    from decurion_cli.manifests import compiled, read, show_warnings
    from decurion_cli.run_checks import strangers
    from decurion_worker.errors import BadInput
    from decurion_worker.opening import OpenRequest, check_input

    if resume:
        if given or graph or bind:
            raise InputError(
                "--resume takes graph, input and bindings from the ledger: leave out --input, --graph and --bind"
            )
        return OpenRequest(run=resume, name=resume, take_over=take_over), read(files)
    if earlier is not None and not files:
        return _request_again(earlier, given, graph, bind, run_id), read([])
    if not files:
        raise InputError("nothing to run: name files or folders of manifests, or a run with --resume")
    manifests, found = compiled(files, graph, bind=dict(_pair(b) for b in bind), use_run=not given)
    if earlier is None and not given:
        earlier = _earlier_of(manifests, found.name)
    value, uri, base = _input(given, manifests, found.name)
    if value is None and not uri and not given:
        show_warnings(strangers(manifests))
    if not uri and not (earlier is not None and value is None):
        try:
            value = check_input(found, value if value is not None else {})
        except BadInput as error:
            raise _placed(error, given, manifests, found.name) from error
    request = OpenRequest(
        run=run_id or str(uuid_utils.uuid7()),
        name=found.name,
        graph=found,
        input=value,
        input_uri=uri,
        must_be_new=True,
        base=str(base),
        earlier=earlier,
    )
    return request, manifests


def _kept(request: OpenRequest, retention: str, resume: str, manifests: Manifests | None) -> OpenRequest:
    """The request with how long its ledger is kept: as the option says, else as its TaskGraphRun does."""
    from decurion_cli.durations import seconds

    if retention and resume:
        raise InputError("--retention is decided when a run begins: leave it out with --resume")
    if retention:
        return replace(request, retention=seconds(retention, "--retention"))
    found = manifests.run_of(request.name) if manifests is not None and request.graph is not None else None
    return replace(request, retention=found[1].spec.retention_seconds) if found is not None else request


def _earlier(retry_from: str, fork_from: tuple[str, str], resume: str) -> Earlier | None:
    from decurion_worker.earlier import Earlier

    if sum(map(bool, (retry_from, fork_from[0], resume))) > 1:
        raise InputError("--resume, --retry-from and --fork-from exclude one another: give one of them")
    if retry_from:
        return Earlier(retry_from, "retry")
    return Earlier(fork_from[0], "fork", fork_from[1]) if fork_from[0] else None


def _earlier_of(manifests: Manifests, graph: str) -> Earlier | None:
    """The earlier run that a TaskGraphRun among the files names."""
    from decurion_worker.earlier import Earlier

    found = manifests.run_of(graph)
    spec = found[1].spec if found is not None else None
    named = (spec.retry_from or spec.fork_from) if spec is not None else None
    if spec is None or named is None:
        return None
    if named.uid is None:
        raise InputError(
            f"there is no cluster here that knows the run {named.run}: name it by uid, its id in the ledger"
        )
    return Earlier(named.uid, "fork", spec.fork_from.path) if spec.fork_from else Earlier(named.uid, "retry")


def _request_again(earlier: Earlier, given: str, graph: str, bind: list[str], run_id: str) -> OpenRequest:
    """A run of the graph that the ledger has, on the input that it has, unless another is given."""
    import uuid_utils

    from decurion_worker.opening import OpenRequest

    if graph or bind:
        raise InputError("the graph is taken from the ledger: name files to run, or leave out --graph and --bind")
    value = _json_of(given)[0] if given else None
    run = run_id or str(uuid_utils.uuid7())
    return OpenRequest(run=run, name="", input=value, must_be_new=True, earlier=earlier)


def _pair(text: str) -> tuple[str, str]:
    name, equals, other = text.partition("=")
    if not (name and equals and other):
        raise InputError(f"--bind {text}: write NAME=OTHER")
    return name, other


def _input(given: str, manifests: Manifests, graph: str) -> tuple[Any, str, Path]:
    """The run's input or its address, and the folder that relative paths in it start from: that of its own file."""
    if given:
        value, folder = _json_of(given)
        return value, "", folder
    found = manifests.run_of(graph)
    if found is None:
        return None, "", Path.cwd()
    document, spec = found[0], found[1].spec
    folder = Path(document.file).parent.absolute()
    if spec.input_from is None:
        return spec.input, "", folder
    uri = spec.input_from.uri
    return None, uri, Path(unquote(urlsplit(uri).path)).parent if uri.startswith("file:") else folder


def _placed(error: BadInput, given: str, manifests: Manifests, graph: str) -> DecurionError:
    """The error with the place of each fault, where the input was written in a file."""
    from decurion_cli.run_checks import input_findings
    from decurion_crds.findings import CompileFailed
    from decurion_crds.loader import load_text

    if not given:
        found = manifests.run_of(graph)
        if found is None:
            return InputError(f"{error}; give the input by --input, or by a TaskGraphRun of {graph} among the files")
        document, above = found[0], ("spec", "input")
        return CompileFailed(list(input_findings(error, lambda steps: document.locate((*above, *steps)))))
    if not given.startswith("@"):
        return error
    small = Path(given[1:]).stat().st_size <= _MAX_PLACED_BYTES
    text = Path(given[1:]).read_text(encoding="utf-8") if small else ""
    documents = load_text(text, given[1:]).documents

    def locate(steps: Place) -> tuple[str, int, int]:
        # What YAML does not read as JSON does has its file alone.
        return (given[1:], *(documents[0].position(steps) if documents else (1, 1)))

    return CompileFailed(list(input_findings(error, locate)))


def _json_of(given: str) -> tuple[Any, Path]:
    """The value of `--input`, and the folder that it comes from."""
    named = given.startswith("@") and _is_file(given[1:])
    text = Path(given[1:]).read_bytes() if named else given.encode()
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InputError(f"--input is no JSON ({error}): give one JSON object, or @FILE with one") from error
    return value, Path(given[1:]).parent.absolute() if named else Path.cwd()


def _is_file(name: str) -> bool:
    if not Path(name).is_file():
        raise InputError(f"--input @{name}: there is no such file")
    return True

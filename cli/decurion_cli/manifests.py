"""From files on the command line to one compiled graph: what `validate`, `run` and `graph show` have in common."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import typer

from decurion_crds.compile import Checker, Compilation, Module, compile_graph
from decurion_crds.compiled import CompiledGraph
from decurion_crds.errors import DecurionError, InputError
from decurion_crds.findings import CompileFailed, Finding
from decurion_crds.loader import Document, Loaded, load
from decurion_crds.v1alpha1 import LLM, Agent, MCPServer, Place, TaskGraph, TaskGraphRun
from decurion_worker.context import secret_refs

T = TypeVar("T")


class NoSuchGraph(InputError):
    def __init__(self, wanted: str, known: Sequence[str]) -> None:
        if not known:
            super().__init__("the files hold no TaskGraph: name a file or folder that has one")
        elif wanted:
            super().__init__(f"--graph {wanted}: there is no TaskGraph of this name, the files hold {', '.join(known)}")
        else:
            super().__init__(f"the files hold several TaskGraphs ({', '.join(known)}): choose one with --graph NAME")


class SecretNotFound(DecurionError):
    def __init__(self, name: str, key: str) -> None:
        super().__init__(
            f"secret {name}, key {key}, is not to be found: set {secret_variable(name, key)} "
            "or add a Secret manifest to the files"
        )


@dataclass(frozen=True, slots=True)
class Manifests:
    """The documents of a call, parsed. `findings` are those of reading and parsing.

    A graph goes by its name, or by `namespace/name` where the name is taken by one of another namespace.
    """

    loaded: Loaded
    graphs: dict[str, tuple[Document, TaskGraph]]
    llms: list[tuple[Document, LLM]]
    servers: list[tuple[Document, MCPServer]]
    agents: list[tuple[Document, Agent]]
    runs: list[tuple[Document, TaskGraphRun]]
    secrets: dict[tuple[str, str], str] = field(repr=False)
    findings: list[Finding]

    def llms_for(self, document: Document) -> dict[str, LLM]:
        """The LLMs that a graph can name: those of its namespace, and those that say none."""
        return {d.name: llm for d, llm in _near(document, self.llms)}

    def servers_for(self, document: Document) -> dict[str, MCPServer]:
        """The MCPServers that a graph can name, by the same rule."""
        return {d.name: server for d, server in _near(document, self.servers)}

    def agents_for(self, document: Document) -> dict[str, Agent]:
        """The Agents that a graph can name, by the same rule."""
        return {d.name: agent for d, agent in _near(document, self.agents)}

    def graphs_for(self, document: Document) -> dict[str, Module]:
        """The graphs that a graph can refer to, by the same rule."""
        return {d.name: Module(graph, d.locate, d.hoisted.open) for d, graph in _near(document, self.graphs.values())}

    def runs_for(self, document: Document) -> list[tuple[Document, TaskGraphRun]]:
        """The runs that can name a graph, by the same rule."""
        return _near(document, self.runs)

    def as_written(self, finding: Finding, document: Document) -> Finding:
        """A finding with its path as in the file; it is of the graph in `document` where it names no other."""
        if finding.graph is not None:
            document = next(d for d, _ in _near(document, self.graphs.values())[::-1] if d.name == finding.graph)
        return document.as_written(finding)

    def unread(self, finding: Finding) -> bool:
        """Whether what the finding misses is among the files and could not be parsed: that is told there."""
        kind, _, name = (finding.absent or "").partition(" ")
        read = {id(document) for document, _ in (*self.graphs.values(), *self.llms, *self.servers, *self.agents)}
        found = [d for d in self.loaded.documents if (d.kind, d.name) == (kind, name) and id(d) not in read]
        return bool(name and found)

    def run_of(self, graph: str) -> tuple[Document, TaskGraphRun] | None:
        """The run of a graph among the files. Raises `InputError` when there are several."""
        runs = [(document, run) for document, run in self.runs if run.spec.graph == graph]
        if len(runs) > 1:
            names = ", ".join(run.metadata.name or "" for _, run in runs)
            raise InputError(f"the files hold several runs of {graph} ({names}): keep one, or give --input")
        return runs[0] if runs else None


def _near(document: Document, all_: Iterable[tuple[Document, T]]) -> list[tuple[Document, T]]:
    """Those of the namespace of `document`, or of none; of two of one name its own comes last."""
    near = {document.namespace, None}
    known = [(d, model) for d, model in all_ if document.namespace is None or d.namespace in near]
    return sorted(known, key=lambda one: one[0].namespace == document.namespace)


def read(files: Sequence[Path]) -> Manifests:
    """Load and parse `files` (files or folders). Faults are findings, all of them at once."""
    return read_loaded(load(files))


def read_loaded(loaded: Loaded) -> Manifests:
    """Parse what is loaded, as `read`."""
    models, findings = loaded.parse()
    graphs: dict[str, tuple[Document, TaskGraph]] = {}
    llms: list[tuple[Document, LLM]] = []
    servers: list[tuple[Document, MCPServer]] = []
    agents: list[tuple[Document, Agent]] = []
    runs: list[tuple[Document, TaskGraphRun]] = []
    secrets: dict[tuple[str, str], str] = {}
    for document in loaded.documents:
        if document.kind == "Secret" and document.api_version == "v1":
            values, faults = _secret(document)
            secrets.update(values)
            findings.extend(faults)
    for document, model in models:
        match model:
            case TaskGraph():
                name = document.name if document.name not in graphs else f"{document.namespace}/{document.name}"
                graphs[name] = (document, model)
            case LLM():
                llms.append((document, model))
            case MCPServer():
                servers.append((document, model))
            case Agent():
                agents.append((document, model))
            case TaskGraphRun():
                runs.append((document, model))
    return Manifests(loaded, graphs, llms, servers, agents, runs, secrets, findings)


def compile_all(
    manifests: Manifests,
    *,
    only: str | None = None,
    bind: Mapping[str, Mapping[str, str]] | None = None,
    stand_ins: Mapping[str, LLM] | None = None,
    as_used: bool = False,
) -> dict[str, Compilation]:
    """Every graph of the files (or the one of that name), compiled with what it names from the files; `bind` puts, by
    kind, one LLM or MCPServer in another's place, and `stand_ins` take the place of LLMs that are not among the files.
    `as_used`: needs without a resource stand for what others among the files bind, where all of these do.
    """
    from decurion_cli.bound import bound_in, used_in

    done: dict[str, Compilation] = {}
    with Checker() as checker:
        for name, (document, graph) in manifests.graphs.items():
            if only is not None and name != only:
                continue
            known = {**(stand_ins or {}), **manifests.llms_for(document)}
            servers = manifests.servers_for(document)
            swaps = bind or {}
            if as_used and graph.spec.needs:
                swaps = {kind: {**one, **swaps.get(kind, {})} for kind, one in bound_in(manifests, document).items()}
            found = compile_graph(
                graph,
                llms=_swapped(known, "LLM", swaps),
                servers=_swapped(servers, "MCPServer", swaps),
                agents=manifests.agents_for(document),
                graphs=manifests.graphs_for(document),
                positions=document.locate,
                open=document.hoisted.open,
                checker=checker,
            )
            findings = [f for f in found.findings if not manifests.unread(f)]
            if as_used and any(_open(f) for f in findings) and used_in(manifests, document):
                findings = [f for f in findings if not _open(f)]
            done[name] = replace(found, findings=[manifests.as_written(f, document) for f in findings])
    return done


def _open(finding: Finding) -> bool:
    """Whether it says that a need of the graph itself stands for nothing."""
    return finding.graph is None and finding.absent is not None and finding.path.startswith("needs")


def _swapped(known: Mapping[str, T], kind: str, bind: Mapping[str, Mapping[str, str]]) -> dict[str, T]:
    found = dict(known)
    for swapped, other in bind.get(kind, {}).items():
        if other not in known:
            raise InputError(f"{swapped}={other}: there is no {kind} named {other} among the files; add its manifest")
        found[swapped] = known[other]
    return found


def _by_kind(
    manifests: Manifests, document: Document, bind: Mapping[str, str], needs: Mapping[str, str]
) -> dict[str, dict[str, str]]:
    """Bindings of the command line by kind: that of the need, else of what is named; LLM where both have the names."""
    llms, servers = manifests.llms_for(document), manifests.servers_for(document)
    found: dict[str, dict[str, str]] = {"LLM": {}, "MCPServer": {}}
    for swapped, other in bind.items():
        if swapped in needs:
            found[needs[swapped]][swapped] = other
            continue
        server = other in servers and (other not in llms or (swapped in servers and swapped not in llms))
        found["MCPServer" if server else "LLM"][swapped] = other
    return found


def compiled(
    files: Sequence[Path],
    graph: str,
    *,
    bind: Mapping[str, str] | None = None,
    use_run: bool = True,
    as_used: bool = False,
) -> tuple[Manifests, CompiledGraph]:
    """The one graph of the files (or the one named `graph`), with the overrides of its run, and `bind` over these.

    Without `use_run` runs among the files are left alone. `as_used`: as `compile_all`, for looking at a graph.

    Raises `CompileFailed`, `NoSuchGraph`.
    """
    manifests, found = compilation(files, graph, bind=bind, use_run=use_run, as_used=as_used)
    return manifests, found.result()


def compilation(
    files: Sequence[Path],
    graph: str,
    *,
    bind: Mapping[str, str] | None = None,
    use_run: bool = True,
    as_used: bool = False,
) -> tuple[Manifests, Compilation]:
    """As `compiled`, with all that the compiler says of the graph."""
    manifests = read(files)
    errors = [f for f in manifests.findings if f.severity == "error"]
    if errors:
        raise CompileFailed(errors)
    known = sorted(manifests.graphs)
    chosen = graph or (known[0] if len(known) == 1 else "")
    if chosen not in manifests.graphs:
        raise NoSuchGraph(graph, known)
    run = manifests.run_of(chosen) if use_run else None
    document, written = manifests.graphs[chosen]
    swaps = _by_kind(manifests, document, bind or {}, written.spec.needs)
    if run is not None and run[1].spec.overrides:
        swaps = {kind: {**given, **swaps[kind]} for kind, given in run[1].spec.overrides.by_kind.items()}
    result = compile_all(manifests, only=chosen, bind=swaps, as_used=as_used)[chosen]
    show_warnings(manifests.findings + result.findings)
    if result.compiled is None:
        raise CompileFailed([f for f in result.findings if f.severity == "error"])
    for kind, used in (("LLM", result.compiled.llms), ("MCPServer", result.compiled.servers)):
        for swapped in swaps[kind]:
            if swapped not in used:
                it = ", ".join(sorted(used)) or "none"
                raise InputError(
                    f"{swapped}: the graph {chosen} uses no {kind} of this name, it uses {it}; correct --bind"
                )
    return manifests, result


def show_warnings(findings: Sequence[Finding]) -> None:
    for finding in findings:
        if finding.severity == "warning":
            typer.echo(f"warning: {finding.text()}", err=True)


def secrets_for(graph: CompiledGraph, known: Mapping[tuple[str, str], str]) -> dict[tuple[str, str], str]:
    """Secrets that the graph needs, from variables, else from `known`. Raises `SecretNotFound`."""
    found = {}
    for name, key in sorted(secret_refs(graph)):
        value = os.environ.get(secret_variable(name, key), known.get((name, key)))
        if value is None:
            raise SecretNotFound(name, key)
        found[(name, key)] = value
    return found


def secret_variable(name: str, key: str) -> str:
    return "DECURION_SECRET_" + "_".join(
        "".join(c if c.isalnum() else "_" for c in part).upper() for part in (name, key)
    )


def _secret(document: Document) -> tuple[dict[tuple[str, str], str], list[Finding]]:
    """Texts of a Secret manifest by (name, key), and findings for what no API server would take. Bytes that are no
    text are left out: a model's token is one.
    """
    values: dict[tuple[str, str], str] = {}
    findings: list[Finding] = []

    def refuse(place: Place, message: str) -> None:
        findings.append(Finding("FIELD-TYPE", ".".join(map(str, place)), message, "error", *document.locate(place)))

    for field_name in ("data", "stringData"):
        entries = document.raw.get(field_name, {})
        if not isinstance(entries, dict):
            refuse((field_name,), "an object is due: key: value, one a line; correct the Secret")
            continue
        for key, text in entries.items():
            place = (field_name, key)
            if not isinstance(text, str):
                refuse(place, "a text is due, and this is none; put it into quotes")
            elif field_name == "stringData":
                values[(document.name, key)] = text
            else:
                plain = _decoded(text, partial(refuse, place))
                values |= {} if plain is None else {(document.name, key): plain}
    return values, findings


def _decoded(text: str, refuse: Callable[[str], None]) -> str | None:
    """The text that `text` is the base64 of; None when it is of bytes, or of nothing at all."""
    try:
        content = base64.b64decode("".join(text.split()), validate=True)
    except ValueError:
        refuse("this is no base64; encode it, or move it to stringData as it is")
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None


__all__ = ["Manifests", "compilation", "compile_all", "compiled", "read", "secrets_for", "show_warnings"]

"""`decurion graph fmt`: manifests in the house style."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from decurion_cli.exits import DIFFERENT, exits
from decurion_cli.rewriting import diff_of, rewrite
from decurion_crds.errors import InputError
from decurion_crds.findings import CompileFailed, Finding

_SEPARATOR = re.compile(r"^---.*$\n?", re.MULTILINE)
Form = Callable[[str], str]
"""A document to a document. Raises `FormRefused`."""


def fmt(
    files: Annotated[list[Path], typer.Argument(help="Files or folders of manifests.", metavar="FILE...")],
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit 1 when a file would be written anew.")
    ] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Show the changes as a diff; write nothing.")] = False,
    nested: Annotated[
        bool, typer.Option("--nested", help="Put each template in place that one node alone runs, as its body.")
    ] = False,
    flat: Annotated[bool, typer.Option("--flat", help="Make a template of each body in place.")] = False,
) -> None:
    """Write manifests in the house style. What they mean, their comments and columns of comments stay.

    Exit codes: 0 done, 1 with --check when a file would be written anew, 2 a file is no YAML; nothing is written then.

    Example: decurion graph fmt --check graphs/
    """
    from decurion_cli.fix import texts_of

    with exits():
        if nested and flat:
            raise InputError("--nested and --flat exclude one another; choose one")
        before = {file: text for file, text in texts_of(files).items() if file.suffix != ".json"}
        _refuse_broken(before)
        inputs = _inputs(before) if flat else {}
        after: dict[Path, str] = {}
        left: list[str] = []
        for file, text in before.items():
            after[file] = _file(file, text, left, nested=nested, flat=flat, inputs=inputs)
        changed = [file for file in before if after[file] != before[file]]
        if not (diff or check):
            rewrite({file: after[file] for file in changed})
    for file in changed:
        if diff:
            typer.echo(diff_of(str(file), before[file], after[file]), nl=False)
        else:
            typer.echo(f"{'would write' if check else 'wrote'} {file}")
    for note in left:
        typer.echo(f"note: {note}", err=True)
    if check and changed:
        raise typer.Exit(DIFFERENT)


def _refuse_broken(texts: Mapping[Path, str]) -> None:
    """Raises `CompileFailed`. Resources of one name, as of several environments, have a form all the same."""
    from decurion_crds.loader import load_texts

    plain = ((file, text.removeprefix("\ufeff").replace("\r\n", "\n")) for file, text in texts.items())
    errors: list[Finding] = [one for one in load_texts(plain).findings if one.severity == "error"]
    broken = [one for one in errors if one.code != "DUPLICATE-NAME"]
    if broken:
        raise CompileFailed(broken)


def _inputs(texts: Mapping[Path, str]) -> dict[tuple[str, str], dict[str, Any]]:
    """By file and graph: template → schema of an input that was not written. Raises `CompileFailed`."""
    from decurion_cli.manifests import read_loaded
    from decurion_cli.stand_ins import compile_alone
    from decurion_crds.loader import load_texts

    plain = ((file, text.removeprefix("\ufeff").replace("\r\n", "\n")) for file, text in texts.items())
    manifests = read_loaded(load_texts(plain))
    wanted = {name: document for name, (document, _) in manifests.graphs.items() if document.hoisted.open}
    broken = {d.file for d in manifests.loaded.documents if d.hoisted.open}
    errors = [f for f in manifests.findings if f.severity == "error" and f.file in broken]
    if errors:
        raise CompileFailed(errors)
    results = compile_alone(manifests).results if wanted else {}
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for name, document in wanted.items():
        compiled = results[name].result()
        found[document.file, document.name] = {
            template: compiled.templates[template].input_schema
            for template in document.hoisted.open
            if template in compiled.templates
        }
    return found


def _file(
    file: Path,
    text: str,
    left: list[str],
    *,
    nested: bool,
    flat: bool,
    inputs: Mapping[tuple[str, str], Mapping[str, Any]],
) -> str:
    """The text of a file in another form; documents of other API groups stay as they are."""
    from decurion_crds.loader import load_text, nesting
    from decurion_crds.loader.form import FormRefused, formatted

    mark = "\ufeff" if text.startswith("\ufeff") else ""
    plain = text.removeprefix(mark)
    ending = "\r\n" if "\r\n" in plain else "\n"
    parts: list[str] = []
    line = 1
    for part, is_document in _parts(plain.replace("\r\n", "\n")):
        new = part
        documents = load_text(part, str(file)).documents if is_document else []
        if documents and documents[0].ours:
            [document] = documents
            graph = document.kind == "TaskGraph" and isinstance(document.raw.get("spec"), dict)
            try:
                if nested and graph:
                    new = nesting.nested(part)
                elif flat and graph:
                    new = nesting.flat(part, inputs.get((str(file), document.name), {}))
                else:
                    new = formatted(part)
            except FormRefused as refused:
                left.append(f"{file}:{line} {document.kind} {document.name}: {refused}")
        parts.append(new)
        line += part.count("\n")
    return mark + "".join(parts).replace("\n", ending)


def _parts(text: str) -> Iterator[tuple[str, bool]]:
    """Documents, and the lines between them."""
    at = 0
    for match in _SEPARATOR.finditer(text):
        yield text[at : match.start()], True
        yield match[0], False
        at = match.end()
    yield text[at:], True

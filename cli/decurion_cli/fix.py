"""`decurion fix`: what findings know how to mend, mended in the files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import orjson
import typer

from decurion_cli.exits import BAD_INPUT, exits
from decurion_cli.rewriting import diff_of, rewrite
from decurion_crds.findings import CompileFailed, Finding

ROUNDS = 20
"""How often files are looked at again: a mended mistake may show the next one."""


HIDING = frozenset({"YAML", "YAML001", "KIND", "NAME", "FIELD-UNKNOWN", "FIELD-TYPE", "FIELD-VALUE", "NOT-SUPPORTED"})
"""Codes of mistakes behind which nothing is looked at: mending one may show others."""


def fix(
    files: Annotated[list[Path], typer.Argument(help="Files or folders of manifests.", metavar="FILE...")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Write nothing; say what would be mended, exit 1 when something would.")
    ] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Show the changes as a diff; write nothing.")] = False,
    output: Annotated[Literal["text", "json"], typer.Option("--output", "-o", help="Form of the answer.")] = "text",
) -> None:
    """Mend what findings know how to mend, in place; nothing else in the files is touched.

    A change that makes it worse is taken back. Exit codes: 0 nothing wrong is left, 2 something is.
    """
    with exits():
        before, after, mended, left = mend(files)
        changed = [file for file in after if after[file] != before[file]]
        if not (dry_run or diff):
            rewrite({file: after[file] for file in changed})
    if output == "json":
        shown = {"mended": [one.to_json() for one in mended], "left": [one.to_json() for one in left]}
        typer.echo(orjson.dumps(shown, option=orjson.OPT_INDENT_2).decode())
    elif diff:
        for file in changed:
            typer.echo(diff_of(str(file), before[file], after[file]), nl=False)
    else:
        _tell(mended, left, dry_run=dry_run)
    if any(finding.severity == "error" for finding in left):
        raise typer.Exit(BAD_INPUT)
    if dry_run and changed:
        raise typer.Exit(1)


def _tell(mended: Sequence[Finding], left: Sequence[Finding], *, dry_run: bool) -> None:
    for one in mended:
        if one.fix is not None:
            word = "would write" if dry_run else "wrote"
            typer.echo(f"{one.file}:{one.line}:{one.column} {word} {one.fix.new} for {one.fix.old}")
    for one in left:
        typer.echo(("" if one.severity == "error" else "warning: ") + one.text(), err=True)
    if not mended:
        typer.echo("nothing to mend")


def mend(
    paths: Sequence[Path],
) -> tuple[dict[Path, str], dict[Path, str], list[Finding], list[Finding]]:
    """The texts of the files before and after, the findings that were mended, and those that are left.

    Writes nothing. Raises `CompileFailed` for files that cannot be read.
    """
    from decurion_cli.checking import every_finding

    before = texts_of(paths)
    texts = dict(before)
    mended: list[Finding] = []
    refused: set[tuple[str | None, str, str, str]] = set()
    findings = every_finding(texts)
    for _ in range(ROUNDS):
        todo = [one for one in findings if one.fix is not None and _name(one) not in refused]
        if not todo:
            break
        changed, done = _mended(texts, todo)
        if not done:
            break
        now = every_finding(changed)
        if _errors(now) > _errors(findings):
            # One by one then: the one that makes it worse is left alone.
            changed, done, now = _one_by_one(texts, todo, findings, refused)
            if not done:
                continue
        texts, findings = changed, now
        mended += done
    return before, texts, mended, findings


def _one_by_one(
    texts: Mapping[Path, str],
    todo: Sequence[Finding],
    findings: list[Finding],
    refused: set[tuple[str | None, str, str, str]],
) -> tuple[dict[Path, str], list[Finding], list[Finding]]:
    """The first of `todo` that makes nothing worse, mended; those before it are refused from here on."""
    from decurion_cli.checking import every_finding

    for one in todo:
        changed, done = _mended(texts, [one])
        now = every_finding(changed) if done else findings
        better = _errors(now) <= _errors(findings) or one.code in HIDING
        if done and better and all(_name(other) != _name(one) for other in now):
            return changed, done, now
        refused.add(_name(one))
    return dict(texts), [], findings


def texts_of(paths: Sequence[Path]) -> dict[Path, str]:
    """The files' texts, byte for byte. Raises `CompileFailed` for files that cannot be read."""
    from decurion_crds.loader.files import texts

    findings: list[Finding] = []
    files = [file for file, _ in texts(paths, findings)]
    if findings:
        raise CompileFailed(findings)
    return {file: file.read_bytes().decode() for file in files}


def _errors(findings: Sequence[Finding]) -> int:
    return sum(finding.severity == "error" for finding in findings)


def _name(finding: Finding) -> tuple[str | None, str, str, str]:
    return finding.file, finding.code, finding.path, finding.message


def _mended(texts: Mapping[Path, str], todo: Sequence[Finding]) -> tuple[dict[Path, str], list[Finding]]:
    """The texts with these fixes, from the end of each file to its start, so that places stay what they were."""
    changed = dict(texts)
    done: list[Finding] = []
    taken: dict[Path, int] = {}
    for one in sorted(todo, key=lambda one: (one.file or "", one.line or 0, one.column or 0), reverse=True):
        file = Path(one.file or "")
        if one.fix is None or file not in changed or one.line is None or one.column is None:
            continue
        start = _index(changed[file], one.line, one.column)
        at = changed[file].find(one.fix.old, start)
        end = at + len(one.fix.old)
        line_end = changed[file].find("\n", start)
        beyond = line_end >= 0 and at > line_end and "\n" not in one.fix.old
        if at < 0 or beyond or end > taken.get(file, len(changed[file])):
            continue
        changed[file] = changed[file][:at] + one.fix.new + changed[file][end:]
        taken[file] = at
        done.append(one)
    done.reverse()
    return changed, done


def _index(text: str, line: int, column: int) -> int:
    """Index of the character at a line and column, from 1."""
    at = 1 if line == 1 and text.startswith("\ufeff") else 0
    for _ in range(line - 1):
        at = text.find("\n", at) + 1
    return at + column - 1

"""Reading the files of a run out of its ledger, for a person."""

from __future__ import annotations

import asyncio
import mimetypes
from pathlib import Path
from typing import Any, NamedTuple

from decurion_cli.records import PathNotFound
from decurion_crds.compiled import Artefact, CompiledGraph
from decurion_crds.errors import InputError
from decurion_crds.findings import did_you_mean
from decurion_crds.findings import listed as in_words
from decurion_crds.globs import Globs
from decurion_ledger import Store, Values, find, open_store
from decurion_ledger.errors import RunNotFound
from decurion_ledger.workspace import Entry, Objects, Version, checkout, files_of

END = "/!output"


class NoFiles(InputError):
    def __init__(self, run: str, path: str) -> None:
        where = "it has not ended well" if path == END else f"the record at {path} names none"
        super().__init__(
            f"run {run} has no files to give: {where}; `decurion ledger ls {run}` lists its records, and --at takes one"
        )


class NoArtefact(InputError):
    def __init__(self, run: str, name: str, known: list[str]) -> None:
        meant = did_you_mean(name, known)
        hint = f'did you mean "{meant}"?' if meant else f"there are {in_words(known)}" if known else "there are none"
        super().__init__(f'run {run} has no artefact or file "{name}"; {hint}')


class _Files(NamedTuple):
    """The files of one record of a run, and which of them are artefacts."""

    objects: Objects
    version: Version
    entries: dict[str, Entry]
    artefacts: tuple[Artefact, ...]

    def of(self, artefact: Artefact) -> dict[str, Entry]:
        glob = Globs((artefact.path,))
        return {path: entry for path, entry in self.entries.items() if glob.fits(path)}


async def listed(ledger: str, run: str, *, at: str, every: bool) -> list[dict[str, Any]]:
    """One row a file. Raises `NoFiles`, `PathNotFound`, `RunNotFound`, or the store's error."""
    files = await _files(open_store(ledger), run, at or END)
    if every:
        return [_row("", path, entry, None) for path, entry in files.entries.items()]
    return [
        _row(artefact.name, path, entry, artefact.type)
        for artefact in files.artefacts
        for path, entry in files.of(artefact).items()
    ]


async def taken(ledger: str, run: str, name: str, *, at: str, every: bool, to: Path | None) -> bytes | None:
    """The content of one file, where it is to be shown; else it is put where it is to go.

    Raises as `listed`, `NoArtefact`, `InputError` for several files without a folder, and `OSError`.
    """
    files = await _files(open_store(ledger), run, at or END)
    wanted = files.entries if every else _named(files, run, name)
    if len(wanted) == 1 and not every:
        ((_, entry),) = wanted.items()
        content = await files.objects.read(entry)
        if to is None:
            return content
        await asyncio.to_thread(to.write_bytes, content)
        return None
    if to is None:
        raise InputError(f"these are {len(wanted)} files; name a folder for them by --to")
    await checkout(files.objects, files.version, to, wanted=Globs(tuple(map(_literal, wanted))))
    return None


def _literal(path: str) -> str:
    """The glob that only this path fits."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in path)


def _named(files: _Files, run: str, name: str) -> dict[str, Entry]:
    found = next((files.of(artefact) for artefact in files.artefacts if artefact.name == name), None)
    if found:
        return found
    if name in files.entries:
        return {name: files.entries[name]}
    raise NoArtefact(run, name, [artefact.name for artefact in files.artefacts] or sorted(files.entries)[:20])


def _row(name: str, path: str, entry: Entry, kind: str | None) -> dict[str, Any]:
    row = {"name": name} if name else {}
    guessed = kind or mimetypes.guess_type(path)[0] or "application/octet-stream"
    return row | {"type": guessed, "size": entry.size, "sha256": entry.ref, "path": path}


async def _files(store: Store, run: str, path: str) -> _Files:
    record, genesis = await find(store, run, path), await find(store, run, "/")
    if genesis is None:
        raise RunNotFound(run, store.uri)
    if record is None and path != END:
        raise PathNotFound(run, path, [])
    if record is None or "workspace" not in record.envelope:
        raise NoFiles(run, path)
    values = Values(store, run)
    closure = await values.load(await values.unpack(genesis.envelope, genesis.envelope["closure"]))
    graph = CompiledGraph.model_validate(closure)
    version, objects = Version.from_json(record.envelope["workspace"]), Objects(store, run)
    await objects.learn(version)
    artefacts = graph.workspace.artefacts if graph.workspace is not None else ()
    return _Files(objects, version, await files_of(objects, version.root), artefacts)

"""Files in a folder of this machine: their names, sizes and digests."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from decurion_crds.canonical import Json
from decurion_ledger.errors import BadTree
from decurion_ledger.workspace.disk import stamp


@dataclass(frozen=True, slots=True)
class Listed:
    """A file or object below a prefix. `key` is its name behind the prefix, `etag` changes with its content."""

    key: str
    uri: str
    size: int
    etag: str

    def to_json(self) -> dict[str, Json]:
        return {"key": self.key, "uri": self.uri, "size": self.size, "etag": self.etag}


def hidden(key: str) -> bool:
    """Whether a key is left out of every listing: a name in it begins with a dot, or it is a folder itself."""
    return not key or key.endswith("/") or any(name.startswith(".") for name in key.split("/"))


def digest_of(data: bytes) -> str:
    """The etag of a file with this content."""
    return hashlib.sha256(data).hexdigest()


def files_below(
    folder: Path, wanted: Callable[[str], bool], *, leave: Path | None, most: int, closed: bool = False
) -> list[Listed]:
    """The regular files below `folder` whose keys are `wanted`, at most `most`, in order of their keys; `uri` is empty.

    Nothing below `leave` is listed. Links to files count as files, links to folders are not followed. `closed`: what
    leads out of the folder, or is no plain file, raises `BadTree`. Raises `OSError`, and `UnicodeEncodeError` for a
    name that is no text.
    """
    if closed:
        _check_closed(folder, wanted, leave)
    found = ((key, path) for key, path in _walk(folder, leave) if not hidden(key) and wanted(key))
    listed = []
    for key, path in sorted(islice(found, most)):
        key.encode()
        try:
            with path.open("rb") as file:
                etag = hashlib.file_digest(file, "sha256").hexdigest()
                listed.append(Listed(key, "", os.fstat(file.fileno()).st_size, etag))
        except FileNotFoundError:
            continue  # removed since the folder was read
    return listed


def _check_closed(folder: Path, wanted: Callable[[str], bool], leave: Path | None) -> None:
    top = folder.resolve()
    for above, folders, names in os.walk(folder, onerror=_raise):
        here = Path(above)
        for name in (*folders, *names):
            path = here / name
            key = path.relative_to(folder).as_posix()
            if hidden(key) or path == leave or (name in names and not wanted(key)):
                continue
            if path.is_symlink() and not path.resolve().is_relative_to(top):
                raise BadTree(key, "its link leads out of the folder; copy what it leads to, or remove it")
            if path.is_symlink() and path.is_dir():
                raise BadTree(key, "it is a link to a folder; copy what it leads to, or remove it")
            if path.exists() and not path.is_dir():
                stamp(key, path.stat())
        folders[:] = [name for name in folders if not name.startswith(".") and here / name != leave]


def _walk(folder: Path, leave: Path | None) -> Iterator[tuple[str, Path]]:
    for above, folders, names in os.walk(folder, onerror=_raise):
        here = Path(above)
        folders[:] = [name for name in folders if not name.startswith(".") and here / name != leave]
        for name in names:
            path = here / name
            if path.is_file():
                yield path.relative_to(folder).as_posix(), path


def _raise(error: OSError) -> None:
    raise error

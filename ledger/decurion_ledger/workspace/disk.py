"""Files on a disk, reached without following a link: nothing outside the folder is read or written."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from decurion_ledger.errors import BadTree, WorkspaceTooLarge
from decurion_ledger.workspace.names import check_link, check_path
from decurion_ledger.workspace.tree import MAX_ENTRIES, check_names
from decurion_ledger.workspace.version import Limits

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Stamp(NamedTuple):
    """What tells whether a file is the one that was read before."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    executable: bool


@contextmanager
def opened(root: Path) -> Iterator[int]:
    """The folder itself; its own path may lead over links."""
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def folder_below(root: int, folder: str, *, make: bool = False) -> Iterator[int]:
    """A folder below the open one, step by step, no step over a link. Raises `OSError`."""
    current = os.dup(root)
    try:
        for name in folder.split("/") if folder else ():
            if make:
                try:
                    os.mkdir(name, 0o755, dir_fd=current)
                except FileExistsError:
                    pass
            following = os.open(name, _FOLDER, dir_fd=current)
            os.close(current)
            current = following
        yield current
    finally:
        os.close(current)


def listed(root: Path, limits: Limits) -> tuple[dict[str, Stamp], dict[str, str]]:
    """The files below a folder by path, and the targets of the links.

    Raises `BadTree` for what no workspace may hold: devices, sockets, pipes, hard links, files that change who runs
    them, links that lead out, names that are not allowed; `WorkspaceTooLarge`; `OSError`.
    """
    files: dict[str, Stamp] = {}
    links: dict[str, str] = {}
    size = 0
    with opened(root) as top:
        waiting = [""]
        while waiting:
            folder = waiting.pop()
            prefix = f"{folder}/" if folder else ""
            with folder_below(top, folder) as descriptor:
                size += _folder(descriptor, prefix, files, links, waiting, limits.files)
            if size > limits.bytes:
                raise WorkspaceTooLarge("bytes", size, limits.bytes)
            if folder.count("/") + 1 > limits.depth:
                raise WorkspaceTooLarge("folders above a file", folder.count("/") + 1, limits.depth)
    return files, links


def _folder(
    descriptor: int, prefix: str, files: dict[str, Stamp], links: dict[str, str], below: list[str], most: int
) -> int:
    """Take in one folder; the bytes of its files."""
    size = 0
    names = []
    with os.scandir(descriptor) as found:
        for entry in found:
            path = f"{prefix}{entry.name}"
            names.append(entry.name)
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                below.append(path)
            elif stat.S_ISLNK(status.st_mode):
                links[path] = os.readlink(entry.name, dir_fd=descriptor)
            else:
                files[path] = stamp(path, status)
                size += status.st_size
            if len(files) + len(links) > most or len(names) > MAX_ENTRIES:
                raise WorkspaceTooLarge("files", max(len(files) + len(links), len(names)), min(most, MAX_ENTRIES))
    check_names(names, below=prefix)
    for name in names:
        target = links.get(f"{prefix}{name}")
        if target is not None:
            check_link(f"{prefix}{name}", target)
    return size


def stamp(path: str, status: os.stat_result) -> Stamp:
    """Raises `BadTree` for what is no plain file."""
    mode = status.st_mode
    if not stat.S_ISREG(mode):
        raise BadTree(path, "it is no file, folder or link but a device, a socket or a pipe; remove it")
    if mode & (stat.S_ISUID | stat.S_ISGID):
        raise BadTree(path, "it changes who runs it (setuid or setgid); take that off")
    if status.st_nlink > 1:
        raise BadTree(path, "it is the same file as another by a hard link; copy it")
    executable = bool(mode & stat.S_IXUSR)
    return Stamp(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, executable)


@contextmanager
def reading(root: int, path: str) -> Iterator[int]:
    """An open file below the folder. Raises `OSError`, and `BadTree` when it became a link."""
    folder, _, name = path.rpartition("/")
    with folder_below(root, folder) as parent:
        try:
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise BadTree(path, "it became a link while the folder was read; scan again") from error
            raise
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def writing(root: int, path: str, *, executable: bool) -> Iterator[int]:
    """A new file below the folder, with the folders that it lies in. Raises `BadTree`, and `OSError` where there is one
    already.
    """
    check_path(path)
    folder, _, name = path.rpartition("/")
    with folder_below(root, folder, make=True) as parent:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(name, flags, 0o755 if executable else 0o644, dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def make_link(root: int, path: str, target: str) -> None:
    """A new link below the folder. Raises `BadTree` and `OSError`."""
    check_path(path)
    check_link(path, target)
    folder, _, name = path.rpartition("/")
    with folder_below(root, folder, make=True) as parent:
        os.symlink(target, name, dir_fd=parent)


def write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]

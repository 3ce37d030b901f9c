"""Which files are read, and their texts."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from decurion_crds.findings import Finding

MAX_FILE_BYTES = 8 * 1024 * 1024
SUFFIXES = (".json", ".yaml", ".yml")
"""What kubectl takes from a folder."""


def texts(paths: Sequence[Path], findings: list[Finding]) -> Iterator[tuple[Path, str]]:
    """The files of `paths` (of a folder: its YAML and JSON files, by name, without its own folders), each once.

    What cannot be read goes to `findings`, never raised.
    """
    seen: set[tuple[int, int]] = set()
    for path in paths:
        for file in _files(path, findings):
            text = _text(file, seen, findings)
            if text is not None:
                yield file, text


def _refused(file: Path, message: str, line: int | None = None, column: int | None = None) -> Finding:
    return Finding("FILE", "", message, file=str(file), line=line, column=column)


def _files(path: Path, findings: list[Finding]) -> list[Path]:
    try:
        inside = sorted(path.iterdir())
    except NotADirectoryError:
        return [path]
    except OSError as error:
        findings.append(_refused(path, _unreadable(error)))
        return []
    # A folder or a socket of such a name is passed over, as kubectl does; a link that leads nowhere is a mistake.
    files = [file for file in inside if file.suffix in SUFFIXES]
    files = [file for file in files if file.is_file() or (file.is_symlink() and not file.exists())]
    if not files:
        findings.append(_refused(path, "there is no YAML or JSON file in this folder; name another"))
    return files


def _text(file: Path, seen: set[tuple[int, int]], findings: list[Finding]) -> str | None:
    """None for a file that was read before, too."""
    try:
        with file.open("rb") as opened:
            status = os.fstat(opened.fileno())
            identity = (status.st_dev, status.st_ino)
            if identity in seen:
                return None
            seen.add(identity)
            content = opened.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        findings.append(_refused(file, _unreadable(error)))
        return None
    if len(content) > MAX_FILE_BYTES:
        message = f"the file has more than {MAX_FILE_BYTES:,} bytes; keep data out of manifests"
        findings.append(_refused(file, message))
        return None
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        before = content[: error.start]
        line, column = before.count(b"\n") + 1, len(before) - (before.rfind(b"\n") + 1) + 1
        message = f"the byte 0x{content[error.start]:02x} is no UTF-8; save the file as UTF-8"
        findings.append(_refused(file, message, line, column))
        return None


def _unreadable(error: OSError) -> str:
    match error:
        case FileNotFoundError():
            return "there is no such file, or it is a link that leads nowhere; check its name"
        case PermissionError():
            return "the file may not be read; check its rights"
    return f"the file cannot be read ({error.strerror}); name another"

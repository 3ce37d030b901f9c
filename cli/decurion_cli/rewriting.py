"""Files that a command writes anew: the changes as a diff, and the writing itself."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path

from decurion_crds.errors import InputError


def diff_of(name: str, before: str, after: str, *, around: int = 3) -> str:
    """What changes in a file, as a unified diff with so many lines around each change."""
    lines = (before.splitlines(keepends=True), after.splitlines(keepends=True))
    return "".join(difflib.unified_diff(*lines, name, name, n=around))


def rewrite(texts: Mapping[Path, str]) -> None:
    """Write texts into their files, which exist. Where one may not be written, none is. Raises `InputError`."""
    for file in texts:
        try:
            file.open("r+b").close()
        except OSError as error:
            why = error.strerror or error
            raise InputError(f"{file} cannot be written ({why}), and no file was; make it writable") from error
    for file, text in texts.items():
        try:
            file.write_bytes(text.encode())
        except OSError as error:
            why = error.strerror or error
            raise InputError(f"{file} could not be written whole ({why}); restore it, and try again") from error

"""Whether ledgers can be trusted: the verifier's reports, in words and as JSON."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from decurion_crds.errors import InputError
from decurion_ledger import Report, SigningKey, examine, list_runs, open_store, public_keys, public_pem


class KeyUnreadable(InputError):
    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path}: the key cannot be read or made there ({why}); name another file")


def read_key(path: Path) -> bytes:
    """The bytes of a key file. Raises `KeyUnreadable`."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise KeyUnreadable(path, error.strerror or type(error).__name__) from error


def root_keys(files: Sequence[Path]) -> tuple[str, ...]:
    """The public keys, in hex, of PEM files with one or more each. Raises `KeyUnreadable`, `BadKeyFile`."""
    return tuple(key for path in files for key in public_keys(read_key(path), str(path)))


def private_key(file: Path) -> SigningKey:
    """The private key in a PEM file. Raises `KeyUnreadable`, `BadKeyFile`."""
    return SigningKey.from_pem(read_key(file), str(file))


def make_key(file: Path) -> Path:
    """Make a private key in `file`, which must not be there yet, and its public part beside it; where that is.

    Raises `KeyUnreadable`.
    """
    key, public = SigningKey.generate(), file.with_suffix(".pem")
    for path, mode, text in ((file, 0o600, key.to_pem()), (public, 0o644, public_pem(key.public).encode())):
        try:
            with open(path, "xb", opener=partial(os.open, mode=mode)) as out:
                out.write(text)
        except OSError as error:
            raise KeyUnreadable(path, error.strerror or type(error).__name__) from error
    return public


async def verify_runs(ledger: str, run: str, roots: Sequence[str]) -> Mapping[str, Report]:
    """The reports on one run, or on every run."""
    store = open_store(ledger)
    runs = [run] if run else await list_runs(store)
    return {name: await examine(store, name, roots=roots) for name in runs}


def as_text(run: str, report: Report, roots: Sequence[str]) -> list[str]:
    """One line for each problem, or one that says what is proved."""
    if report.problems:
        return [f"{run}: {problem}" for problem in report.problems]
    if not report.signed:
        return [f"{run}: ok (unsigned)"]
    whose = ", ".join(report.issuers)
    held = "compared with --root-key" if roots else "compared with no --root-key"
    return [f"{run}: ok ({report.signature} by drivers that {whose} appointed; {held})"]


def report_to_json(run: str, report: Report) -> dict[str, Any]:
    return {
        "run": run,
        "ok": not report.problems,
        "problems": [problem.to_json() for problem in report.problems],
        "segments": report.slots,
        "head": report.head,
        "closed": report.closed,
        "signature": report.signature,
        "issuers": list(report.issuers),
    }

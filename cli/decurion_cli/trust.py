"""Whether ledgers can be trusted: the verifier's reports, in words and as JSON."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from decurion_crds.canonical import canonical
from decurion_crds.errors import InputError
from decurion_ledger import (
    Anchors,
    Proved,
    Report,
    SigningKey,
    anchor,
    anchored_runs,
    examine,
    list_runs,
    open_store,
    prove,
    public_keys,
    public_pem,
    read_log,
)
from decurion_ledger.reader import is_deleted


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


def anchors_of(uri: str, files: Sequence[Path]) -> Anchors | None:
    """The anchors at `uri`, written by the holders of the public keys in `files`. Raises `InputError`."""
    if not uri:
        if files:
            raise InputError("--anchor-key says who may write anchors: name their store with --anchors")
        return None
    if not files:
        raise InputError("--anchors needs --anchor-key: without it nobody knows who wrote them")
    return Anchors(open_store(uri), root_keys(files))


async def verify_runs(ledger: str, run: str, roots: Sequence[str], anchors: Anchors | None) -> Mapping[str, Report]:
    """The reports on one run, or on every run that is there or has an anchor; not on those that were deleted."""
    store = open_store(ledger)
    if run:
        return {run: await examine(store, run, roots=roots, anchors=anchors)}
    runs = await list_runs(store)
    reports = {name: await examine(store, name, roots=roots, anchors=anchors) for name in runs}
    for name in await anchored_runs(anchors.store) if anchors is not None else ():
        if name not in reports and not await is_deleted(store, name):
            reports[name] = await examine(store, name, roots=roots, anchors=anchors)
    return dict(sorted(reports.items()))


@dataclass(frozen=True, slots=True)
class Anchored:
    """What came of anchoring a run: a report, and whether an anchor was written."""

    report: Report
    new: bool


async def anchor_runs(
    ledger: str, run: str, to: str, key: SigningKey, roots: Sequence[str], at: str
) -> Mapping[str, Anchored]:
    """Anchor one run, or every one."""
    store, anchors = open_store(ledger), open_store(to)
    runs = [run] if run else await list_runs(store)
    return {name: Anchored(*await anchor(store, name, anchors, key=key, at=at, roots=roots)) for name in runs}


async def proof_of(ledger: str, run: str, path: str, anchors: str) -> dict[str, Any]:
    proof = await prove(open_store(ledger), run, path, anchors=open_store(anchors) if anchors else None)
    return proof.to_json()


async def statement_of(ledger: str, run: str) -> bytes:
    """The statement of a run that has ended, in its envelope. Raises `NoStatement`."""
    store = open_store(ledger)
    async for _, record in read_log(store, run):
        if record.type == "close" and "provenance" in record.envelope:
            return canonical(record.envelope["provenance"])
    raise NoStatement(run)


class NoStatement(InputError):
    def __init__(self, run: str) -> None:
        super().__init__(f"run {run} has no statement: it has not ended, so let it end, or name another run")


def proved_text(proved: Proved) -> list[str]:
    """What a proof proves, in words."""
    if proved.fault is not None:
        return [f"wrong: {proved.fault}"]
    by = f"a driver that {proved.issuer} appointed" if proved.issuer else "nobody knows whom (unsigned)"
    lines = [
        f"{proved.path} of run {proved.run} is in slot {proved.slot}, written by {by}",
        f"slot {proved.slot} is in the log of {proved.slots} slots with the root {proved.root}",
    ]
    if proved.anchored is not None:
        at, key = proved.anchored
        lines.append(f"that log was anchored at {at} with the key {key}")
    return lines


def read_proof(file: Path) -> Any:
    """What a proof file holds. Raises `ProofUnreadable`."""
    try:
        return orjson.loads(file.read_bytes())
    except OSError as error:
        raise ProofUnreadable(file, error.strerror or type(error).__name__) from error
    except orjson.JSONDecodeError as error:
        raise ProofUnreadable(file, "it is no JSON") from error


class ProofUnreadable(InputError):
    def __init__(self, file: Path, why: str) -> None:
        super().__init__(f"{file}: the proof cannot be read ({why}); name what `decurion ledger prove` wrote")


def as_text(run: str, report: Report, roots: Sequence[str]) -> list[str]:
    """One line for each problem, or one that says what is proved."""
    if report.problems:
        return [f"{run}: {problem}" for problem in report.problems]
    said = "unsigned"
    if report.signed:
        held = "compared with --root-key" if roots else "compared with no --root-key"
        said = f"{report.signature} by drivers that {', '.join(report.issuers)} appointed; {held}"
    anchored = f"; {report.anchors} anchors" if report.anchors else ""
    return [f"{run}: ok ({said}{anchored})"]


def report_to_json(run: str, report: Report) -> dict[str, Any]:
    return {
        "run": run,
        "ok": not report.problems,
        "problems": [problem.to_json() for problem in report.problems],
        "segments": report.slots,
        "head": report.head,
        "root": report.root,
        "anchors": report.anchors,
        "closed": report.closed,
        "signature": report.signature,
        "issuers": list(report.issuers),
    }

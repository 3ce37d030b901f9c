"""Checking a proof of inclusion, with keys alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from decurion_ledger.verifier.anchors import checkpoint_of
from decurion_ledger.verifier.form import FORMAT, HEADER, canonical, sha, unhex
from decurion_ledger.verifier.signatures import certificate_fault, is_signed

_KIND = "decurion-inclusion-proof"


@dataclass(frozen=True, slots=True)
class Proved:
    """What a proof proves. `fault` says why it proves nothing, and is None for one that holds.

    `issuer` is the root key whose holder appointed the driver that wrote the record, empty where it is unsigned;
    `anchored` is when, and by which key, the log was anchored, if it was.
    """

    fault: str | None
    run: str = ""
    path: str = ""
    slot: int = 0
    slots: int = 0
    root: str = ""
    issuer: str = ""
    anchored: tuple[str, str] | None = None


def check_proof(found: Any, *, roots: Sequence[str] = (), anchor_keys: Sequence[str] = ()) -> Proved:
    """What a proof proves; it is wrong where it does not hold in itself, or not under the keys given."""
    try:
        if found["kind"] != _KIND or found["format"] != 1 or found.keys() != _MEMBERS:
            return Proved("it is no proof of format 1")
        return _checked(found, tuple(roots), tuple(anchor_keys))
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        return Proved(f"it cannot be read ({type(e).__name__}: {e})")


_MEMBERS = {"kind", "format", "run", "path", "record", "segment", "certificate", "log", "anchor"}


def _checked(found: dict[str, Any], roots: tuple[str, ...], anchor_keys: tuple[str, ...]) -> Proved:
    run, path, segment, log = found["run"], found["path"], found["segment"], found["log"]
    stored, signature = segment["header"].encode(), unhex(segment["signature"])
    header = orjson.loads(stored)
    if {name: type(value) for name, value in header.items()} != HEADER or canonical(header) != stored:
        return Proved("its header is none of a segment")
    if (header["run"], header["slot"], header["format"]) != (run, segment["slot"], FORMAT):
        return Proved("its segment is of another run, slot or format")
    record = orjson.loads(found["record"])
    if record.get("core", record)["path"] != path:
        return Proved("its record has another path")
    leaf = sha("record/v0", found["record"].encode())
    if _root("records/v0", leaf, segment["index"], header["count"], segment["hashes"]) != header["root"]:
        return Proved("its record is not in its segment")
    hash_ = sha("segment/v0", stored + signature)
    if _root("final/v0", hash_, segment["slot"], log["slots"], log["hashes"]) != log["root"]:
        return Proved("its segment is not in its log")
    issuer, certificate = "", found["certificate"]
    if header["key"]:
        if not is_signed(header["key"], "signature/v0", stored, signature):
            return Proved("its segment is not signed by the key that it names")
        epoch = certificate["leader_epoch"]
        fault = certificate_fault(certificate, run=run, leader_epoch=epoch, key=header["key"], roots=roots)
        if fault is not None:
            return Proved(f"its certificate does not appoint the driver: {fault}")
        issuer = certificate["issuer"]
    elif roots or signature or certificate is not None:
        return Proved("its segment is unsigned, so that no root key vouches for who wrote it")
    anchored = None
    if found["anchor"] is not None or anchor_keys:
        keys = anchor_keys or (found["anchor"]["key"],)
        fault, said = checkpoint_of(found["anchor"], run=run, keys=keys)
        if fault is not None or (said["slots"], said["root"]) != (log["slots"], log["root"]):
            return Proved(f"its anchor is not one of this log: {fault or 'length and root differ'}")
        anchored = (said["at"], found["anchor"]["key"])
    return Proved(None, run, path, segment["slot"], log["slots"], log["root"], issuer, anchored)


def _root(domain: str, leaf: bytes, index: int, count: int, beside: list[str]) -> str:
    """The root that leaf `index` of `count` leads to with the hashes `beside` the way (RFC 9162, section 2.1.3.2)."""
    if not 0 <= index < count:
        raise ValueError("the leaf is none of the tree")
    at, last, root = index, count - 1, sha(domain, b"\0" + leaf)
    for text in beside:
        other = unhex(text)
        if last == 0:
            raise ValueError("there are more hashes than levels")
        if at % 2 or at == last:
            root = sha(domain, b"\1" + other + root)
            while at % 2 == 0 and at:
                at, last = at >> 1, last >> 1
        else:
            root = sha(domain, b"\1" + root + other)
        at, last = at >> 1, last >> 1
    if last:
        raise ValueError("there are fewer hashes than levels")
    return root.hex()

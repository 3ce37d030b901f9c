"""Reading a ledger for a person: runs, the paths of a run, one node with what it saw and what came of it."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any

import orjson

from decurion_cli.revealing import ERASED, SHOWN
from decurion_crds.errors import InputError
from decurion_crds.wide import summary
from decurion_ledger import Record, Seal, Store, ends, find_all, is_erased, open_store, read_log, unpack
from decurion_ledger import list_runs as stored_runs
from decurion_ledger.errors import LogCorrupt, RunDeleted, ValueMissing, ValueSealed


class PathNotFound(InputError):
    def __init__(self, run: str, path: str, near: list[str]) -> None:
        hint = f"; there are {', '.join(near)}" if near else ""
        super().__init__(f"run {run} has no record at {path}{hint}: `decurion ledger ls {run}` lists its paths")


async def list_runs(ledger: str) -> list[dict[str, Any]]:
    """One row a run: id, graph, when it began, how it stands."""
    store = open_store(ledger)
    rows = []
    for run in await stored_runs(store):
        begun: Mapping[str, Any] = {}
        outcome = "open"
        try:
            first, close = await ends(store, run)
            begun = first.envelope
            if close is not None:
                outcome = close.envelope["outcome"]
        except LogCorrupt:
            outcome = "corrupt"
        except RunDeleted:
            continue
        rows.append({"run": run, "name": begun.get("name", ""), "started": begun.get("at", ""), "state": outcome})
    return rows


async def list_paths(ledger: str, run: str) -> list[dict[str, Any]]:
    """One row a record with a path, in log order."""
    rows = []
    async for slot, record in read_log(open_store(ledger), run):
        if record.path:
            rows.append({"slot": slot, "type": record.type, "path": record.path, "outcome": _outcome(record)})
    return rows


def _outcome(record: Record) -> str:
    if record.core is None:
        return str(record.envelope.get("code", ""))
    outcome = record.core["outcome"]
    return outcome if isinstance(outcome, str) else f"failed {outcome['failed']['code']}"


async def show_node(
    ledger: str, run: str, path: str, revealing: Awaitable[Seal | None] | None = None
) -> dict[str, Any]:
    """The records at `path` with their values loaded, with what `revealing` gives also those that are sensitive.

    Raises `PathNotFound`, or as `key_of`.
    """
    store = open_store(ledger)
    seal = await revealing if revealing is not None else None
    wanted = {path, f"{path}!open", f"{path}!join"}
    found: list[tuple[int, Record]] = []
    signatures: dict[int, str] = {}
    signature = ""
    for slot, record in await find_all(store, run, *sorted(wanted | {"/"})):
        if record.type == "fence":
            signature = _signature(record)
        if record.path in wanted:
            found.append((slot, record))
            signatures[slot] = signature
    if not found:
        raise PathNotFound(run, path, await _near(store, run, path))
    return {
        "run": run,
        "path": path,
        "records": [
            {**await _Shown(store, run, seal).record(slot, record), "signature": signatures[slot]}
            for slot, record in found
        ],
    }


async def _near(store: Store, run: str, path: str) -> list[str]:
    """Paths of the run that begin as `path` does."""
    near: list[str] = []
    async for _, record in read_log(store, run):
        if record.path.startswith(path) and record.path not in near:
            near.append(record.path)
        if len(near) == 5:
            break
    return near


def _signature(fence: Record) -> str:
    """Who signed what follows a fence, as the fence says; `decurion ledger verify --root-key` says whether it is so."""
    certificate = fence.envelope.get("certificate")
    return f"of a driver appointed by {certificate['issuer']}" if isinstance(certificate, dict) else "unsigned"


class _Shown:
    """How the records of a run are shown to whoever has this key of it, or none."""

    def __init__(self, store: Store, run: str, seal: Seal | None) -> None:
        self._store = store
        self._run = run
        self._seal = seal

    async def record(self, slot: int, record: Record) -> dict[str, Any]:
        envelope = {k: v for k, v in record.envelope.items() if k not in ("values", "run", "said")}
        shown: dict[str, Any] = {"slot": slot, "type": record.type, "outcome": _outcome(record)}
        if "said" in record.envelope and self._seal is not None:
            envelope["message"] = await self._value(record, record.envelope["said"])
        if record.core is not None:
            shown["core"] = record.core_hash
            shown["parents"] = [parent for parent, _ in record.core["parents"]]
            for name, value in (("snapshot", record.core["input"]), ("output", record.core["delta"])):
                if value is not None:
                    shown[name] = await self._value(record, value)
            if record.core["writes"]:
                shown["writes"] = {n: await self._value(record, v) for n, v in record.core["writes"]}
        return shown | envelope

    async def _value(self, record: Record, name: str) -> Any:
        try:
            return summary(await unpack(self._store, record.envelope, name, self._seal))
        except ValueSealed:
            return ERASED if await is_erased(self._store, self._run) else SHOWN
        except ValueMissing:
            return {"hash": name}


def describe(node: dict[str, Any]) -> str:
    """The node as text: one block a record, values as indented JSON."""
    lines = [f"run {node['run']}  path {node['path']}"]
    for record in node["records"]:
        lines.append("")
        lines.append(f"{record['type']} in slot {record['slot']}: {record['outcome']}")
        for name, value in record.items():
            if name in ("slot", "type", "outcome"):
                continue
            if isinstance(value, (dict, list)):
                text = orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()
                lines.append(f"  {name}: " + text.replace("\n", "\n  "))
            else:
                lines.append(f"  {name}: {value}")
    return "\n".join(lines)

"""Whether a record that a runner sent may be committed. The driver trusts no runner with the shape of its log."""

from __future__ import annotations

from collections.abc import Container

from decurion_crds.compiled import CompiledGraph
from decurion_crds.values import OutputMismatch, Validator
from decurion_ledger import Record, vhash
from decurion_ledger import core_hash as hash_core
from decurion_worker.context import schema_hash


class Acceptance:
    """Checks records against the graph of their run."""

    def __init__(self, graph: CompiledGraph) -> None:
        self._validators = _validators(graph)

    def fault(self, record: Record, *, item: str, committed: Container[str], beside: Container[str]) -> str | None:
        """Why a record may not be committed, or None.

        `item` is the path of the item it was sent for, `committed` holds the paths in the log, `beside` those of the
        records that go into the same segment before it.
        """
        under = record.path == item or record.path.startswith((f"{item}/", f"{item}!"))
        if not under and item != f"{record.path}!writes":
            return f"it is not under the item {item}"
        if record.core is None:
            return None
        if record.path in committed or record.path in beside:
            return "the path is committed already"
        if record.core.get("path") != record.path or hash_core(record.core) != record.core_hash:
            return "its core does not have the hash it names"
        return self._value_fault(record)

    def _value_fault(self, record: Record) -> str | None:
        delta = record.core["delta"] if record.core else None
        held = (record.envelope.get("values") or {}).get(delta) if delta is not None else None
        if held is None or "inline" not in held:
            return None
        value = held["inline"]
        if vhash(value) != delta:
            return "its value does not have the hash it names"
        validator = self._validators.get(record.core["schema"]) if record.core else None
        if validator is None or record.type == "scope_opened":
            return None
        try:
            validator.check(value)
        except OutputMismatch as error:
            return str(error)
        return None


def _validators(graph: CompiledGraph) -> dict[str, Validator]:
    """Validators of all that is committed under this graph, by the hash of the schema."""
    found: dict[str, Validator] = {}
    for scope in (graph.root, *graph.templates.values()):
        for schema in (scope.output_schema, *(node.output for node in scope.nodes)):
            found.setdefault(schema_hash(schema), Validator(schema))
    return found

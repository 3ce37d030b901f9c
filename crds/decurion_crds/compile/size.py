"""How large a compiled graph may be: it is kept with each run, sent to drivers, and read by every runner."""

from __future__ import annotations

from decurion_crds.canonical import canonical
from decurion_crds.compile.report import Report, Spot
from decurion_crds.compiled import CompiledGraph, Scope
from decurion_crds.show import scope_title

MAX_BUNDLE_BYTES = 2_000_000
"""Bytes of a compiled graph as canonical JSON."""


def check_size(compiled: CompiledGraph, report: Report) -> None:
    """Refuses a compiled graph that is too large, saying what most of it is."""
    size = len(canonical(compiled.to_json()))
    if size <= MAX_BUNDLE_BYTES:
        return
    scopes: dict[str, Scope] = {"the graph itself": compiled.root}
    scopes |= {scope_title(name): scope for name, scope in compiled.templates.items()}
    largest = max(scopes, key=lambda title: len(canonical(scopes[title].to_json())))
    share = len(canonical(scopes[largest].to_json()))
    message = (
        f"compiled, the graph has {size:,} bytes in {len(scopes):,} scopes and may have {MAX_BUNDLE_BYTES:,}; the "
        f"largest is {largest} with {share:,}: shorten texts and schemas there, or bind fewer different names"
    )
    report.add("BUNDLE-TOO-LARGE", Spot(("spec",), ""), message)

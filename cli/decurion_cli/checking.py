"""Everything that is wrong with manifests: what `validate` tells and `fix` mends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from decurion_cli.manifests import Manifests, compile_all, read_loaded
from decurion_cli.run_checks import run_findings
from decurion_crds.compile import Compilation
from decurion_crds.compiled import CompiledGraph
from decurion_crds.findings import Finding
from decurion_crds.loader import independent, load_texts


@dataclass(frozen=True, slots=True)
class Checked:
    """What came of the graphs, by name, and all findings: one for each cause."""

    results: dict[str, Compilation]
    findings: list[Finding]


def check(manifests: Manifests) -> Checked:
    """Compile every graph, and look at runs beside them."""
    findings = list(manifests.findings)
    results = compile_all(manifests, as_used=True) if manifests.graphs else {}
    runs = run_findings(manifests, results)
    for result in results.values():
        # A graph whose document does not parse is not among the results; one cause, one finding.
        findings.extend(f for f in independent(result.findings, manifests.findings) if f not in findings)
    return Checked(results, [*findings, *runs])


def every_finding(texts: Mapping[Path, str]) -> list[Finding]:
    """All findings of texts that stand for files, in the bytes of the files as UTF-8."""
    return check(_read(texts)).findings


def compiled_texts(texts: Mapping[Path, str]) -> dict[str, CompiledGraph]:
    """The graphs of such texts, by name. Raises `CompileFailed`."""
    return {name: result.result() for name, result in check(_read(texts)).results.items()}


def _read(texts: Mapping[Path, str]) -> Manifests:
    plain = {file: text.removeprefix("\ufeff").replace("\r\n", "\n") for file, text in texts.items()}
    return read_loaded(load_texts(plain.items()))

"""Names that a node writes: of nodes, channels and templates that have to be there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from decurion_crds.compile.draft import NodeDraft, ScopeDraft, Site
from decurion_crds.compile.report import Report, Spot
from decurion_crds.expressions.errors import Problem, shifted
from decurion_crds.expressions.words import FUNCTIONS
from decurion_crds.findings import Fix, did_you_mean, listed

_PARTS = ("when", "items", "jsonl", "prefix", "key", "value", "until", "score")


def check_names(names: Iterable[str], spot: Spot, what: str, report: Report) -> None:
    """That names of one list differ, and are those of no function."""
    seen: set[str] = set()
    for i, name in enumerate(names):
        if name in seen:
            message = f'there are two of the name "{name}"; rename one {what}'
            report.add("DUPLICATE-NAME", spot.item(i, name), message)
        seen.add(name)
        check_name(name, spot.item(i, name), report)


def check_name(name: str, spot: Spot, report: Report) -> None:
    if name in FUNCTIONS:
        report.add("NAME", spot, f'"{name}" is a function of expressions; choose another name')


def missing_template(name: str, templates: Sequence[str], spot: Spot, report: Report) -> None:
    meant = did_you_mean(name, templates)
    hint = (
        f'did you mean "{meant}"?'
        if meant
        else f"the templates are {listed(templates)}"
        if templates
        else "there is none"
    )
    fix = Fix(name, meant) if meant else None
    report.add("REF-MISSING", spot, f'there is no template "{name}"; {hint}', fix=fix)


def nodes_after(
    names: Sequence[str], spot: Spot, known: Sequence[str], outer: ScopeDraft | None, report: Report
) -> tuple[str, ...]:
    """The nodes that `after` names, those of the scope around left out; what is none of either is told."""
    found: list[str] = []
    for i, name in enumerate(names):
        if name in known:
            found.append(name)
            continue
        if outer is not None and name in outer.nodes:
            continue
        meant = did_you_mean(name, known)
        hint = f'did you mean "{meant}"?' if meant else f"the nodes here are {listed(known)}"
        fix = Fix(name, meant) if meant else None
        report.add("REF-MISSING", spot.at(i), f'there is no node "{name}"; {hint}', fix=fix)
    return tuple(dict.fromkeys(found))


def check_channels(draft: NodeDraft, scope: ScopeDraft, report: Report) -> None:
    """Leaves out `writes` to channels that do not exist; they are in the report."""
    for name in [name for name in draft.model.writes if name not in scope.channels]:
        draft.writes.pop(name, None)
        meant = did_you_mean(name, scope.channels)
        hint = f'did you mean "{meant}"?' if meant else "declare it in state"
        fix = Fix(name, meant) if meant else None
        message = f'there is no channel "{name}"; {hint}'
        report.add("REF-MISSING", draft.spot.below("writes", name).key(), message, fix=fix)


def check_references(draft: NodeDraft, scope: ScopeDraft, known: Sequence[str], report: Report) -> None:
    """Leaves out expressions that name nodes or channels which do not exist; they are in the report."""
    draft.with_ = existing(draft.with_, scope, known, report)
    draft.load = {name: one for name, one in draft.load.items() if exist(one.site, scope, known, report)}
    draft.writes = existing(draft.writes, scope, known, report)
    if draft.otherwise is not None:
        draft.otherwise = existing(draft.otherwise, scope, known, report)
    draft.next = existing(draft.next, scope, known, report)
    for part in _PARTS:
        site = getattr(draft, part)
        if site is not None and not exist(site, scope, known, report):
            setattr(draft, part, None)


def existing(sites: Mapping[str, Site], scope: ScopeDraft, known: Sequence[str], report: Report) -> dict[str, Site]:
    """Those expressions that name only what exists; what the others name is told."""
    return {name: site for name, site in sites.items() if exist(site, scope, known, report)}


def exist(site: Site, scope: ScopeDraft, known: Sequence[str], report: Report) -> bool:
    """Whether the nodes and channels that an expression reads exist; what does not is told, the first of them."""
    for name in site.reads("nodes"):
        if not name:
            message = "nodes is no value of its own; name one, as in nodes.NAME.output"
            report.add("EXPR-FIELD", site.spot, message)
            return False
        if name not in known:
            meant = did_you_mean(name, known)
            hint = f"did you mean {meant}?" if meant else f"the nodes here are {listed(known)}"
            _tell(site, "REF-MISSING", f"nodes.{name}", f"there is no node {name}; {hint}", name, meant, report)
            return False
        if name in scope.switches:
            message = "a switch has no output; read the value that it switches on, or the nodes of its cases"
            _tell(site, "EXPR-FIELD", f"nodes.{name}", message, name, None, report)
            return False
    for name in site.reads("state"):
        if name and name not in scope.channels:
            meant = did_you_mean(name, scope.channels)
            hint = f"did you mean {meant}?" if meant else f"the channels here are {listed(scope.channels)}"
            message = f"there is no channel {name}; {hint}"
            _tell(site, "EXPR-FIELD", f"state.{name}", message, name, meant, report)
            return False
    return True


def _tell(site: Site, code: str, path: str, message: str, name: str, meant: str | None, report: Report) -> None:
    problem = Problem(code, message, *site.parsed.place_of(path), Fix(name, meant) if meant else None)
    report.problem(shifted(problem, site.line, site.column), site.spot, site.scalar)

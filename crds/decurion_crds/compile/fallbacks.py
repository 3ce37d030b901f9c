"""LLMs that are asked when another cannot answer: the chains that `fallback` makes, and what is wrong with them.

What an LLM names is a resource, whatever the needs of a graph stand for. A run's overrides hold for it, too: they have
been applied to the resources by name before anything is compiled.
"""

from __future__ import annotations

from collections.abc import Mapping

from decurion_crds.compile.draft import GraphDraft
from decurion_crds.compile.report import Report, Spot
from decurion_crds.findings import did_you_mean, listed
from decurion_crds.v1alpha1 import LLM
from decurion_crds.v1alpha1.base import Resource


def chain(first: str, llms: Mapping[str, Resource]) -> tuple[str, ...]:
    """`first` and all that it falls back on, in order; it ends before what is not there, or would come again."""
    found: list[str] = []
    name: str | None = first
    while name is not None and name not in found:
        llm = llms.get(name)
        if not isinstance(llm, LLM):
            break
        found.append(name)
        name = llm.spec.fallback
    return tuple(found)


class Fallbacks:
    """Checks the chains of the LLMs that nodes ask. What is wrong with an LLM is told once, where it is first asked."""

    def __init__(self, draft: GraphDraft, report: Report) -> None:
        self._llms = draft.resources["LLM"]
        self._known = draft.known["LLM"]
        self._report = report
        self._told: set[str] = set()

    def check(self, first: str, spot: Spot) -> None:
        """That the chain of `first`, named at `spot`, leads to LLMs that are there, and to an end."""
        names = chain(first, self._llms)
        last = self._llms.get(names[-1]) if names else None
        after = last.spec.fallback if isinstance(last, LLM) else None
        if after is None or names[-1] in self._told:
            return
        if after in names:
            circle = names[names.index(after) :]
            self._told.update(circle)
            shown = " → ".join((*circle, after))
            message = (
                f"LLMs fall back on one another ({shown}), so there is no end; remove the fallback of one of them, or "
                "what a run puts in its place"
            )
            self._report.add("CYCLE", spot, message)
            return
        self._told.add(names[-1])
        meant = did_you_mean(after, self._known)
        known = listed([name for name in self._known if name not in names])
        hint = f'did you mean "{meant}"?' if meant else f"apply an LLM of that name (there are {known})"
        message = f'the LLM {names[-1]} falls back on "{after}", and there is no LLM of that name; {hint}'
        self._report.add("REF-MISSING", spot, message, absent=f"LLM {after}")

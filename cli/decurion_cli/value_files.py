"""Values that a person gives in a YAML or JSON file, and where in it each of them stands."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from decurion_cli.manifests import show_warnings
from decurion_crds.errors import InputError
from decurion_crds.findings import Finding
from decurion_crds.loader.compose import Composed, compose
from decurion_crds.loader.source import Source
from decurion_crds.v1alpha1 import Place

_STEP = re.compile(r"(?:^|\.)(\w+)|\[(\d+)\]|\[\"(.*?)\"\]")


@dataclass(frozen=True, slots=True)
class ValueFile:
    """An object read as manifests are, but with the nulls that its author wrote."""

    file: str
    value: dict[str, Any]
    composed: Composed

    def placed(self, finding: Finding) -> Finding:
        """The finding with the place of the value at its path, or of the nearest one above."""
        place = steps_of(finding.path)
        while place and place not in self.composed.spots:
            place = place[:-1]
        spot = self.composed.spots[place]
        return replace(finding, file=self.file, line=spot.line, column=spot.column)


def read_values(file: Path) -> ValueFile:
    """The object in a YAML or JSON file. Raises `InputError`."""
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: it is no UTF-8 text; name a YAML or JSON file") from error
    except OSError as error:
        raise InputError(f"{file}: {error.strerror or error}; name a YAML or JSON file") from error
    composed = compose(Source(str(file), text))
    for problem in composed.problems:
        if problem.code == "YAML":
            raise InputError(f"{file}:{problem.spot.line}:{problem.spot.column} {problem.message}")
    show_warnings(
        [
            Finding(one.code, "", one.message, "warning", str(file), one.spot.line, one.spot.column)
            for one in composed.problems
        ]
    )
    if not isinstance(composed.value, dict):
        raise InputError(f"{file}: an object is due, with a name for each value")
    return ValueFile(str(file), _with_nulls(composed.value, composed), composed)


def _with_nulls(value: dict[str, Any], composed: Composed) -> dict[str, Any]:
    """The value with its null members in place, which a manifest does not have: here they say that nothing is there."""
    for *above, name in composed.nulls:
        parent: Any = value
        for step in above:
            within = (isinstance(parent, dict) and step in parent) or isinstance(parent, list)
            parent = parent[step] if within else None
        if isinstance(parent, dict):
            parent.setdefault(str(name), None)
    return value


def steps_of(path: str) -> Place:
    """The steps of a path into a value, such as `input.reports[0]["the text"]`."""
    return tuple(int(number) if number else name or key for name, number, key in _STEP.findall(path))

"""What a person gives for one node in place of a run, held against what its graph could give there."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from decurion_crds.canonical import Json
from decurion_crds.compiled import Channel, Node, Scope
from decurion_crds.errors import InputError, OutputMismatch, ValueRefused
from decurion_crds.expressions.shapes import words
from decurion_crds.findings import Finding, did_you_mean, listed, shortened
from decurion_crds.seen import Seen
from decurion_crds.values import Validator, normalise

PARTS = ("input", "nodes", "state", "run")
"""What a snapshot has of the scope, beside values of the node's `with`."""
ENDS = ("outcome", "failure")
"""What `run` has in `finally` beside what it has everywhere."""
_PROBLEM = re.compile(r"\$((?:\.\w+|\[\d+\]|\[\".*?\"\])*): (.*)", re.DOTALL)
_NONE_FITS = re.compile(r" is not valid under any of the schemas listed in the '\w+' keyword")
_MAX_SOURCE = 60


class SnapshotRefused(InputError):
    """A snapshot could not occur, or lacks what the node reads. `findings` has one for each cause, their paths as in
    the snapshot.
    """

    def __init__(self, findings: Sequence[Finding]) -> None:
        super().__init__("\n".join(finding.text() for finding in findings))
        self.findings = tuple(findings)


class Snapshot:
    """The values for one node, each in the form that its type declares. What is wrong is kept until `settle`.

    `given` are those of its `with` and `load` by name; `input`, `nodes`, `state` and `run` those of the scope. An
    output of None is that of a node that was skipped, a channel of None one that nobody has written yet.
    """

    def __init__(
        self,
        node: Node,
        scope: Scope,
        around: Mapping[str, Node],
        values: Mapping[str, Json],
        *,
        path: str,
        seen: Seen | None,
    ) -> None:
        """`path` is how a person calls the node, `around` the nodes that it may read, and `seen` what the compiler
        knows of it; without that, values of `with` may be anything.
        """
        self._node, self._scope, self._around, self._path = node, scope, around, path
        self._seen = seen
        self._findings: list[Finding] = []
        self._meant: set[str] = set()
        self.given = self._given(values)
        parts = {name: self._part(name, values.get(name)) for name in PARTS}
        self.input = self._inputs(parts["input"])
        self.nodes = self._outputs(parts["nodes"])
        self.state = self._channels(parts["state"])
        self.run = self._facts(parts["run"])

    def refuse(self, path: str, message: str) -> None:
        self._findings.append(Finding("SNAPSHOT", path, message))

    def settle(self) -> None:
        """Raises `SnapshotRefused` where something was refused."""
        if self._findings:
            raise SnapshotRefused(self._findings)

    def has(self, name: str) -> bool:
        """Whether a value of `with` or `load` is given, or was meant to be."""
        return name in self.given or name in self._meant

    def lacks(self, reads: Iterable[str]) -> str:
        """The first of `reads` that nothing is given for; empty when there is none."""
        for read in sorted(reads):
            root, _, rest = read.partition(".")
            name = rest.partition(".")[0]
            at = f"{root}.{name}"
            if name and self._meant.isdisjoint((root, at)) and self._missing(root, name):
                return at
        return ""

    def channels(self) -> tuple[Channel, ...]:
        """The channels of the scope, holding what is given."""
        return tuple(
            channel.model_copy(update={"initial": self.state[channel.name]}) if channel.name in self.state else channel
            for channel in self._scope.channels
        )

    # --- what is given

    def _given(self, values: Mapping[str, Json]) -> dict[str, Json]:
        own = [*self._node.with_, *self._node.load]
        for name in values:
            if name not in own and name not in PARTS:
                self._unknown("", name, [*own, *PARTS], f'{self._path} reads no "{name}"')
        types = self._seen.names if self._seen is not None else {}
        return {
            name: self._checked(name, values[name], types.get(name, {}), self._source(name))
            for name in own
            if name in values
        }

    def _source(self, name: str) -> str:
        expr = self._node.with_.get(name)
        return f"{shortened(expr.src, _MAX_SOURCE)} gives" if expr is not None else "its file holds"

    def _part(self, name: str, value: Json) -> Mapping[str, Json]:
        if value is None or isinstance(value, Mapping):
            return value or {}
        self._meant.add(name)
        self.refuse(name, f"an object of names is due; write {name}: {{NAME: …}}")
        return {}

    def _inputs(self, given: Mapping[str, Json]) -> dict[str, Json]:
        schemas: Mapping[str, Any] = self._scope.input_schema.get("properties", {})
        known = self._known("input", given, schemas)
        return {
            name: self._checked(f"input.{name}", value, schemas[name], "the graph declares")
            for name, value in known.items()
            if value is not None or name in self._required
        }

    def _channels(self, given: Mapping[str, Json]) -> dict[str, Json]:
        schemas = {channel.name: channel.schema_ for channel in self._scope.channels}
        known = self._known("state", given, schemas)
        return {
            name: None
            if value is None and self._may_be_none(f"state.{name}")
            else self._checked(f"state.{name}", value, schemas[name], "the channel holds")
            for name, value in known.items()
        }

    def _outputs(self, given: Mapping[str, Json]) -> dict[str, Json]:
        found: dict[str, Json] = {}
        for name, value in self._known("nodes", given, self._around).items():
            at, schema = f"nodes.{name}", self._around[name].output
            found[name] = None
            if value is not None and (not isinstance(value, Mapping) or value.keys() != {"output"}):
                self.refuse(at, f"it has its output alone; write {name}: {{output: …}}")
            elif value is not None and value["output"] is not None:
                found[name] = self._checked(f"{at}.output", value["output"], schema, f"{name} gives")
            elif not self._may_be_none(at):
                self.refuse(
                    at, f"{name} has an output whenever {self._path} runs: {words(schema)}; write {name}: {{output: …}}"
                )
        return found

    def _facts(self, given: Mapping[str, Json]) -> dict[str, Json]:
        if self._seen is None:
            return dict(given)
        schemas: Mapping[str, Any] = self._seen.run["properties"]
        facts = {
            name: self._checked(f"run.{name}", value, schemas[name], f"run.{name} is")
            for name, value in self._known("run", given, schemas).items()
        }
        self._time(facts.get("scheduledAt"))
        return facts

    def _time(self, value: Json) -> None:
        try:
            datetime.fromisoformat(value or "1970-01-01")
        except ValueError:
            self.refuse("run.scheduledAt", f'"{value}" is no time; write RFC 3339, as in 2026-01-31T08:00:00Z')

    # --- what it is held against

    def _known(self, part: str, given: Mapping[str, Json], names: Collection[str]) -> dict[str, Json]:
        for name in given:
            if name not in names:
                self._unknown(f"{part}.", name, names, f"where the node stands there is no {part}.{name}")
        return {name: value for name, value in given.items() if name in names}

    def _unknown(self, above: str, name: str, names: Collection[str], why: str) -> None:
        meant = did_you_mean(name, names)
        there = f"there are {listed(sorted(names))}" if above else f"it may have {listed(names)}"
        hint = f'did you mean "{meant}"?' if meant else there if names else "there is none at all"
        self._meant.add(f"{above}{meant}")
        self.refuse(f"{above}{name}", f"{why}; {hint}")

    def _may_be_none(self, at: str) -> bool:
        """Whether the node may see None there, or does not look."""
        looks = any(read == at or read.startswith(f"{at}.") or at.startswith(f"{read}.") for read in self._node.reads)
        return self._seen is None or not looks or at in self._seen.absent

    def _missing(self, root: str, name: str) -> bool:
        match root:
            case "nodes":
                return name not in self.nodes
            case "input":
                return name not in self.input and name in self._required
            case "state":
                return name not in self.state and self._empty(name)
            case _:
                return root == "run" and name in ENDS and name not in self.run

    @property
    def _required(self) -> Collection[str]:
        required: list[str] = self._scope.input_schema.get("required", [])
        return required

    def _empty(self, name: str) -> bool:
        return any(c.name == name and c.initial is None and c.merge == "replace" for c in self._scope.channels)

    def _checked(self, at: str, value: Json, schema: Mapping[str, Any], due: str) -> Json:
        """The value in the form that its type declares; None where it has another type, which is told."""
        try:
            normal = normalise(value, schema)
            Validator(dict(schema)).check(normal)
        except ValueRefused as refused:
            self.refuse(f"{at}{refused.path.removeprefix('$')}", refused.message)
        except OutputMismatch as broken:
            for problem in broken.problems:
                found = _PROBLEM.fullmatch(problem)
                below, message = found.groups() if found is not None else ("", problem)
                message = _NONE_FITS.sub(" does not fit", message)
                self.refuse(f"{at}{below}", f"{message}; {due} {words(schema)}")
        else:
            return normal
        return None

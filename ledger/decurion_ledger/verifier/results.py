"""The results of a log: one a path, parents before children, and the state hash that they come to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from decurion_ledger.verifier.form import canonical, sha, tree

Tell = Callable[[str, str, str], None]
"""Takes a finding: its code, the path of the record, one sentence."""


@dataclass(slots=True)
class Results:
    """What has been seen so far. `units` holds the results of the root and of each branch that has not ended, `arms`
    those that have, by map.
    """

    results: dict[str, str] = field(default_factory=dict)
    units: dict[str, dict[str, str]] = field(default_factory=lambda: {"": {}})
    arms: dict[str, dict[str, str]] = field(default_factory=dict)

    def add(self, core: Mapping[str, Any], stored_hash: str, tell: Tell) -> None:
        """Take a result in."""
        path = core["path"]
        core_hash = sha("core/v0", canonical(core)).hex()
        if core_hash != stored_hash:
            tell("CORE-HASH", path, "the core does not have the hash stored beside it")
        if path in self.results:
            tell("DUPLICATE-PATH", path, "the path has a result already")
        for parent, expected in core["parents"]:
            if self.results.get(parent) != expected:
                tell("PARENT", path, f"it depends on another {parent} than the log holds before it")
            branch = parent[: parent.rfind("]") + 1]
            if not path.startswith(branch) and not parent.startswith(path.partition("!")[0]):
                tell("ISOLATION", path, f"it depends on {parent}, which is in a branch beside its own")
        if core["parents"] != sorted(core["parents"]):
            tell("PARENT", path, "its parents are not in order")
        self.results[path] = core_hash
        if path != "/":
            self._unit(core, path, core_hash, tell)

    def _unit(self, core: Mapping[str, Any], path: str, core_hash: str, tell: Tell) -> None:
        """Keep a result with those of its branch, end the branch, or check the arms of a map that is joined."""
        unit = path[: path.rfind("]") + 1]
        mine = self.units.setdefault(unit, {})
        mine[path] = core_hash
        failed = isinstance(core["outcome"], dict)
        ended = path.removesuffix("!output")
        if path == f"{unit}!output" and unit:
            kept = [[path, core_hash]] if failed else sorted([p, c] for p, c in mine.items())
            arm = sha("arm/v0", orjson.dumps(kept)).hex()
            self.arms.setdefault(unit[: unit.rfind("[")], {})[unit] = arm
            del self.units[unit]
        elif path.endswith("!output") and failed:
            for inner in [inner for inner in mine if inner.startswith(f"{ended}/") or inner == f"{ended}!result"]:
                del mine[inner]
        elif path.endswith("!join") and failed and "arms" not in core:
            # How many rounds a loop that failed had depends on time: its end stands for them.
            for inner in [inner for inner in mine if inner.startswith(f"{path.removesuffix('!join')}@")]:
                del mine[inner]
        elif "!" not in path and (failed or (core["type"] == "skip" and f"{path}!open" not in mine)):
            # What the calls did of an agent that failed, or was given up, depends on time: its end stands for them.
            if any(inner.startswith(f"{path}#") for inner in mine):
                self._forget(mine, (f"{path}#",))
        elif path.endswith("!join"):
            self._joined(core, path.removesuffix("!join"), tell)
        elif core["type"] == "skip" and f"{path.partition('!')[0]}!open" in mine:
            self._given_up(mine, path)

    def _given_up(self, mine: dict[str, str], path: str) -> None:
        """A node that had opened something was given up: what it opened does not count."""
        under = tuple(f"{path.partition('!')[0]}{mark}" for mark in "[/!@#")
        self.arms.pop(under[0][:-1], None)
        self._forget(mine, under, but=path)

    def _forget(self, mine: dict[str, str], under: tuple[str, ...], *, but: str = "") -> None:
        """Drop what is below a path, its branches and maps with it."""
        for inner in [inner for inner in mine if inner.startswith(under) and inner != but]:
            del mine[inner]
        for unit in [unit for unit in self.units if unit.startswith(under)]:
            del self.units[unit]
        for at in [at for at in self.arms if at.startswith(under)]:
            del self.arms[at]

    def _joined(self, core: Mapping[str, Any], path: str, tell: Tell) -> None:
        arms = self.arms.pop(path, {})
        for unit in [unit for unit in self.units if unit.startswith(f"{path}[")]:
            del self.units[unit]
        named = (core.get("arms") or {}).get("root")
        if named is not None and named != _arms(arms):
            tell("ARMS", f"{path}!join", "it does not name the branches that ended before it")

    def state(self, close: Mapping[str, Any]) -> str:
        """The final state hash of the results seen, under the channels and the output that the close record names."""
        cores = [(path, core) for unit in self.units.values() for path, core in unit.items()]
        cores += [(f"{path}!arms", _arms(arms)) for path, arms in self.arms.items()]
        root = tree("cores/v0", [orjson.dumps([path, core]) for path, core in sorted(cores)]).hex()
        named = {"channels": close.get("channels", {}), "cores": root, "output": close.get("output")}
        return sha("state/v0", canonical(named)).hex()


def _arms(arms: Mapping[str, str]) -> str:
    return tree("arms/v0", [orjson.dumps([path, arm]) for path, arm in sorted(arms.items())]).hex()

"""What is committed, by path: core hashes of open scopes one by one, those of ended branches by one digest.

Results are kept in units: the root with the graphs in it, and each branch of a map. When a branch ends, its results
become one digest, its *arm*, which the join of the map names; a run of any width keeps what is open and 32 bytes for
each branch that ended. What a failed branch or graph did before it failed depends on time and does not count: its
`!output` stands for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from decurion_crds.canonical import canonical, digest, merkle_root


class Results:
    """The committed results of one run. `ended(unit)` says of a unit that is not open whether it has ended."""

    def __init__(self, ended: Callable[[str], bool]) -> None:
        self._open: dict[str, dict[str, str]] = {"": {}}
        self._ended = ended

    def __contains__(self, path: object) -> bool:
        if not isinstance(path, str):
            return False
        unit = unit_of(path)
        held = self._open.get(unit)
        return path in held if held is not None else bool(unit) and self._ended(unit)

    def add(self, path: str, core: str) -> None:
        self._open.setdefault(unit_of(path), {})[path] = core

    def close(self, branch: str, *, failed: bool) -> bytes:
        """The arm, 32 bytes, of a branch that ended; its results are no longer kept one by one."""
        held = self._open.pop(branch)
        end = f"{branch}!output"
        return bytes.fromhex(arm([(end, held[end])] if failed else held.items()))

    def forget_under(self, path: str) -> None:
        """A graph failed at `path`: what it did does not count."""
        held = self._open.get(unit_of(path), {})
        for inner in [inner for inner in held if inner.startswith(f"{path}/") or inner == f"{path}!result"]:
            del held[inner]

    def forget_calls(self, path: str) -> None:
        """An agent failed at `path`: what its calls did does not count."""
        held = self._open.get(unit_of(path), {})
        for inner in [inner for inner in held if inner.startswith(f"{path}#")]:
            del held[inner]

    def forget_rounds(self, path: str) -> None:
        """A loop failed at `path`: how many rounds it had depends on time, and they do not count."""
        held = self._open.get(unit_of(path), {})
        for inner in [inner for inner in held if inner.startswith(f"{path}@")]:
            del held[inner]

    def forget_opened(self, path: str, *, but: str) -> None:
        """A node at `path` was given up, as the record `but` says: what it opened does not count, outside its maps."""
        under = tuple(f"{path}{mark}" for mark in "[/!@#")
        held = self._open.get(unit_of(path), {})
        for inner in [inner for inner in held if inner.startswith(under) and inner != but]:
            del held[inner]

    def drop(self, branch: str) -> None:
        """A branch that will never end does not count."""
        self._open.pop(branch, None)

    def leaves(self) -> list[tuple[str, str]]:
        """Path and core hash of all results that are kept one by one."""
        return [pair for held in self._open.values() for pair in held.items()]


def unit_of(path: str) -> str:
    """The branch that a path lies in: `/extract[00017]` of `/extract[00017]/read`; "" outside every map."""
    return path[: path.rfind("]") + 1]


def arm(results: Iterable[tuple[str, str]]) -> str:
    """The digest, in hex, of one branch's results."""
    return digest("arm/v0", canonical(sorted(results)))


def arms_root(arms: Iterable[tuple[str, str]]) -> str:
    """The Merkle root over the arms of a map: (path of the branch, arm in hex), in order of the paths."""
    # Paths and hex digits need no escapes: this is their canonical form.
    return merkle_root("arms/v0", [f'["{path}","{arm}"]'.encode() for path, arm in sorted(arms)])

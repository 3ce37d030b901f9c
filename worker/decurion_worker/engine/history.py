"""What nodes said in earlier rounds, for those whose `context` names it.

Of each such node the latest results of the rounds before stand here, as records, until the loop around it has ended. A
node in a graph of the round is the same node in each round; across maps and calls of agents there is none.
"""

from __future__ import annotations

from collections import deque

from decurion_crds.compiled import Node
from decurion_ledger import Record
from decurion_worker.link import HISTORY


class Histories:
    """Those of one run."""

    def __init__(self) -> None:
        self._kept: dict[str, deque[Record]] = {}

    def note(self, path: str, node: Node, record: Record) -> None:
        """A node at `path` has ended well."""
        key = _key(path)
        if key is not None and node.context is not None and node.context.history and record.type == "commit":
            kept = self._kept.setdefault(key, deque(maxlen=node.context.history))
            if not kept or kept[-1].path != record.path:
                kept.append(record)

    def of(self, path: str, node: Node) -> dict[str, Record]:
        """What the node at `path` came to in the latest rounds, the earliest first, as it is handed to a runner."""
        key = _key(path)
        if key is None or node.context is None or not node.context.history:
            return {}
        found = [record for record in self._kept.get(key, ()) if record.path != path]
        return {f"{HISTORY}{i:03d}": record for i, record in enumerate(found)}

    def forget(self, loop: str) -> None:
        """The loop at this path has ended."""
        for key in [key for key in self._kept if key.startswith(f"{loop}@")]:
            del self._kept[key]


def _key(path: str) -> str | None:
    """What is the same in the paths of a node in all rounds of the innermost loop around it; None outside one."""
    at = path.rfind("@")
    rest = path[at:] if at >= 0 else ""
    if "/" not in rest or "[" in rest or "#" in rest:
        return None
    return f"{path[: at + 1]}{rest[rest.index('/') :]}"

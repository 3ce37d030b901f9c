"""What the log holds beside results of items that have not ended, for whoever goes on with them: by path."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from decurion_ledger import Record
from decurion_worker.journal import EVENTS


class Notes:
    """The events of nodes that have not ended. `take` every record of the log, in order."""

    def __init__(self) -> None:
        self._records: dict[str, list[Record]] = {}
        self._inside: dict[str, set[str]] = defaultdict(set)
        """Node paths with events, by each path that holds them, themselves included."""

    def take(self, record: Record) -> None:
        """Keep an event; forget those of what a result ends."""
        if record.type in EVENTS:
            node = _node_of(record.path)
            if node not in self._records:
                self._records[node] = []
                for place in _holders(node):
                    self._inside[place].add(node)
            self._records[node].append(record)
        elif record.core is not None and self._records:
            self._forget(record.path)

    def of(self, item: str) -> tuple[Record, ...]:
        """The events at the path of an item and below it, each path's in the order of the log."""
        if not self._records:
            return ()
        return tuple(record for node in sorted(self._inside.get(item, ())) for record in self._records[node])

    def _forget(self, path: str) -> None:
        place, _, mark = path.partition("!")
        if mark not in ("", "output", "join"):
            return
        for node in tuple(self._inside.get(place, ())):
            del self._records[node]
            for holder in _holders(node):
                self._inside[holder].discard(node)
                if not self._inside[holder]:
                    del self._inside[holder]


def _node_of(path: str) -> str:
    """The node of an event: `/a` of the turn `/a#turn-0001` and of the call `/a#turn-0001.01`."""
    at = path.rfind("#")
    return path if at < 0 or "/" in path[at:] else path[:at]


def _holders(node: str) -> Iterator[str]:
    """`node`, and each path that holds it: `/a[00001]/b`, `/a[00001]`, `/a`; `/c@002/d`, `/c@002`, `/c`;
    `/e#turn-0001.01/f`, `/e#turn-0001.01`, `/e`.
    """
    yield node
    for i in range(len(node) - 1, 0, -1):
        if node[i] in "/[@#":
            yield node[:i]

"""Which runs changed, for whoever asks in one long poll: the latest state of each, not a queue of events."""

from __future__ import annotations

import asyncio


class Changes:
    """Marks runs as changed under a growing cursor. Memory is one number a run, whatever the number of changes."""

    def __init__(self) -> None:
        self.cursor = 0
        self._at: dict[str, int] = {}
        self._more = asyncio.Event()

    def mark(self, run: str) -> None:
        self.cursor += 1
        self._at.pop(run, None)
        self._at[run] = self.cursor
        self._more.set()

    def forget(self, run: str) -> None:
        self._at.pop(run, None)

    def since(self, cursor: int) -> list[str]:
        """Runs that changed after `cursor`, latest first. Costs what it answers."""
        changed = []
        for run in reversed(self._at):
            if self._at[run] <= cursor:
                break
            changed.append(run)
        return changed

    async def wait(self, cursor: int, seconds: float) -> list[str]:
        """As `since`, but waits up to `seconds` for a first change."""
        try:
            async with asyncio.timeout(seconds):
                while not (changed := self.since(cursor)):
                    self._more.clear()
                    await self._more.wait()
                return changed
        except TimeoutError:
            return self.since(cursor)  # what was marked in the turn in which the time was over

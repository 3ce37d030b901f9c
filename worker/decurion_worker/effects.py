"""Calls that must not be made twice: said before they go out, made within their leave, and never repeated blindly."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from decurion_crds.canonical import Json
from decurion_worker.errors import (
    EffectInDoubt,
    RateLimited,
    ToolMisconfigured,
    ToolRefused,
    ToolTimeout,
    ToolUnavailable,
)
from decurion_worker.journal import Journal
from decurion_worker.permits import Permit
from decurion_worker.tools.port import ToolAnswer

INTENTS = 3
"""How often an intent is said again that took too long to become durable."""


@dataclass(frozen=True, slots=True)
class Effectful:
    """The call of `tool` of `server` with `arguments`, an effect at `path`."""

    journal: Journal
    path: str
    server: str
    tool: str
    arguments: Json

    async def once(self, carry_out: Callable[[Permit], Awaitable[ToolAnswer]]) -> ToolAnswer:
        """One try. A failure is Transient only where nothing was carried out; else `EffectInDoubt`."""
        journal, path = self.journal, self.path
        permit = await self._permitted()
        try:
            answer = await carry_out(permit)
        except (ToolUnavailable, ToolTimeout) as error:
            if error.sent:
                raise self._in_doubt(str(error)) from error
            await journal.undo(path, str(error))
            raise
        except (RateLimited, ToolRefused, ToolMisconfigured) as error:
            await journal.undo(path, str(error))
            raise
        await journal.settle(path, answer.to_json())
        return answer

    async def found_out(self, seconds: float) -> ToolAnswer:
        """What came of it where an earlier runner intended it and nothing more is in the log. Raises `EffectInDoubt`
        once nothing of that runner, whose call takes at most `seconds`, can still happen.
        """
        effect = await self.journal.find_out(self.path, timeout=seconds)
        if effect.state == "done":
            return ToolAnswer.from_json(effect.answer)
        raise self._in_doubt("the runner that called it was lost")

    async def _permitted(self) -> Permit:
        journal = self.journal
        for _ in range(INTENTS):
            permit = await journal.intend(self.path, server=self.server, tool=self.tool, arguments=self.arguments)
            if permit is not None:
                return permit
            await journal.undo(self.path, "the intent became durable too late")
        raise ToolUnavailable(f"{self.path}: the ledger is too slow for effects; try again later", sent=False)

    def _in_doubt(self, why: str) -> EffectInDoubt:
        return EffectInDoubt(self.path, self.tool, self.server, why)

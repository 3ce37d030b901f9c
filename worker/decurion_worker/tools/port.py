"""The tool port: one call, one answer. Design 04, "Tools"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from decurion_crds.canonical import Json
from decurion_worker.permits import Permit


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """What a tool gave. `text` is all text that came, `value` its structured content, None where there is none.

    `failed` says that the tool itself reports a failure, which `text` describes.
    """

    text: str
    value: Json = None
    failed: bool = False

    def to_json(self) -> dict[str, Json]:
        return {"text": self.text, "value": self.value, "failed": self.failed}

    @classmethod
    def from_json(cls, value: Json) -> ToolAnswer:
        return cls(value["text"], value["value"], value["failed"])


class ToolCaller(Protocol):
    """A server whose tools can be called. Safe for any number of concurrent callers on one event loop."""

    async def call(
        self, tool: str, arguments: dict[str, Json], *, seconds: float, key: str, permit: Permit | None = None
    ) -> ToolAnswer:
        """Call once, without any retry; `key` is the same for every try of one call, and for no other call. With a
        `permit` the call goes out only while that holds: else `ToolUnavailable`, not sent.

        Raises `ToolUnavailable`, `ToolTimeout`, `RateLimited`, `ToolRefused`, `ToolResultInvalid`,
        `ToolMisconfigured`. Of the first two, `sent` says whether the server may have carried the call out.
        """

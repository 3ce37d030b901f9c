"""What a person sees on stderr while a run goes on: one bar, then how it ended and where to look."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn

from decurion_cli.places import LEDGER


def _console() -> Console:
    """Of stderr, for texts as they are: what stands in brackets or between colons is no mark-up."""
    return Console(stderr=True, highlight=False, soft_wrap=True, markup=False, emoji=False)


def _columns() -> list[ProgressColumn]:
    return [
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    ]


class RunDisplay:
    """A progress bar over the run's units. Without a terminal it says nothing until the end."""

    def __init__(self, run: str, *, enabled: bool) -> None:
        self._run = run
        self._enabled = enabled
        self.begun = False
        self._console = _console()
        self._bar = Progress(*_columns(), console=self._console, disable=not enabled)
        self._task = self._bar.add_task(f"run {run}", total=None, note="")

    def __enter__(self) -> RunDisplay:
        if self._enabled and self._console.is_terminal:
            self._bar.start()
        return self

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing is drawn meanwhile."""
        if self._enabled:
            self._bar.stop()
        try:
            yield
        finally:
            if self._enabled:
                self._bar.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A bar of a run that never began would only stand above the sentence that says why.
        self._bar.live.transient = not self.begun
        if self._bar.live.is_started:
            self._bar.stop()

    def update(self, projection: dict[str, Any]) -> None:
        if self._enabled and not self.begun:
            # Elsewhere than on a terminal a bar that was started leaves a line, so it is once there is a run.
            self._bar.start()
        self.begun = True
        done, _, total = projection["progress"].partition("/")
        running = [n["name"] for n in projection["nodes"] if n["phase"] == "Running"]
        note = projection["reason"] or ", ".join(running[:3])
        self._bar.update(self._task, completed=int(done), total=int(total), note=note)

    def ended(self, projection: dict[str, Any], ledger: str) -> None:
        """Say how the run ended, what failed, and the command that shows it node by node.

        Without progress only what failed is said.
        """
        if not self._enabled and projection["phase"] == "Succeeded":
            return
        say = self._console.print
        used = "".join(f", {part}" for part in _used(projection["usage"], projection.get("limits", {})))
        state = (projection.get("stateHash") or "")[:16]
        say(f"{projection['phase']}: {projection['committed']} records{used}, state {state}")
        if projection["phase"] != "Succeeded" and projection["message"]:
            say(f"  {projection['reason']}: {projection['message']}")
        for failure in projection["failures"]:
            say(f"  {failure['path']} [{failure['class']}] {failure['message']}")
        at = "" if ledger == LEDGER else f" --ledger {shlex.quote(ledger)}"
        path = shlex.quote(_where(projection))
        say(f"ledger: {ledger}")
        say(f"look:   decurion ledger show {self._run} {path}{at}   (paths: decurion ledger ls {self._run}{at})")


def _used(usage: Mapping[str, Any], limits: Mapping[str, Any]) -> list[str]:
    """What a run used, and of what it has limits how much it might."""
    tokens = usage.get("inputTokens", 0) + usage.get("outputTokens", 0)
    parts = [
        ("steps", usage.get("calls", 0), "model calls"),
        ("toolCalls", usage.get("toolCalls", 0), "tool calls"),
        ("tokens", tokens if "tokens" in limits else 0, "tokens"),
    ]
    shown = [
        f"{used:,}{f' of {limits[name]:,}' if name in limits else ''} {what}"
        for name, used, what in parts
        if used or name in limits
    ]
    if "costUSD" in usage or "costUSD" in limits:
        most = f" of {limits['costUSD']}" if "costUSD" in limits else ""
        shown.append(f"{usage.get('costUSD', '0')}{most} dollars")
    return shown


def _where(projection: Mapping[str, Any]) -> str:
    """The path that is worth a look: why the run failed, else the first failure that it bore, else any."""
    paths = [failure["path"] for failure in projection["failures"]]
    cause = projection["message"].partition(" ")[0].rstrip(":")
    return cause if cause in paths else paths[0] if paths else "PATH"


class Steps:
    """A progress bar over steps that have names. Without a terminal it says nothing."""

    def __init__(self, what: str, *, enabled: bool) -> None:
        console = _console()
        self._bar = Progress(
            *_columns(), console=console, disable=not (enabled and console.is_terminal), transient=True
        )
        self._task = self._bar.add_task(what, total=None, note="")

    def __enter__(self) -> Steps:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def at(self, name: str, place: int, of: int) -> None:
        """Step `name`, the one at `place` of `of`, begins."""
        self._bar.update(self._task, completed=place, total=of, note=name)

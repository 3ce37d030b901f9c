"""How a run ends: its nodes end, or are broken off; then `finally` runs, where there is one; then the log is closed.

    nodes ──▶ /!output, a failure, the run's time is up, cancel ──▶ /finally!open ──▶ finally ──▶ close
                                                        │ (when broken off, the finally of what is inside comes first)
                                                        └ Cancel, Stop, or no finally ───────────▶ close

How the nodes ended is in the record `/finally!open`. From then on only `Stop` ends the run before its `finally` does.
"""

from __future__ import annotations

from typing import cast

from decurion_crds.canonical import Json
from decurion_crds.compiled import FINALLY
from decurion_ledger import Record
from decurion_worker.engine.actions import Close, OpenFinally, Outcome
from decurion_worker.engine.finals import Finals, before, in_finally
from decurion_worker.engine.offers import Offers
from decurion_worker.engine.scopes import ScopeState
from decurion_worker.engine.state import EngineState
from decurion_worker.errors import TimedOut
from decurion_worker.failure import Failure

FINAL = f"/{FINALLY}"
FINAL_OPEN = f"{FINAL}!open"


class Ending:
    """Works on the state of one run."""

    def __init__(self, state: EngineState, finals: Finals) -> None:
        self._state = state
        self._finals = finals

    def is_over(self, path: str) -> bool:
        """Whether nothing more happens in the scope at `path`, since the nodes of the run have ended."""
        state = self._state
        if state.cut is None and state.final is None:
            return False
        if path == FINAL or path.startswith(f"{FINAL}/"):
            return False
        return state.final is not None or state.form == "Stop" or not in_finally(path)

    @property
    def _done(self) -> bool:
        """Whether the nodes have ended by themselves, with the run's output or with its failure."""
        return self._state.output_hash is not None or "!output" in self._state.root.failures

    def nodes_ended(self, outcome: Outcome, failure: Failure | None) -> None:
        """Nothing of the nodes goes on: `finally` is next, or the end."""
        state = self._state
        state.root.ended = True
        if state.graph.final is None or state.form in ("Cancel", "Stop"):
            state.decisions["close"] = Close(outcome, failure, state.output, state.output_hash)
        else:
            state.decisions[FINAL_OPEN] = OpenFinally.of(state.root, outcome, failure)

    def natural(self) -> bool:
        """Whether it is the engine alone that thinks that the nodes ended in failure: a replay may know better."""
        return self._state.cut is None and self._state.final is None and not self._done

    # ------------------------------------------------------------------ what breaks the nodes off

    def cancel(self, form: str, reason: str) -> None:
        """Somebody ends the run. What comes too late, since the nodes had ended, changes nothing; but for `Stop`."""
        state = self._state
        if state.form is not None and form != "Stop":
            return
        state.form, state.cancelled = form, state.cancelled or reason
        if form == "Stop" and (state.graph.final is not None or not self._done):
            state.decisions.pop(FINAL_OPEN, None)
            self._cut("cancelled", self._cancelled())
        elif state.final is None and not self._done:
            self._cut("cancelled", self._cancelled())

    def time_out(self) -> None:
        """The time of the run is up."""
        state = self._state
        if state.cut is None and state.final is None and not self._done:
            error = TimedOut("/", state.graph.limits.seconds or 0.0, field="limits.seconds")
            self.break_off(Failure("/", error.klass, error.code, str(error)))

    def break_off(self, failure: Failure) -> None:
        """The nodes end with `failure`, unless they have ended."""
        if self._state.cut is None and self._state.final is None and not self._done:
            self._cut("failed", failure)

    def _cancelled(self) -> Failure:
        return Failure("/", "Terminal", "Cancelled", f"the run was cancelled ({self._state.cancelled})")

    def _cut(self, outcome: Outcome, failure: Failure) -> None:
        state = self._state
        if state.final is None:
            state.cut = state.cut or (outcome, failure)
            state.root.ended = False
        stop = state.form == "Stop"
        state.offers.keep(lambda path: not (stop or self.is_over(path)))
        state.abandoned += [key for key, task in state.out.items() if stop or self.is_over(task.scope)]
        self._finals.break_off()
        self._ask_no_more()
        self.settle()

    def _ask_no_more(self) -> None:
        """Nobody is asked any more what a node that is over wanted to know."""
        for asked in list(self._state.approvals.pending()):
            if self.is_over(asked.path) or self._state.form == "Stop":
                self._state.approvals.drop(asked.path)
                asked.home.asked.pop(asked.node.name, None)

    def settle(self) -> None:
        """What is due once nobody holds any more of what was broken off."""
        state = self._state
        if state.closed is not None:
            return
        if state.final is None:
            if state.cut is not None and not state.root.ended and self._finals.unwound(self.is_over, state.cut):
                self.nodes_ended(*state.cut)
        elif state.form == "Stop" and not state.out:
            self.finished(state.final)

    # ------------------------------------------------------------------ finally

    def opened(self, record: Record, value: Json) -> ScopeState:
        """`finally` has begun; the scope of its nodes."""
        state = self._state
        state.decisions.pop("close", None)
        state.root.ended = True
        state.offers = Offers()
        state.final = state.scopes[FINAL] = ScopeState(
            path=FINAL,
            plan=state.plans[FINALLY],
            input=state.root.input,
            depth=1,
            before=before(state.root, record, value, facts=state.facts),
        )
        self._ask_no_more()
        return state.final

    def finished(self, final: ScopeState) -> None:
        """Nothing of `finally` goes on. A run whose nodes succeeded fails with it, or was stopped in it."""
        state = self._state
        assert final.before is not None
        outcome, failure = cast(Outcome, final.before.outcome), final.before.failure
        if outcome == "succeeded" and final.failure is not None:
            outcome, failure = "failed", final.failure
        elif outcome == "succeeded" and final.left > 0:
            outcome, failure = "cancelled", self._cancelled()
        final.ended = True
        state.decisions["close"] = Close(outcome, failure, state.output, state.output_hash)

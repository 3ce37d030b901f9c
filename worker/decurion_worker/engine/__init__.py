"""The pure engine: durable records in, work and decisions out."""

from decurion_worker.engine.actions import (
    Applied,
    Close,
    Decide,
    Decision,
    EndScope,
    GiveUp,
    Join,
    OpenFinally,
    Overspent,
    RaceLost,
    RaceWon,
    Spent,
    Step,
    Task,
    failure_of,
)
from decurion_worker.engine.approvals import Asked
from decurion_worker.engine.engine import Engine
from decurion_worker.engine.opened import BranchStatus, Opened
from decurion_worker.engine.scopes import NodeStatus, RunTime, ScopeState
from decurion_worker.failure import Failure

__all__ = [
    "Applied",
    "Asked",
    "BranchStatus",
    "Close",
    "Decide",
    "Decision",
    "EndScope",
    "Engine",
    "Failure",
    "GiveUp",
    "Join",
    "NodeStatus",
    "OpenFinally",
    "Opened",
    "Overspent",
    "RaceLost",
    "RaceWon",
    "RunTime",
    "ScopeState",
    "Spent",
    "Step",
    "Task",
    "failure_of",
]

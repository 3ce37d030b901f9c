"""Where runners live. One port with three verbs; `local` keeps them in this process, `ray` in actors."""

from decurion_worker.executors.local import LocalExecutor
from decurion_worker.executors.port import Executor

__all__ = ["Executor", "LocalExecutor"]

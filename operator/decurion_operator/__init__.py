"""The operator: graphs and runs of a cluster, compiled, handed to drivers and reported back.

`handlers` imports kopf and `gateway` the Kubernetes client; both come with the extra `operator`.
"""

from decurion_operator.errors import OperatorError, StartError
from decurion_operator.main import Operator, run_operator
from decurion_operator.settings import OperatorSettings

__all__ = ["Operator", "OperatorError", "OperatorSettings", "StartError", "run_operator"]

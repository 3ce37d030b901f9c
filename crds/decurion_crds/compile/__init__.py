"""The graph compiler: `compile_graph` takes a `TaskGraph` and gives a `CompiledGraph`, or what is wrong with it."""

from decurion_crds.compile.builtin import BUILTIN
from decurion_crds.compile.compiler import Compilation, compile_graph
from decurion_crds.compile.refs import MAX_INSTANCES, Module
from decurion_crds.compile.report import Positions
from decurion_crds.expressions.check import Checker, CheckFailed

__all__ = ["BUILTIN", "MAX_INSTANCES", "CheckFailed", "Checker", "Compilation", "Module", "Positions", "compile_graph"]

"""What an expression may see: the environment of a scope, cut down to the paths that are read.

Pure: no clock, no randomness, no input or output.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from decurion_crds.canonical import Json
from decurion_crds.compiled import Scope
from decurion_crds.wide import Appended, ListRef, WideDict, WideList, has_refs

MISSING: Any = object()


def prune(environment: Mapping[str, Json], reads: Iterable[str]) -> dict[str, Json]:
    """The part of `environment` that the dotted paths `reads` need, nested as it was.

    A path that leads through a value that is no object, or to a member that is absent, brings what there is.
    """
    cut: dict[str, Json] = {}
    for read in reads:
        source: Json = environment
        target = cut
        steps = read.split(".")
        for i, step in enumerate(steps):
            value = source.get(step, MISSING) if isinstance(source, dict) else MISSING
            if value is MISSING:
                break
            if i == len(steps) - 1 or not isinstance(value, dict):
                target[step] = value
                break
            # A dict is shared with the source when a shorter path brought it whole: nothing is missing then.
            below = target.setdefault(step, {})
            if below is value:
                break
            source, target = value, below
    return cut


def channel_values(scope: Scope, writes: Mapping[str, Mapping[str, Json]]) -> dict[str, Json]:
    """The channels of a scope, given `writes` as channel → (node → value), whatever order the nodes finished in.

    `replace`: the value of the last writer in topological order. `append`: the lists of all writers in file order,
    behind `initial`; `Appended` while one of them is kept elsewhere. A channel nobody wrote has its `initial`, `append`
    without one the empty list.
    """
    values: dict[str, Json] = {}
    for channel in scope.channels:
        written = writes.get(channel.name, {})
        if channel.merge == "append":
            parts = [channel.initial or [], *(written[n.name] for n in scope.nodes if n.name in written)]
            if any(isinstance(part, ListRef) for part in parts):
                values[channel.name] = Appended(tuple(parts))
            else:
                rows = [row for part in parts for row in part]
                values[channel.name] = WideList(rows) if any(map(has_refs, parts)) else rows
        else:
            last = [name for name in scope.order if name in written]
            values[channel.name] = written[last[-1]] if last else channel.initial
    return values


def _object(members: dict[str, Json]) -> dict[str, Json]:
    return WideDict(members) if any(map(has_refs, members.values())) else members


def environment(
    scope: Scope,
    *,
    input: Json,
    outputs: Mapping[str, Json],
    writes: Mapping[str, Mapping[str, Json]],
    facts: Mapping[str, Json],
    reads: Iterable[str],
) -> dict[str, Json]:
    """The environment of a node: `input`, `nodes.<name>.output`, `state` and `run`, cut to `reads`.

    Costs what is read, not what there is: it is made once for every node.
    """
    reads = tuple(reads)
    named = dict.fromkeys(read.split(".", 2)[1] for read in reads if read.startswith("nodes."))
    whole = {
        "input": input,
        "nodes": {name: _object({"output": outputs[name]}) for name in named if name in outputs},
        "state": _object(channel_values(scope, writes)) if any(read.startswith("state") for read in reads) else {},
        "run": facts,
    }
    return prune(whole, reads)

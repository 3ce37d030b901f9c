"""What an expression may see: the environment of a scope, cut down to the paths that are read.

Pure: no clock, no randomness, no input or output.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from decurion_crds.canonical import Json
from decurion_crds.compiled import Channel, Scope
from decurion_crds.errors import MergeRefused
from decurion_crds.merging import INITIAL, LISTS, NUMBERS, in_order, number, one_list
from decurion_crds.wide import ListRef, Merged, Unmerged, WideDict, WideList, has_refs

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


def channel_values(
    scope: Scope, writes: Mapping[str, Mapping[str, Json]], names: Collection[str] | None = None
) -> dict[str, Json]:
    """The channels of a scope, or those of `names`, given `writes` as channel → (node → value), whatever order the
    nodes finished in.

    `replace`: the value of the last writer in topological order. Other rules go by the order of writers in the file, or
    that of the channel's `order`, behind `initial`. A list is `Merged` while a part of it is kept elsewhere; what the
    rule refuses is `Unmerged`. A channel nobody wrote has its `initial`, or what its rule begins with.
    """
    return {
        channel.name: _channel_value(scope, channel, writes.get(channel.name, {}))
        for channel in scope.channels
        if names is None or channel.name in names
    }


def _channel_value(scope: Scope, channel: Channel, written: Mapping[str, Json]) -> Json:
    rule = channel.merge
    initial = INITIAL.get(rule) if channel.initial is None else channel.initial
    if rule == "replace":
        last = [name for name in scope.order if name in written]
        return written[last[-1]] if last else initial
    parts = [] if initial is None else [("initial", initial)]
    names = in_order((n.name for n in scope.nodes if n.name in written), channel.order)
    parts += [(name, written[name]) for name in names]
    try:
        if rule in NUMBERS:
            return number(rule, channel.name, [part for _, part in parts], channel.schema_)
        if rule in LISTS and any(isinstance(part, ListRef) for _, part in parts):
            return Merged(channel.name, rule, channel.key, channel.prefer, tuple(parts))
        if rule != "append" and any(has_refs(item) for _, part in parts for item in part):
            return Merged(channel.name, rule, channel.key, channel.prefer, tuple(parts))
        rows = one_list(channel.name, rule, parts, key=channel.key, prefer=channel.prefer)
    except MergeRefused as refused:
        return Unmerged(str(refused))
    return WideList(rows) if any(has_refs(part) for _, part in parts) else rows


def _read_channels(reads: Iterable[str]) -> Collection[str] | None:
    """The channels that paths lead to; None for all of them."""
    found = {read.split(".", 2)[1] if "." in read else "" for read in reads if read.partition(".")[0] == "state"}
    return None if "" in found else found


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
    channels: Mapping[str, Json] | None = None,
) -> dict[str, Json]:
    """The environment of a node: `input`, `nodes.<name>.output`, `state` and `run`, cut to `reads`.

    `channels` stands for what `writes` come to.

    Costs what is read, not what there is: it is made once for every node.
    """
    reads = tuple(reads)
    named = dict.fromkeys(read.split(".", 2)[1] for read in reads if read.startswith("nodes."))
    if channels is None:
        channels = channel_values(scope, writes, _read_channels(reads))
    whole = {
        "input": input,
        "nodes": {name: _object({"output": outputs[name]}) for name in named if name in outputs},
        "state": _object(dict(channels)),
        "run": facts,
    }
    return prune(whole, reads)

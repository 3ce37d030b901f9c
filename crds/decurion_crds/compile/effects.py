"""Channels and conditions: what two nodes may not do at once, and which nodes can never run."""

from __future__ import annotations

import ast
from collections.abc import Collection

from decurion_crds.compile.channels import fitting_rules
from decurion_crds.compile.draft import NodeDraft, ScopeDraft
from decurion_crds.compile.order import Order, channels_read, writers
from decurion_crds.compile.report import Report
from decurion_crds.findings import listed

MOST_NAMED = 5
"""Nodes that a message names."""


def check_races(scope: ScopeDraft, order: Order, report: Report) -> None:
    """Two unordered writers of a channel without a merge rule, and readers that are unordered with a writer."""
    for channel in scope.channels.values():
        names = writers(scope, channel.name)
        raced: set[tuple[str, str]] = set()
        if channel.merge.rule == "replace":
            for i, second in enumerate(names):
                others = [first for first in names[:i] if order.unordered(first, second)]
                if others:
                    raced |= {pair for first in others for pair in ((first, second), (second, first))}
                    spot = scope.nodes[second].spot.below("writes", channel.name)
                    rules = fitting_rules(channel.schema)
                    merge = f", or declare merge: {listed(rules, last='or')} for the channel" if rules else ""
                    who = _some([*others, second])
                    message = (
                        f"{who} write {channel.name} in no order, so the result depends on time; order them by "
                        f"after{merge}"
                    )
                    report.add("WRITE-RACE", spot, message)
        for node in scope.nodes.values():
            others = [n for n in names if order.unordered(n, node.name) and (n, node.name) not in raced]
            _check_reader(scope, node, channel.name, others, report)


def _check_reader(scope: ScopeDraft, node: NodeDraft, channel: str, unordered: list[str], report: Report) -> None:
    if not unordered:
        return
    for site in node.scope_sites():
        if channel in channels_read(scope, site):
            others = " and ".join(unordered)
            message = (
                f"{node.name} reads {channel} while {others} may be writing it; name {others} in after, or "
                f"{node.name} in the after of {others}"
            )
            report.add("READ-RACE", site.spot, message)
            return


def check_reachable(scope: ScopeDraft, order: Order, report: Report) -> None:
    """Nodes whose `when` is a constant that is false, those that come only after such or after nodes of other cases."""
    dead: set[str] = set()
    for name in order.names:
        node = scope.nodes[name]
        if node.when is not None and _is_false(node.when.parsed.tree.body):
            spot, why = node.when.spot, "its when is always false; remove the node, or write a condition"
        elif node.choice in dead and node.chosen_at is not None:
            spot, why = node.chosen_at, f"{node.choice}, which chooses it, never does; remove one of them"
        elif node.after and all(other in dead for other in node.after):
            spot, why = node.spot.below("after"), "it comes only after nodes that never do; remove it, or its after"
        elif name in order.conditions.impossible:
            spot = node.spot.below("after")
            why = "it comes only after nodes of other cases; name it in their case, or remove its after"
        else:
            continue
        dead.add(name)
        scope.doubtful = True
        report.add("UNREACHABLE", spot, f"{name} can never run: {why}")


def _is_false(tree: ast.expr) -> bool:
    return isinstance(tree, ast.Constant) and not tree.value


def check_unused(
    scope: ScopeDraft, report: Report, *, files: Collection[str] = (), final: ScopeDraft | None = None
) -> None:
    """Warnings: nodes whose output nobody reads, names of `with` that the block does not read, idle channels.

    `files` are nodes that change files. `final` is the scope of the graph's `finally`, which reads too; what that does
    is wanted for itself.
    """
    if scope.outer is not None:
        for node in scope.nodes.values():
            _check_names(node, report)
        return
    nodes = [*scope.nodes.values(), *(final.nodes.values() if final is not None else ())]
    sites = [site for node in nodes for site in node.scope_sites()]
    sites += scope.output.values()
    read = {name for site in sites for name in site.reads("nodes")}
    read |= {name for node in scope.nodes.values() for name in node.after}
    for node in scope.nodes.values():
        wanted = node.model.writes or node.kind == "switch" or node.name in files
        if node.name not in read and not wanted and not scope.refused:
            message = f"nothing reads nodes.{node.name}.output; read it, or remove the node"
            report.add("UNUSED", node.spot, message, severity="warning")
        _check_names(node, report)
    heard = {channel for site in sites for channel in channels_read(scope, site)}
    for channel in scope.channels.values():
        if channel.name not in heard:
            message = f"nothing reads state.{channel.name}; read it, or remove the channel"
            report.add("UNUSED", channel.spot, message, severity="warning")
        elif not writers(scope, channel.name) and channel.initial is None:
            message = f"nothing writes {channel.name}, and it has no initial value; write it, or remove the channel"
            report.add("UNUSED", channel.spot, message, severity="warning")


def _check_names(node: NodeDraft, report: Report) -> None:
    if node.broken or node.kind in ("map", "graph", "loop", "switch"):
        return
    used = {path.partition(".")[0] for site in node.work_sites() for path in site.parsed.expr.reads}
    used |= node.code.reads if node.code is not None else frozenset()
    for name in node.names:
        if name not in used:
            field = "load" if name in node.model.load else "with"
            message = f"{node.kind} does not use {name}; use it, or remove it from {field}"
            report.add("UNUSED", node.spot.below(field, name), message, severity="warning")


def _some(names: list[str]) -> str:
    """The last of many names in words."""
    return listed(names) if len(names) <= MOST_NAMED else f"{listed(names[-MOST_NAMED:])}, and more,"

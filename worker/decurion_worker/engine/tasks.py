"""Making tasks: what a runner is given of the state of a scope."""

from __future__ import annotations

from collections.abc import Mapping

from decurion_crds.canonical import Json
from decurion_worker.engine.actions import Task
from decurion_worker.engine.environment import environment
from decurion_worker.engine.files import left_by, opened_with, seen_by
from decurion_worker.engine.opened import Opened
from decurion_worker.engine.results import arms_root
from decurion_worker.engine.rounds import Round
from decurion_worker.engine.scopes import ScopeState
from decurion_worker.link import ItemKind, WorkItem

SUFFIX: dict[ItemKind, str] = {"node": "", "writes": "!writes", "otherwise": "!otherwise", "join": "!join"}


def key_of(scope: ScopeState, kind: ItemKind, name: str) -> str:
    """The key of a task of a scope that the driver hands out node by node."""
    if kind == "round":
        return f"{scope.path}/{name}@{scope.opened[name].round + 1:03d}!open"
    if kind in ("output", "result"):
        return f"{scope.path or '/'}!{kind}"
    return f"{scope.path}/{name}{SUFFIX[kind]}"


def scope_task(scope: ScopeState, kind: ItemKind, name: str, *, facts: Mapping[str, Json]) -> Task:
    """A task of one node of a scope, or of its output expressions."""
    key, template = key_of(scope, kind, name), scope.plan.name

    def seen(reads: tuple[str, ...]) -> dict[str, Json]:
        return _seen(scope, reads, facts)

    if kind in ("output", "result"):
        names = {read.split(".")[1] for read in scope.plan.output_reads if read.startswith("nodes.")}
        env = seen(scope.plan.output_reads)
        return Task(key, kind, scope.path, "", env, template, scope.ends(names), False, {}, left_by(scope))
    node = scope.scope.by_name[name]
    if kind == "round":
        return _round_task(key, template, scope.opened[name], seen(node.reads))
    if kind == "join":
        return _join_task(scope, key, template, scope.opened[name])
    if kind == "node":
        done = dict(scope.calls.get(name, {}))
        parents, skips = scope.parents(node), scope.skips(node)
        return Task(key, kind, scope.path, name, seen(node.reads), template, parents, skips, done, seen_by(scope, name))
    env = seen(node.reads)
    if kind == "writes":
        env = {"output": scope.outputs[name]} | env
    return Task(key, kind, scope.path, name, env, template, scope.ends([name]), False, {})


def _join_task(scope: ScopeState, key: str, template: str, opened: Opened) -> Task:
    env: dict[str, Json] = {
        "status": bytes(opened.status),
        "slots": opened.slots.tobytes(),
        "keys": opened.keys,
        "failures": opened.rows(),
        "arms": counts(opened),
    }
    parents = ((f"{opened.path}!open", opened.core),)
    return Task(key, "join", scope.path, opened.node.name, env, template, parents, False, {}, opened_with(opened))


def _round_task(key: str, template: str, opened: Opened, seen: Mapping[str, Json]) -> Task:
    last = opened.last
    assert last is not None
    told = Round(opened.round, opened.base, last.output, last.core, opened.best, last.files).to_json()
    parents = ((f"{opened.branch_path(0)}!output", last.core),)
    env = {**told, "env": dict(seen)}
    return Task(key, "round", opened.home.path, opened.node.name, env, template, parents, False, {})


def loop_task(opened: Opened, *, facts: Mapping[str, Json]) -> Task:
    """All rounds of a loop whose template is leaf, with what is committed of them."""
    home = opened.home
    seen = _seen(home, opened.node.reads, facts)
    return Task(
        key=opened.path,
        kind="loop",
        scope=opened.path,
        node=opened.node.name,
        env={"opening": {"input": opened.base}, "env": seen},
        template=home.plan.name,
        parents=((f"{opened.path}!open", opened.core),),
        skip=False,
        done=dict(opened.partial.get(0, {})),
        files=opened_with(opened),
    )


def _seen(scope: ScopeState, reads: tuple[str, ...], facts: Mapping[str, Json]) -> dict[str, Json]:
    """What expressions in a scope see; in `finally` also what the nodes before it came to."""
    if (before := scope.before) is not None:
        return environment(
            scope.scope,
            input=scope.input,
            outputs={**before.outputs, **scope.outputs},
            writes={},
            facts=before.facts,
            reads=reads,
            channels=before.channels,
        )
    return environment(
        scope.scope, input=scope.input, outputs=scope.outputs, writes=scope.writes, facts=facts, reads=reads
    )


def counts(opened: Opened) -> dict[str, Json]:
    """What a join says of its arms."""
    return {
        "count": opened.total,
        "ok": opened.ok,
        "failed": len(opened.failures),
        "root": arms_root(opened.ended_arms()),
    }


def branch_task(opened: Opened, index: int) -> Task:
    """A whole leaf branch, or graph, with what is committed of it."""
    path = opened.branch_path(index)
    return Task(
        key=path,
        kind="branch",
        scope=path,
        node="",
        env={"input": opened.branch_input(index)},
        template=opened.template,
        parents=((f"{opened.path}!open", opened.core),),
        skip=False,
        done=dict(opened.partial.get(index, {})),
        files=opened_with(opened),
    )


def task_of(item: WorkItem) -> Task:
    """The task that a work item was made of, without what is committed of it."""
    if item.kind in ("branch", "loop"):
        key = item.scope
    elif item.kind == "round":
        key = f"{item.scope}/{item.node}@{item.env['round'] + 1:03d}!open"
    elif item.kind in ("output", "result"):
        key = f"{item.scope or '/'}!{item.kind}"
    else:
        key = f"{item.scope}/{item.node}{SUFFIX[item.kind]}"
    return Task(key, item.kind, item.scope, item.node, item.env, item.template, item.parents, item.skip, {})

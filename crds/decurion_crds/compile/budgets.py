"""Limits: what they come to where one lies inside another, and what is refused of them.

A scope inside another may use no more than what is around it leaves, so a limit above one around it says nothing true.
Costs follow from prices: where they are limited, every model that is asked has to have one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from decurion_crds.compile.draft import GraphDraft, NodeDraft, ScopeDraft
from decurion_crds.compile.fallbacks import chain
from decurion_crds.compile.refs import OWN, Env, inside, instance_name
from decurion_crds.compile.report import Report, Spot
from decurion_crds.compiled import Limits, Node
from decurion_crds.v1alpha1 import LLM
from decurion_crds.v1alpha1.limits import AgentLimits, dollars, nano
from decurion_crds.v1alpha1.limits import Limits as GivenLimits

FIELDS = {"tokens": "tokens", "nanoUSD": "costUSD", "steps": "steps", "toolCalls": "toolCalls", "seconds": "seconds"}
"""The limits as they are compiled, and as they are written."""
MAX_PLACES = 10_000
"""Scopes under different limits that are looked into; a graph that comes to more is refused for its size."""


@dataclass(frozen=True, slots=True)
class _Around:
    """The least of each limit around a place, with who has it."""

    least: Mapping[str, tuple[float, str]] = field(default_factory=dict)

    def within(self, limits: Limits | None, owner: str) -> _Around:
        own = {name: (amount, owner) for name, amount in _amounts(limits).items()}
        return _Around({**self.least, **{name: min(own[name], self.least.get(name, own[name])) for name in own}})

    @property
    def key(self) -> tuple[tuple[str, float], ...]:
        return tuple(sorted((name, amount) for name, (amount, _) in self.least.items()))


def limits_of(given: GivenLimits | AgentLimits | None) -> Limits | None:
    """Limits as they are counted; None where nothing is limited."""
    if given is None:
        return None
    cost = nano(given.cost_usd) if given.cost_usd is not None else None
    found = Limits(
        tokens=given.tokens, nanoUSD=cost, steps=given.steps, toolCalls=given.tool_calls, seconds=given.seconds
    )
    return None if found == Limits() else found


def least(one: Limits | None, other: Limits | None) -> Limits | None:
    """The lower of each limit."""
    if one is None or other is None:
        return one or other
    amounts = _amounts(one), _amounts(other)
    found = {name: min(some[name] for some in amounts if name in some) for name in {**amounts[0], **amounts[1]}}
    return Limits.model_validate(found)


def agent_limits(draft: NodeDraft) -> Limits | None:
    """Those of an agent as it is written in a node, or in the Agent that the node names; `steps` included."""
    block = draft.model.agent
    if block is None or draft.agent is None or draft.agent.spec is None:
        return None
    return limits_of(block.limits or draft.agent.spec.limits)


def node_limits(draft: NodeDraft) -> Limits | None:
    """Those of a node as it is compiled: what its own agent keeps, and its time, stand there."""
    own = limits_of(draft.model.limits)
    if draft.kind == "agent":
        whole = least(own, agent_limits(draft))
        if draft.agent is None or not any(draft.agent.uses()) or whole is None:
            return None
        # What its tools use beside its own turns. A step of its own is none of theirs.
        found = whole.model_copy(update={"seconds": None, "steps": own.steps if own is not None else None})
        return None if found == Limits() else found
    if own is None or draft.kind == "llm":
        return own
    found = own.model_copy(update={"seconds": None})
    return None if found == Limits() else found


def seconds(draft: NodeDraft, default: float, body: ScopeDraft | None) -> float:
    """The time of a node, or of one try of it."""
    given = draft.model.timeout_seconds
    times = [default if given is None else given]
    if draft.kind not in ("llm", "agent") and draft.model.limits is not None:
        times.append(draft.model.limits.seconds or times[0])
    if draft.kind == "graph" and body is not None and body.limits is not None:
        times.append(body.limits.seconds or times[0])
    return min(times)


def watched(node: Node) -> bool:
    """Whether the driver watches limits of a node: what it runs is then handed out step by step."""
    return bool(node.inner) and node.limits is not None


# ---------------------------------------------------------------------------- what is refused


def check_budgets(draft: GraphDraft, given: GivenLimits | None, report: Report) -> None:
    """That no limit is above one around it, and that models whose costs are limited have prices."""
    whole = _Around().within(limits_of(given), f"graph {draft.name}")
    _check_limits(Spot(("spec",), "").below("limits"), given, _Around(), report)
    due: deque[tuple[ScopeDraft, Env, _Around]] = deque([(draft.root, OWN, whole)])
    if draft.root.final is not None:
        due.append((draft.root.final, OWN, _Around()))
    seen: set[tuple[str, tuple[tuple[str, float], ...]]] = set()
    while due:
        scope, env, around = due.popleft()
        key = (instance_name(scope, env), around.key)
        if key in seen or len(seen) == MAX_PLACES:
            continue
        seen.add(key)
        for node in scope.nodes.values():
            due.extend(_check_node(draft, scope, node, env, around, report))


def _check_node(
    draft: GraphDraft, scope: ScopeDraft, node: NodeDraft, env: Env, around: _Around, report: Report
) -> Iterator[tuple[ScopeDraft, Env, _Around]]:
    """Check a node; the scopes that it runs, with what is around them."""
    _check_limits(node.spot.below("limits"), node.model.limits, around, report)
    inner = around.within(limits_of(node.model.limits), node.spot.path)
    own = agent_limits(node)
    if node.model.agent is not None:
        apart = node.model.agent.limits is None
        spot = node.spot.below("agent", "ref") if apart else node.spot.below("agent", "limits")
        given = node.model.agent.limits
        if given is None and node.agent is not None and node.agent.spec is not None:
            given = node.agent.spec.limits
        _check_limits(spot, given, inner, report, alone=apart)
        inner = inner.within(own, node.spot.path)
    if "nanoUSD" in inner.least:
        _check_price(draft, node, env, inner.least["nanoUSD"][1], report)
    for use in node.uses():
        body = draft.scopes[use.scope]
        apart = body.graph != scope.graph
        spot = use.spot if apart else body.spot.below("limits")
        _check_limits(spot, body.limits, inner, report, alone=apart)
        owner = use.shown
        below = inside(use, env)
        yield body, below, inner.within(limits_of(body.limits), owner)
        if body.final is not None:
            yield body.final, below, inner


def _check_limits(
    spot: Spot, given: GivenLimits | AgentLimits | None, around: _Around, report: Report, *, alone: bool = False
) -> None:
    """`alone`: `spot` names what has the limits, and does not hold them."""
    for name, amount in _amounts(limits_of(given)).items():
        most, owner = around.least.get(name, (amount, ""))
        if amount > most:
            written = FIELDS[name]
            message = (
                f"limits.{written} is {_shown(name, amount)}, above the {_shown(name, most)} of {owner} around it, "
                "which end it before; lower it, or raise the other"
            )
            report.add("BUDGET", spot if alone else spot.below(written), message)


def _check_price(draft: GraphDraft, node: NodeDraft, env: Env, owner: str, report: Report) -> None:
    if node.model.llm is not None:
        ref, spot = node.model.llm.ref, node.spot.below("llm", "ref")
    elif node.agent is not None and node.agent.spec is not None and node.model.agent is not None:
        ref = node.agent.spec.model
        spot = node.spot.below("agent", "model" if node.model.agent.model is not None else "ref")
    else:
        return
    apart = node.agent is not None and node.agent.apart
    name = ref if apart else env.get(ref, ref)
    for one in chain(name, draft.resources["LLM"]):
        found = draft.resources["LLM"].get(one)
        if isinstance(found, LLM) and found.spec.price is None:
            what = f"LLM {one}" if one == name else f"LLM {one}, which is asked when {name} cannot answer,"
            message = (
                f"costs are limited by limits.costUSD of {owner}, and the {what} has no price; add price to it, or "
                "limit tokens instead"
            )
            report.add("BUDGET", spot, message)


def _amounts(limits: Limits | None) -> dict[str, float]:
    return {} if limits is None else dict(limits.to_json())


def _shown(name: str, amount: float) -> str:
    return dollars(int(amount)) if name == "nanoUSD" else f"{amount:,.12g}" if amount % 1 else f"{int(amount):,}"

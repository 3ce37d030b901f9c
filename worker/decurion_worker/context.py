"""What a runner knows of one run while it works on it: the graph, its models, validators and secrets."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Protocol, TypeVar

from decurion_crds.canonical import Json, canonical, digest
from decurion_crds.compiled import AgentTool, CompiledGraph, Expr, Node, Schema, Scope, Text, ToolCall
from decurion_crds.errors import MergeRefused
from decurion_crds.expressions import Evaluator, ExpressionFailed
from decurion_crds.secrets import secret_entries
from decurion_crds.values import Validator, normalise
from decurion_crds.wide import has_refs
from decurion_ledger import Seal, Store, Values
from decurion_ledger.errors import ValueTooWide
from decurion_ledger.patience import Patience, SystemClock, patiently
from decurion_ledger.workspace import Draft
from decurion_worker import wide
from decurion_worker.errors import SecretMissing, WorkError
from decurion_worker.failure import HIDDEN, Failure
from decurion_worker.files import RunFiles
from decurion_worker.journal import Journal
from decurion_worker.link import Done, WorkItem
from decurion_worker.models import open_model
from decurion_worker.slots import ModelSlots, SlottedModel
from decurion_worker.sources import Sources
from decurion_worker.tools import ToolCaller, ToolServers
from decurion_worker.wall_clock import utc_now

if TYPE_CHECKING:
    from decurion_worker.drawers import Drawers

T = TypeVar("T")
SOURCE_SECONDS = 3600.0
"""The longest that one file is read, or one folder listed, in seconds."""


class RunContext:
    """One run on one runner.

    `store` is where values too large for a record go; `sources` is what `itemsFrom` and `load` read from.
    `secret_patience` is how long a node waits for its secret, in seconds; `store_patience` is how long the writing and
    reading of values and of sources is repeated. `now` is the wall clock, by which time-outs are counted that a runner
    counts itself.
    `seal` is the key of a run with sensitive values.
    """

    def __init__(
        self,
        *,
        run: str,
        graph: CompiledGraph,
        seed: str,
        clock: str,
        facts: Mapping[str, Json],
        store: Store,
        sources: Sources,
        evaluator: Evaluator,
        slots: ModelSlots,
        tools: ToolServers,
        secret_patience: float = 30.0,
        store_patience: Patience | None = None,
        now: Callable[[], datetime] = utc_now,
        seal: Seal | None = None,
    ) -> None:
        self.run = run
        self.now = now
        self.graph = graph
        self.seed = seed
        self.clock = clock
        self.facts = dict(facts)
        self.store = store
        self.values = Values(store, run, patience=store_patience, seal=seal)
        self._sealing: RunContext | None = None
        self.files = RunFiles(graph, store, run, patience=store_patience)
        self._sources = sources
        # A file takes as long as its size wants: each request to a store has bounds of its own.
        self._source_patience = replace(store_patience or Patience(), attempt=SOURCE_SECONDS)
        self.evaluator = evaluator
        self._slots = slots
        self._tools = tools
        self._patience = secret_patience
        self._secrets: dict[tuple[str, str], str] = {}
        self._secrets_came = asyncio.Event()
        self._models: dict[str, SlottedModel] = {}
        self._validators: dict[str, Validator] = {}
        self._hashes: dict[int, tuple[Schema, str]] = {}
        self._lists: dict[int, Schema] = {}
        self._asking: dict[int, bool] = {}

    def view(self, sealed: bool) -> RunContext:
        """The same run, whose values are encrypted when they are written, if they are to be."""
        if not sealed:
            return self
        if self._sealing is None:
            self._sealing = copy.copy(self)
            self._sealing.values = self.values.sealing()
        return self._sealing

    def scope(self, template: str) -> Scope:
        return self.graph.templates[template] if template else self.graph.root

    def waits(self, item: WorkItem) -> bool:
        """Whether an item waits for others, such as a model or the store, and does not only compute."""
        if item.kind == "branch":
            return self._asks(self.scope(item.template))
        node = self.scope(item.template).by_name.get(item.node)
        if item.kind == "loop" and node is not None:
            return self._asks(self.scope(node.template or ""))
        return node is None or _waits(node) or item.kind == "join"

    def _asks(self, scope: Scope) -> bool:
        found = self._asking.get(id(scope))
        if found is None:
            inner = (self.graph.templates[node.template] for node in scope.nodes if node.template)
            found = any(_waits(node) for node in scope.nodes) or any(map(self._asks, inner))
            self._asking[id(scope)] = found
        return found

    def validator(self, schema: Schema) -> Validator:
        """The compiled validator of one of the graph's schemas; compiled once."""
        key = self.schema_hash(schema)
        found = self._validators.get(key)
        if found is None:
            found = self._validators[key] = Validator(schema)
        return found

    def schema_hash(self, schema: Schema) -> str:
        """The hash of a schema. Its identity stands for it, so it is kept: another one must never get its address."""
        found = self._hashes.get(id(schema))
        if found is None:
            found = self._hashes[id(schema)] = (schema, schema_hash(schema))
        return found[1]

    def list_of(self, items: Schema) -> Schema:
        """The schema of a list of what one of the graph's schemas describes; the same one each time."""
        found = self._lists.get(id(items))
        if found is None:
            found = self._lists[id(items)] = {"type": "array", "items": items}
        return found

    async def source(self, request: Callable[[Sources], Awaitable[T]]) -> T:
        """What a request to the sources gives, repeated while their store does not answer.

        Raises what the request raises; a `StoreError` when the store is away for longer than the patience.
        """
        sources = self._sources
        return await patiently(lambda: request(sources), patience=self._source_patience, clock=SystemClock())

    async def evaluate(
        self, exprs: Mapping[str, Expr], env: Mapping[str, Json], *, seconds: float | None = None
    ) -> dict[str, Json]:
        """The values of expressions by name; wide lists that they only hand on stay references.

        Raises `ExpressionFailed`, also for a list too wide to load, and for a channel whose writes cannot be merged.
        """
        if not wide.touches(exprs, env):
            return await self.evaluator.expressions(exprs, env, seconds=seconds)
        bare = {name: expr for name, expr in exprs.items() if expr.path is not None}
        rest = {name: expr for name, expr in exprs.items() if expr.path is None}
        try:
            near = await wide.handed_on(self.values, bare, env)
        except MergeRefused as error:
            raise ExpressionFailed(str(error), name=next(iter(bare))) from error
        values = await self.evaluator.expressions(bare, near)
        values |= await self.evaluator.expressions(rest, await self._in_place(rest, env), seconds=seconds)
        return {name: values[name] for name in exprs}

    async def render(self, text: Text, env: Mapping[str, Json]) -> str:
        """A text with its expressions in place. Raises `ExpressionFailed`."""
        exprs = {str(i): part for i, part in enumerate(text.parts) if isinstance(part, Expr)}
        return await self.evaluator.render(text, await self._in_place(exprs, env))

    async def load(self, value: Json, *, name: str) -> Json:
        """`value` with its wide lists in memory. Raises `ExpressionFailed` for what is too wide."""
        try:
            return await self.values.load(value)
        except (ValueTooWide, MergeRefused) as error:
            raise ExpressionFailed(str(error), name=name) from error

    async def _in_place(self, exprs: Mapping[str, Expr], env: Mapping[str, Json]) -> Mapping[str, Json]:
        """`env` with all that `exprs` read. Raises `ExpressionFailed` for what is too wide."""
        if not wide.touches(exprs, env):
            return env
        try:
            return await wide.resolved(self.values, exprs, env)
        except (ValueTooWide, MergeRefused) as error:
            raise ExpressionFailed(str(error), name=next(iter(exprs))) from error

    async def checked(self, schema: Schema, value: Json) -> Json:
        """`value` in its declared types. Raises `OutputMismatch`, `ValueRefused`, `ValueTooWide`."""
        if has_refs(value):
            return await wide.checked(self.values, schema, value)
        normal = normalise(value, schema)
        self.validator(schema).check(normal)
        return normal

    def give_secrets(self, values: Mapping[tuple[str, str], str]) -> None:
        self._secrets.update(values)
        self._secrets_came.set()

    async def model(self, name: str) -> SlottedModel:
        """The model behind the `LLM` resource `name`, opened at first use.

        Raises `SecretMissing` when its secret has not come in time.
        """
        found = self._models.get(name)
        if found is not None:
            return found
        spec = self.graph.llms[name]
        for wanted in sorted(secret_entries(spec)):
            await self._wait_for(wanted)
        found = self._models.get(name)
        if found is None:
            chat = open_model(name, spec, secrets=self._secrets)
            found = self._models[name] = SlottedModel(chat, self._slots.of(spec), self._slots.rates(spec))
        return found

    async def tool_server(self, name: str) -> ToolCaller:
        """The server behind the `MCPServer` resource `name`.

        Raises `SecretMissing` when a secret has not come in time, `SecretInvalid`, `ToolMisconfigured`.
        """
        spec = self.graph.servers[name]
        for wanted in sorted(secret_entries(spec)):
            await self._wait_for(wanted)
        return self._tools.of(name, spec, secrets=self._secrets)

    def turn(self, call: ToolCall) -> AbstractAsyncContextManager[None]:
        """The turn of one call of a tool, of which its server bears only so many at a time."""
        if call.concurrency is None:
            return nullcontext()
        spec = self.graph.servers[call.server]
        return self._tools.slots.at([spec["url"], spec.get("auth"), call.name], call.concurrency)

    async def _wait_for(self, wanted: tuple[str, str]) -> None:
        if wanted in self._secrets:
            return
        try:
            async with asyncio.timeout(self._patience):
                while wanted not in self._secrets:
                    self._secrets_came.clear()
                    await self._secrets_came.wait()
        except TimeoutError:
            raise SecretMissing(*wanted) from None

    def idempotency_key(self, path: str, turn: int = 0) -> str:
        """The key of one model call: the same for every try of it, by whichever process, and for no other call."""
        return digest("effect/v0", self.run.encode(), b"\0", path.encode(), b"\0", str(turn).encode())

    async def aclose(self) -> None:
        for model in self._models.values():
            await model.aclose()
        self._models.clear()
        self._secrets.clear()


def schema_hash(schema: Schema) -> str:
    return digest("schema/v0", canonical(schema))


def secret_refs(graph: CompiledGraph) -> set[tuple[str, str]]:
    """The secrets, by (name, key), that the graph's models and tool servers need."""
    return {entry for spec in (*graph.llms.values(), *graph.servers.values()) for entry in secret_entries(spec)}


def _waits(node: Node) -> bool:
    """Whether a node waits for somebody else: a model, a tool or a store."""
    return node.model is not None or node.tool is not None or bool(node.load)


class CallsOpen(Exception):
    """An agent goes on when graphs that are its tools have ended, which are open now: it is nobody's until then."""


class CallEnd(Protocol):
    """What came of a call: the graph's output, wide lists by reference, or why there is none."""

    @property
    def value(self) -> Json: ...

    @property
    def failure(self) -> Failure | None: ...


class Calls(Protocol):
    """The calls of one agent that are graphs."""

    def ends(self) -> Iterator[tuple[str, str]]:
        """The records that ended calls, with their hashes."""

    async def run(self, tool: AgentTool, path: str, given: Json) -> CallEnd:
        """What the graph gives for the input `given`, which is in its declared types. Raises `CallsOpen`."""


@dataclass(slots=True)
class Execution:
    """One node being executed: where it is, and what the attempts have cost so far. `calls` runs the graphs that are
    tools of an agent. `files` is what is told of the files that it sees in its `scope`, `draft` what it makes of them.
    """

    context: RunContext
    path: str
    node: Node
    journal: Journal
    usage: dict[str, int] = field(default_factory=dict)
    llm: str = ""
    """The LLM that it asks: its own, or one that stands in for that."""
    turns: int = 0
    failed_attempts: list[dict[str, Json]] = field(default_factory=list)
    calls: Calls | None = None
    template: str = ""
    files: Json = None
    draft: Draft | None = None
    history: Sequence[Done] = ()
    """What its node said in earlier rounds, where its context names that."""
    drawers: Drawers | None = None

    @property
    def scope(self) -> Scope:
        return self.context.scope(self.template)

    @property
    def fallback(self) -> str:
        """The LLM that it asks in the place of its own; empty where it asks that."""
        return self.llm if self.llm != (self.node.model or "") else ""

    def asked(self) -> dict[str, Json]:
        """What records say of the model that it asks: as its server knows it, and the LLM where that is not its own."""
        if not self.llm:
            return {}
        model = self.context.graph.llms[self.llm].get("model") or self.llm
        return {"model": model, "fallback": self.fallback} if self.fallback else {"model": model}

    def retries(self, error: WorkError) -> bool:
        """Whether the node's `retry` has anything for such an error."""
        named = self.node.retry.errors
        return named is None or not {c.code for c in type(error).__mro__ if issubclass(c, WorkError)}.isdisjoint(named)

    def charge(self, used: Mapping[str, int]) -> None:
        """Count what an answer of a model, or a call of a tool, used."""
        for name, amount in used.items():
            self.usage[name] = self.usage.get(name, 0) + amount


def executing(context: RunContext, path: str, node: Node, journal: Journal, *, template: str = "") -> Execution:
    """The execution of a node, which writes encrypted what it has to."""
    view = context.view(node.sealed is not None)
    return Execution(view, path, node, journal.on(view.values), template=template)


def note_failure(execution: Execution, error: WorkError, *, tool: str = "") -> None:
    """Keep a failed attempt for its own record in the ledger."""
    at: dict[str, Json] = {"tool": tool} if tool else execution.asked()
    message = str(error) if execution.node.sealed is None else HIDDEN
    execution.failed_attempts.append({"class": error.klass, "code": error.code, "message": message, **at})

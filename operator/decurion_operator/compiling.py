"""Compilation beside the event loop: bounded threads, one result for each distinct question, no question asked twice.

The question is a graph of one generation with LLMs of theirs; every run that would pin that closure, and the graph's
own status, share the answer. The compiler checks types in a subprocess; here it is called from a thread and may block.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeVar, cast

from decurion_crds.canonical import canonical
from decurion_crds.compile import Checker, Module, compile_graph
from decurion_crds.compiled import CompiledGraph
from decurion_crds.errors import DecurionError
from decurion_crds.findings import Finding
from decurion_crds.secrets import secret_entries
from decurion_crds.v1alpha1 import API_VERSION, LLM, Agent, MCPServer, TaskGraph, parse_resource
from decurion_operator.cache import Resource
from decurion_operator.conditions import Reason
from decurion_operator.metrics import Meter
from decurion_operator.plan.definitions import Compiled
from decurion_operator.queue import Key
from decurion_operator.settings import OperatorSettings

T = TypeVar("T", LLM, MCPServer, Agent, TaskGraph)
logger = logging.getLogger(__name__)

MAX_ANSWERS = 512
MAX_BYTES = 128 * 1024 * 1024
"""Bytes of closures that are held; they are compiled again when they are asked for again."""
BROKEN_SECONDS = 60.0
"""How long the compiler's own failure is believed before the question may be asked again."""


class CompileGraph(Protocol):
    """The compiler: a graph, with the LLMs, MCPServers, Agents and other graphs that it may name, to a closure or
    findings.

    `known` are names by kind that a misspelt one may have meant. Called from several threads.
    """

    def __call__(
        self,
        graph: TaskGraph,
        /,
        *,
        llms: Mapping[str, LLM],
        servers: Mapping[str, MCPServer],
        agents: Mapping[str, Agent],
        graphs: Mapping[str, TaskGraph],
        known: Mapping[str, Sequence[str]],
    ) -> tuple[CompiledGraph | None, Sequence[Finding]]: ...

    def close(self) -> None:
        """End what the compiler holds. No call is in progress."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is compiled: `llms` maps the name in the graphs to the LLM that stands for it, `graphs` the others by name,
    `servers` the MCPServers, `agents` the Agents.

    `known` are, by kind, names that a misspelt one may have meant; empty where none is missing.
    """

    graph: Resource
    llms: Mapping[str, Resource]
    graphs: Mapping[str, Resource] = field(default_factory=dict)
    servers: Mapping[str, Resource] = field(default_factory=dict)
    agents: Mapping[str, Resource] = field(default_factory=dict)
    known: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def identity(self) -> tuple[Any, ...]:
        rows = sorted(
            (r.key.kind, name, r.uid, r.generation)
            for part in (self.llms, self.graphs, self.servers, self.agents)
            for name, r in part.items()
        )
        return (self.graph.uid, self.graph.generation, *rows, *sorted(self.known.items()))


@dataclass(frozen=True, slots=True)
class Answer:
    """`bundle` is the closure as canonical JSON; `secrets` are the (name, key) of the Secret entries that it needs."""

    compiled: Compiled
    bundle: bytes = b""
    secrets: frozenset[tuple[str, str]] = frozenset()


class Compiling:
    """Answers questions when it can: `ask` returns the answer, or None and calls `ready(key)` once it is there."""

    def __init__(
        self, compile_graph: CompileGraph, settings: OperatorSettings, meter: Meter, *, ready: Callable[[Key], None]
    ) -> None:
        self._compile = compile_graph
        self._settings = settings
        self._meter = meter
        self._ready = ready
        self._threads = ThreadPoolExecutor(settings.compilers, thread_name_prefix="compile")
        self._answers: OrderedDict[tuple[Any, ...], tuple[Answer, float]] = OrderedDict()
        """Answers with the loop time until which they hold: for ever, but for those where the compiler broke."""
        self._bytes = 0
        self._closures: dict[str, Answer] = {}
        self._waiting: dict[tuple[Any, ...], set[Key]] = {}
        self._tasks: set[asyncio.Task[Answer]] = set()

    def ask(self, question: Question, asker: Key) -> Answer | None:
        identity = question.identity
        answer, until = self._answers.get(identity, (None, 0.0))
        if answer is not None and asyncio.get_running_loop().time() < until:
            self._answers.move_to_end(identity)
            return answer
        if identity in self._waiting:
            self._waiting[identity].add(asker)
            return None
        self._waiting[identity] = {asker}
        task = asyncio.ensure_future(self._work(question))
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._end(identity, done))
        return None

    def known(self, digest: str) -> Answer | None:
        """The answer with that closure, when this process has compiled it and still holds it."""
        return self._closures.get(digest)

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        # A compilation in progress ends by the limit of its checker; it must not keep the loop from ending others.
        await asyncio.get_running_loop().run_in_executor(None, self._shut_down)

    def _shut_down(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._compile.close()

    async def _work(self, question: Question) -> Answer:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(self._settings.compile_seconds):
                return await loop.run_in_executor(self._threads, self._answer, question)
        except TimeoutError:
            text = f"The compiler gave no answer within {self._settings.compile_seconds:g} s: make the graph smaller."
            return Answer(Compiled(None, broken=(Reason.COMPILE_TIMED_OUT, text)))
        finally:
            self._meter.compiled(loop.time() - began)

    def _answer(self, question: Question) -> Answer:
        graph, findings = parse_resource(_object(question.graph))
        if graph is None:
            return Answer(Compiled(None, tuple(findings)))
        closure, said = self._compile(
            cast(TaskGraph, graph),
            llms=_parsed(question.llms, LLM),
            servers=_parsed(question.servers, MCPServer),
            agents=_parsed(question.agents, Agent),
            graphs=_parsed(question.graphs, TaskGraph),
            known=question.known,
        )
        compiled = Compiled(closure.digest if closure else None, (*findings, *said))
        if closure is None or compiled.errors:
            return Answer(Compiled(None, compiled.findings))
        body = closure.to_json()
        specs = (*closure.llms.values(), *closure.servers.values())
        secrets = {entry for spec in specs for entry in secret_entries(spec)}
        return Answer(compiled, canonical(body), frozenset(secrets))

    def _end(self, identity: tuple[Any, ...], task: asyncio.Task[Answer]) -> None:
        self._tasks.discard(task)
        askers = self._waiting.pop(identity, set())
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            answer = task.result()
        else:
            answer = Answer(Compiled(None, broken=(Reason.COMPILER_FAILED, _failure(identity, error))))
        held = BROKEN_SECONDS if answer.compiled.broken else float("inf")
        if identity in self._answers:
            self._bytes -= len(self._answers.pop(identity)[0].bundle)
        self._answers[identity] = answer, asyncio.get_running_loop().time() + held
        if answer.compiled.digest is not None:
            self._closures[answer.compiled.digest] = answer
        self._bytes += len(answer.bundle)
        while len(self._answers) > MAX_ANSWERS or (self._bytes > MAX_BYTES and len(self._answers) > 1):
            _, (old, _) = self._answers.popitem(last=False)
            self._bytes -= len(old.bundle)
            if old.compiled.digest is not None and self._closures.get(old.compiled.digest) is old:
                del self._closures[old.compiled.digest]
        for key in askers:
            self._ready(key)


def _parsed(resources: Mapping[str, Resource], model: type[T]) -> dict[str, T]:
    """One that cannot be read is left out: it is reported on itself, and its graphs are not ready for it."""
    found = {name: parse_resource(_object(resource))[0] for name, resource in resources.items()}
    return {name: one for name, one in found.items() if isinstance(one, model)}


def _object(resource: Resource) -> dict[str, Any]:
    meta = {"name": resource.key.name, "namespace": resource.key.namespace}
    return {"apiVersion": API_VERSION, "kind": resource.key.kind, "metadata": meta, "spec": resource.spec}


def _failure(identity: tuple[Any, ...], error: BaseException) -> str:
    if isinstance(error, DecurionError):
        return f"The compiler gave no answer on this graph: {error}"
    logger.error("the compiler failed on graph %s: %s", identity[0], error, exc_info=error)
    return "The compiler itself failed on this graph, and the operator's log says why: please report it."


class CheckedCompiler:
    """The compiler of the project, with as many checkers as are ever in use at once; each is a process of its own."""

    def __init__(self) -> None:
        self._idle: SimpleQueue[Checker] = SimpleQueue()
        self._made: list[Checker] = []

    def __call__(
        self,
        graph: TaskGraph,
        /,
        *,
        llms: Mapping[str, LLM],
        servers: Mapping[str, MCPServer],
        agents: Mapping[str, Agent],
        graphs: Mapping[str, TaskGraph],
        known: Mapping[str, Sequence[str]],
    ) -> tuple[CompiledGraph | None, Sequence[Finding]]:
        checker = self._checker()
        modules = {name: Module(other) for name, other in graphs.items()}
        try:
            done = compile_graph(
                graph,
                llms=llms,
                servers=servers,
                agents=agents,
                graphs=modules,
                known_llms=known.get("LLM", ()),
                known_graphs=known.get("TaskGraph", ()),
                known_agents=known.get("Agent", ()),
                known_servers=known.get("MCPServer", ()),
                shared=True,
                checker=checker,
            )
        finally:
            self._idle.put(checker)
        return done.compiled, done.findings

    def close(self) -> None:
        for checker in self._made:
            checker.__exit__(None, None, None)
        self._made.clear()

    def _checker(self) -> Checker:
        try:
            return self._idle.get_nowait()
        except Empty:
            checker = Checker().__enter__()
            self._made.append(checker)
            return checker

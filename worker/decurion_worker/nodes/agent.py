"""Node kind `agent`: a model that calls tools in turns until it calls `finish`. Design 04, "Agent loop".

Each answer of the model is a record, and so is what each call gave: a runner that takes the node over asks the model
nothing, and calls no tool, a second time. The loop is a function of these answers alone.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from decurion_crds.canonical import Json, canonical, digest
from decurion_crds.compiled import WORKSPACE, AgentCall, AgentTool, Schema
from decurion_crds.errors import OutputMismatch, ValueRefused
from decurion_crds.values import normalise
from decurion_worker.context import CallsOpen, Execution, note_failure
from decurion_worker.drawers import messages
from decurion_worker.errors import (
    AgentGaveUp,
    BudgetExceeded,
    EffectInDoubt,
    FailuresInRow,
    LimitUsedUp,
    ModelRefused,
    OutputInvalid,
    RepeatedCalls,
    Replannable,
    SecondsLimit,
    StepLimit,
    ToolArgumentsInvalid,
    WorkError,
)
from decurion_worker.files import open_files
from decurion_worker.models import (
    Call,
    ChatRequest,
    ChatResponse,
    Message,
    ToolDefinition,
)
from decurion_worker.nodes import agent_prompts as prompts
from decurion_worker.nodes.asking import ask
from decurion_worker.nodes.graph_tool import run_graph_tool
from decurion_worker.nodes.tool import call_tool, checked_arguments, tool_value
from decurion_worker.spending import add, counted, error_of, usage_of, used_up
from decurion_worker.tools import ToolAnswer

FINISH = "finish"
NUDGES = 2
"""How often a text without a call is answered by asking for one."""
SEND_BACKS = 3
"""How often a result that breaks the output is sent back."""
FAILURES = 3
"""Turns in a row, all of whose calls failed, after which the agent stops."""
CALLS = 100
"""Calls that are made in one turn, at most."""
WARN_AT, STOP_AT, LAST_CALLS = 3, 5, 10
"""A call with the same result is warned of, and stops the agent, at so many among its last calls."""
WARN_STEPS = 3
"""Turns left at which the model is told how many."""
MAX_SHOWN = 16_000
"""Characters of what a tool gave that the model is shown."""


@dataclass(slots=True)
class _Work:
    """Where an agent stands between two turns."""

    messages: list[Message]
    nudges: int = 0
    sent_back: int = 0
    failures: int = 0
    used: dict[str, int] = field(default_factory=dict)
    calls: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_CALLS))


class _Finished(Exception):
    """The model called `finish` with `value`, which is accepted."""

    def __init__(self, value: Json) -> None:
        super().__init__()
        self.value = value


async def run_agent(execution: Execution, agent: AgentCall, snapshot: Mapping[str, Json]) -> Json:
    """What the model finishes with, a value of the node's output.

    Raises `AgentGaveUp`, `OutputInvalid`, `FailuresInRow`, `RepeatedCalls`, `LimitUsedUp`, `SecondsLimit`,
    `EffectInDoubt`, or what a call of the model raises; `CallsOpen` while calls are open whose graphs others run.
    """
    return await _Agent(execution, agent).run(await execution.context.render(agent.prompt, snapshot))


class _Agent:
    def __init__(self, execution: Execution, agent: AgentCall) -> None:
        self._execution = execution
        self._agent = agent
        self._path = execution.path
        self._tools = {tool.name: tool for tool in agent.tools}
        finish = ToolDefinition(FINISH, prompts.FINISH, _object(execution.node.output))
        self._definitions = (*(_definition(execution, tool) for tool in agent.tools), finish)
        execution.llm = agent.model

    async def run(self, prompt: str) -> Json:
        """The first plan; when its approach failed a new one, told why the others did, in what is left of the limits.

        A new plan begins with the files as the node found them.
        """
        tried: list[str] = []
        began, used = asyncio.get_running_loop().time(), dict[str, int]()
        while True:
            try:
                return await self._plan(_told(prompt, tried), used, began)
            except Replannable as error:
                if len(tried) >= self._execution.node.retry.replan or not self._execution.retries(error):
                    raise
                if self._execution.turns >= self._agent.steps or self._used_up(used) is not None:
                    raise
                note_failure(self._execution, error)
                tried.append(str(error))
                await open_files(self._execution)

    async def _plan(self, prompt: str, used: dict[str, int], began: float) -> Json:
        system = "\n\n".join(part for part in (self._agent.instructions, prompts.RULES) if part)
        work = _Work([Message("system", system), *messages(self._execution, prompt)], used=used)
        try:
            turn, over = await self._turns(work, began)
            _tell(work, prompts.LAST_TURN)
            await self._turn(work, turn + 1, self._definitions[-1:])
        except _Finished as finished:
            return finished.value
        raise over

    async def _turns(self, work: _Work, began: float) -> tuple[int, BudgetExceeded]:
        """Work until a limit is used up: the number of turns, and the error of that. Raises `_Finished`."""
        steps = self._agent.steps
        for turn in range(self._execution.turns + 1, steps + 1):
            await self._turn(work, turn, self._definitions)
            over = self._used_up(work.used) or self._late(began)
            if over is not None:
                return turn, over
            if 0 < steps - turn <= WARN_STEPS:
                _tell(work, prompts.STEPS_LEFT.format(left=steps - turn))
        return steps, StepLimit(self._path, steps, steps)

    def _used_up(self, settled: Mapping[str, int]) -> LimitUsedUp | None:
        """The error of a limit of which nothing is left."""
        limits, used = self._agent.limits, counted(settled)
        name = used_up(limits, used, used) if limits is not None else None
        if limits is None or name is None:
            return None
        return error_of(self._path, name, used[name], limits.amounts[name])

    def _late(self, began: float) -> SecondsLimit | None:
        seconds = self._agent.limits.seconds if self._agent.limits is not None else None
        if seconds is None or asyncio.get_running_loop().time() - began < seconds:
            return None
        return SecondsLimit(self._path, seconds)

    async def _turn(self, work: _Work, turn: int, tools: tuple[ToolDefinition, ...]) -> None:
        path = f"{self._path}#turn-{turn:04d}"
        answer = await self._answer(work, path, tools)
        add(work.used, self._execution.journal.usage(path))
        self._execution.turns = turn
        calls = tuple(Call(c.name, c.arguments, f"call_{turn:04d}_{i:02d}") for i, c in enumerate(answer.calls, 1))
        if answer.finish_reason == "length":
            self._said(work, answer.text, ())
            _tell(work, prompts.CUT_OFF)
            self._failed(work, "the answer was cut off at the token limit")
        elif answer.finish_reason != "stop":
            raise ModelRefused(f"{self._path}: the model declined to answer; change the prompt, or the model")
        elif not calls:
            self._nudge(work, answer.text)
        elif any(call.name == FINISH for call in calls):
            self._said(work, answer.text, calls)
            self._finish(work, calls)
        else:
            self._said(work, answer.text, calls)
            await self._call_all(work, path, calls, {tool.name for tool in tools})

    # ------------------------------------------------------------------ the model

    async def _answer(self, work: _Work, path: str, tools: tuple[ToolDefinition, ...]) -> ChatResponse:
        """The answer of this turn, asked for or taken from the log."""
        journal, context = self._execution.journal, self._execution.context
        before = await journal.turn(path)
        if before is not None:
            self._execution.llm = journal.fallback(path) or self._agent.model
            return _from_json(before)
        request = ChatRequest(
            messages=tuple(work.messages),
            schema=None,
            parameters=dict(self._agent.parameters),
            deadline_seconds=self._execution.node.timeout_seconds,
            idempotency_key=context.idempotency_key(path),
            tools=tools,
        )
        response = await ask(self._execution, request)
        usage = usage_of(context.graph.llms[self._execution.llm], response.usage)
        if made := self._made(work, usage, response.calls, tools):
            usage["toolCalls"] = made
        said = [_message_json(m) for m in work.messages]
        asked = context.values.name(said) if context.values.is_sealing else digest("request/v0", canonical(said))
        await journal.take_turn(path, _to_json(response), request=asked, usage=usage, by=self._execution.asked())
        return response

    def _made(
        self, work: _Work, usage: Mapping[str, int], calls: tuple[Call, ...], tools: tuple[ToolDefinition, ...]
    ) -> int:
        """How many calls of tools an answer leads to: those of a turn that finishes are not made."""
        allowed = {tool.name for tool in tools}
        if any(call.name == FINISH for call in calls):
            return 0
        used = dict(work.used)
        add(used, usage)
        return sum(call.name in allowed for call in calls[: self._most(used)])

    def _most(self, used: Mapping[str, int]) -> int:
        """Most calls in one turn whose answer is counted in `used`, and whose calls are not."""
        limits = self._agent.limits
        if limits is None:
            return CALLS
        if used_up(limits, counted(used), ("tokens", "nanoUSD")) is not None:
            return 0
        made = used.get("toolCalls", 0)
        return CALLS if limits.tool_calls is None else max(0, min(CALLS, limits.tool_calls - made))

    def _said(self, work: _Work, text: str, calls: tuple[Call, ...]) -> None:
        if text or calls:
            work.messages.append(Message("assistant", text, calls))

    def _nudge(self, work: _Work, text: str) -> None:
        if work.nudges == NUDGES:
            raise AgentGaveUp(self._path, text)
        work.nudges += 1
        self._said(work, text, ())
        _tell(work, prompts.NUDGE)

    def _failed(self, work: _Work, why: str) -> None:
        work.failures += 1
        if work.failures == FAILURES:
            raise FailuresInRow(self._path, FAILURES, why)

    # ------------------------------------------------------------------ finish

    def _finish(self, work: _Work, calls: tuple[Call, ...]) -> None:
        """Take the result, or send it back. Other calls of the turn are not made."""
        for call in calls:
            if call.name != FINISH:
                work.messages.append(Message("tool", prompts.BESIDE_FINISH, call_id=call.id))
        last = [call for call in calls if call.name == FINISH][-1]
        errors, value = self._result(last.arguments)
        if not errors:
            raise _Finished(value)
        if work.sent_back == SEND_BACKS:
            raise OutputInvalid(errors, last.arguments)
        work.sent_back += 1
        told = prompts.NOT_ACCEPTED.format(errors="\n".join(f"- {error}" for error in errors))
        for call in calls:
            if call.name == FINISH:
                work.messages.append(Message("tool", told, call_id=call.id))

    def _result(self, arguments: str) -> tuple[list[str], Json]:
        schema = self._execution.node.output
        try:
            value = orjson.loads(arguments)
            if _object(schema) is not schema:
                value = value.get("result") if isinstance(value, dict) else None
            normal = normalise(value, schema)
            self._execution.context.validator(schema).check(normal)
        except orjson.JSONDecodeError as error:
            return [prompts.NOT_JSON.format(why=error.msg)], None
        except OutputMismatch as error:
            return list(error.problems), None
        except ValueRefused as error:
            return [str(error)], None
        return [], normal

    # ------------------------------------------------------------------ tools

    async def _call_all(self, work: _Work, path: str, calls: tuple[Call, ...], allowed: set[str]) -> None:
        """Make the calls of a turn side by side, and tell the model what they gave. A turn has an end: see `CALLS`."""
        made_here = self._execution.journal.usage(path).get("toolCalls", 0)
        most = self._most({**work.used, "toolCalls": work.used.get("toolCalls", 0) - made_here})
        calls, left = calls[:most], calls[most:]
        own = [i for i, call in enumerate(calls) if self._touches_files(call)]
        made = [self._call(f"{path}.{i:02d}", c, allowed) for i, c in enumerate(calls, 1) if i - 1 not in own]
        files = self._one_by_one(path, [(i, calls[i]) for i in own], allowed)
        # Each is seen to its end, also when another fails the node: what it did is then in the log.
        results: list[Any] = await asyncio.gather(*made, files, return_exceptions=True)
        for ended in sorted(results, key=_urgency):
            if isinstance(ended, BaseException):
                raise ended
        others, touched = iter(results[:-1]), results[-1]
        answers: list[ToolAnswer] = [touched[i] if i in own else next(others) for i in range(len(calls))]
        for call, answer in zip(calls, answers, strict=True):
            work.messages.append(Message("tool", self._shown(work, call, answer), call_id=call.id))
        for call in left:
            text = prompts.TOO_MANY.format(most=CALLS) if most == CALLS else prompts.NO_MORE_CALLS
            work.messages.append(Message("tool", text, call_id=call.id))
        if answers and all(answer.failed for answer in answers):
            self._failed(work, answers[-1].text)
        else:
            work.failures = 0

    def _touches_files(self, call: Call) -> bool:
        tool = self._tools.get(call.name)
        return tool is not None and tool.call is not None and tool.call.server == WORKSPACE

    async def _one_by_one(self, path: str, calls: list[tuple[int, Call]], allowed: set[str]) -> dict[int, ToolAnswer]:
        """The calls that touch the node's files, in their order. They are made again by whoever takes the node over:
        what they did is nowhere but in the files, which are the node's own until it ends.
        """
        answers = {}
        for i, call in calls:
            if call.name not in allowed:
                answers[i] = await self._call(f"{path}.{i + 1:02d}", call, allowed)
                continue
            try:
                answers[i] = await self._called(f"{path}.{i + 1:02d}", self._tools[call.name], call)
            except ToolArgumentsInvalid as error:
                answers[i] = ToolAnswer(prompts.BROKEN_ARGUMENTS.format(errors="; ".join(error.problems)), failed=True)
        return answers

    async def _call(self, path: str, call: Call, allowed: set[str]) -> ToolAnswer:
        """What one call gave; a failure is told to the model, but for an effect that is in doubt."""
        tool = self._tools.get(call.name)
        if tool is None or call.name not in allowed:
            return ToolAnswer(prompts.UNKNOWN.format(name=call.name, known=", ".join(sorted(allowed))), failed=True)
        journal = self._execution.journal
        before = await journal.effect(path)
        if before is not None and before.state == "done":
            return ToolAnswer.from_json(before.answer)
        try:
            answer = await self._called(path, tool, call)
        except EffectInDoubt:
            raise
        except ToolArgumentsInvalid as error:
            answer = ToolAnswer(prompts.BROKEN_ARGUMENTS.format(errors="; ".join(error.problems)), failed=True)
        except WorkError as error:
            answer = ToolAnswer(str(error), failed=True)
        after = await journal.effect(path)
        if after is None or after.state != "done":
            await journal.settle(path, answer.to_json())
        return answer

    async def _called(self, path: str, tool: AgentTool, call: Call) -> ToolAnswer:
        try:
            given = orjson.loads(call.arguments)
        except orjson.JSONDecodeError as error:
            return ToolAnswer(prompts.NOT_JSON.format(why=error.msg), failed=True)
        arguments = await checked_arguments(self._execution, tool.name, _input(self._execution, tool), given)
        if tool.call is None:
            return await run_graph_tool(self._execution, tool, path, arguments)
        answer = await call_tool(self._execution, tool.call, path, arguments, seconds=tool.timeout_seconds)
        if not answer.failed:
            tool_value(self._execution, tool.call, answer)
        return answer

    def _shown(self, work: _Work, call: Call, answer: ToolAnswer) -> str:
        """What the model is shown of an answer. Raises `RepeatedCalls`."""
        text = answer.text or canonical(answer.value).decode()
        if len(text) > MAX_SHOWN:
            text = text[:MAX_SHOWN] + prompts.TRUNCATED.format(shown=MAX_SHOWN, size=len(text))
        print_ = digest("call/v0", canonical([call.name, _plain(call.arguments), answer.to_json()]))
        work.calls.append(print_)
        times = Counter(work.calls)[print_]
        if times >= STOP_AT:
            raise RepeatedCalls(self._path, call.name, times)
        return text + (prompts.REPEATED.format(times=times) if times >= WARN_AT else "")


def _urgency(ended: ToolAnswer | BaseException) -> int:
    """Of what calls of a turn came to, which counts first: that an effect is in doubt is told when no call is open."""
    return 2 if isinstance(ended, EffectInDoubt) else 1 if isinstance(ended, CallsOpen) else 0


def _told(prompt: str, tried: Sequence[str]) -> str:
    """The prompt of a plan, after those that failed for the reasons `tried`."""
    if not tried:
        return prompt
    return prompt + prompts.TRIED.format(reasons="\n".join(f"- {why}" for why in tried))


def _tell(work: _Work, text: str) -> None:
    work.messages.append(Message("user", text))


def _definition(execution: Execution, tool: AgentTool) -> ToolDefinition:
    return ToolDefinition(tool.name, tool.description, _object(_input(execution, tool)))


def _input(execution: Execution, tool: AgentTool) -> Schema:
    """What the arguments of a tool have to be."""
    return tool.call.input if tool.call is not None else execution.context.scope(tool.graph or "").input_schema


def _object(schema: Schema) -> Schema:
    """`schema` where it is one of objects, as parameters must be; else the one of an object with a `result`."""
    if schema.get("type") == "object" or not schema:
        return schema or {"type": "object"}
    return {"type": "object", "properties": {"result": schema}, "required": ["result"], "additionalProperties": False}


def _plain(arguments: str) -> str:
    """Arguments without what spelling makes of them."""
    try:
        return canonical(orjson.loads(arguments)).decode()
    except (orjson.JSONDecodeError, TypeError):
        # No JSON, or nested deeper than what can be written again.
        return arguments


def _to_json(response: ChatResponse) -> Json:
    calls = [{"name": call.name, "arguments": call.arguments} for call in response.calls]
    return {"text": response.text, "calls": calls, "finish": response.finish_reason}


def _from_json(answer: Json) -> ChatResponse:
    calls = tuple(Call(call["name"], call["arguments"]) for call in answer["calls"])
    return ChatResponse(text=answer["text"], finish_reason=answer["finish"], calls=calls)


def _message_json(message: Message) -> Json:
    calls = [[call.id, call.name, call.arguments] for call in message.calls]
    return [message.role, message.content, calls, message.call_id]

"""Whether a record that a runner sent may be committed. The driver trusts no runner with the shape of its log."""

from __future__ import annotations

from collections.abc import Container, Mapping

from decurion_crds.canonical import Json
from decurion_crds.compiled import CompiledGraph, Node, Scope
from decurion_crds.values import OutputMismatch, Validator
from decurion_crds.wide import ListRef
from decurion_ledger import Record, RecordType, vhash
from decurion_ledger import core_hash as hash_core
from decurion_worker.context import schema_hash
from decurion_worker.engine import Task
from decurion_worker.journal import EVENTS


class Acceptance:
    """Checks records against the graph of their run."""

    def __init__(self, graph: CompiledGraph) -> None:
        self._graph = graph
        self._validators = _validators(graph)
        self._sealed = _sealed(graph)

    def fault(
        self,
        record: Record,
        *,
        task: Task,
        last: bool,
        committed: Container[str],
        beside: Container[str],
        opened: Container[str] = (),
    ) -> str | None:
        """Why a record may not be committed, or None.

        `task` is what it was sent for, `last` whether it is said to end that; `committed` holds the paths in the log,
        `beside` those of the records that go into the same segment before it; `opened` the paths of what is open.
        """
        why = self._place_fault(record, task, last) or self._call_fault(record, task, opened)
        if why is not None or record.core is None:
            return why
        if record.path in committed or record.path in beside:
            return "the path is committed already"
        if record.core.get("path") != record.path or hash_core(record.core) != record.core_hash:
            return "its core does not have the hash it names"
        if record.type == "approval_requested" and (why := self._asking_fault(record, task)):
            return why
        if (why := _files_fault(record)) is not None:
            return why
        if task.kind == "join" and record.core.get("arms") != task.env["arms"]:
            return "it names other arms than have ended"
        return self._clear_fault(record) or self._value_fault(record)

    def opening_fault(self, task: Task, record: Record, value: Json) -> str | None:
        """Why a map or graph, or a call of an agent, cannot be opened with this value, or None."""
        if record.type != "scope_opened" or task.kind != "node":
            return None
        if record.path != f"{task.key}!open":
            called = _called(self._home(task).by_name[task.node], record)
            handed_out = called is not None and not self._templates[called].leaf
            return "it opens with no object" if handed_out and not isinstance(value, dict) else None
        node = self._home(task).by_name[task.node]
        if node.template is None:
            return "the node opens nothing"
        if node.loop is not None:
            held = isinstance(value, dict) and isinstance(value.get("input"), dict)
            return None if held else "it opens a round with no input"
        if not isinstance(value, dict):
            return "it opens with no object"
        if node.map is None:
            return None
        items, keys = value.get("items"), value.get("keys")
        if not isinstance(items, list | ListRef) or not isinstance(value.get("base"), dict):
            return "it opens with no list of items, or no input that they share"
        count = items.count if isinstance(items, ListRef) else len(items)
        if node.map.keyed is (keys is None) or (isinstance(keys, list) and len(keys) != count):
            return "its keys are not those of its items"
        return None

    def _asking_fault(self, record: Record, task: Task) -> str | None:
        scope = self._graph.templates[task.template] if task.template else self._graph.root
        node = scope.by_name.get(task.node)
        if node is None or node.approval is None or record.path != f"{task.key}!open":
            return "the node asks nobody"
        return None if record.envelope.get("request") else "its request has no name"

    def _place_fault(self, record: Record, task: Task, last: bool) -> str | None:
        """Why a record of this type and path cannot come of the task, or why it cannot be the last one."""
        if record.core is None:
            if last or record.type not in ("attempt_failed", RecordType.CONFLICT, *EVENTS):
                return f"a record of type {record.type} cannot end an item"
            ends = False
        elif record.type not in ("commit", "skip", "scope_opened", "join", "approval_requested"):
            return f"a runner writes no record of type {record.type}"
        else:
            ends = record.path in _ends(task)
        if not ends and not self._inside(record, task):
            return f"its path {record.path} is not that of the item {task.key}"
        if ends is not last:
            return "it is said to end the item, and does not" if last else "it ends the item, and is not said to"
        return None

    def _inside(self, record: Record, task: Task) -> bool:
        """Whether a record that does not end the task may have its path: a node of a branch, at any depth of graphs;
        what an agent says and calls; the failed attempt of a node.
        """
        inside, event = record.path.removeprefix(task.key), record.type in EVENTS
        if not record.path.startswith(task.key):
            return False
        if task.kind == "branch" and inside.startswith("/"):
            return self._has_place(self._graph.templates[task.template], inside[1:], event)
        if task.kind == "loop" and inside.startswith("@"):
            return self._has_place(self._home(task), f"{task.node}{inside}", event)
        if task.kind == "node" and inside.startswith("#"):
            return self._has_place(self._home(task), f"{task.node}{inside}", event)
        if record.type == RecordType.CONFLICT:
            return task.kind == "join" and not inside
        return task.kind == "node" and not inside

    def _call_fault(self, record: Record, task: Task, opened: Container[str]) -> str | None:
        """Why a record of a call of an agent, itself the task, may not be committed, or None. What is below a call
        whose graph is handed out comes from other tasks.
        """
        if task.kind != "node" or not record.path.startswith(f"{task.key}#"):
            return None
        call = record.path[len(task.key) :].partition("/")[0].partition("!")[0]
        if record.core is not None and f"{task.key}{call}" in opened:
            return "the graph of this call is handed out"
        if record.type == "scope_opened" and record.path == f"{task.key}{call}!open":
            known = _called(self._home(task).by_name[task.node], record) is not None
            return None if known else "it opens a call of a tool that the agent does not have"
        return None

    def _home(self, task: Task) -> Scope:
        return self._graph.templates[task.template] if task.template else self._graph.root

    def _has_place(self, scope: Scope, path: str, event: bool) -> bool:
        """Whether a record of a leaf scope, of one round of a loop in it, or of a call of an agent, may have this path.

        Only an event may be at a turn or call itself. Which of an agent's tools a call was of, its path does not say.
        """
        step, slash, rest = path.partition("/")
        step, _, mark = step.partition("!")
        step, _, call = step.partition("#")
        name, _, number = step.partition("@")
        node = scope.by_name.get(name)
        if node is None or (number and not _is_round(node, number)) or (slash and mark):
            return False
        if call and not slash:
            return "." in call and self._opens_calls(node, mark) if mark else event
        if not slash:
            return mark in _marks(node, number)
        if call:
            leaves = (self._templates[t] for t in node.graph_tools if self._templates[t].leaf)
            return "." in call and any(self._has_place(scope, rest, event) for scope in leaves)
        if node.template is None or (node.graph is None and not number):
            return False
        return self._has_place(self._templates[node.template], rest, event)

    def _opens_calls(self, node: Node, mark: str) -> bool:
        if mark == "output":
            return any(self._templates[t].leaf for t in node.graph_tools)
        return mark == "open" and bool(node.graph_tools)

    @property
    def _templates(self) -> Mapping[str, Scope]:
        return self._graph.templates

    def _clear_fault(self, record: Record) -> str | None:
        """Why a record would bring something sensitive into the log in clear, or None."""
        core = record.core or {}
        inputs, whole = self._sealed.get(core["node"], (False, False))
        whole = whole or (inputs and record.type == "scope_opened" and record.path.endswith("!open"))
        held = record.envelope.get("values") or {}
        names = [core["input"]] if inputs else []
        names += [core["delta"], *(name for _, name in core["writes"])] if whole else []
        clear = any(name is not None and "sealed" not in held.get(name, {"sealed": ""}) for name in names)
        return "something sensitive is in it in clear" if clear else None

    def _value_fault(self, record: Record) -> str | None:
        core = record.core or {}
        delta = core["delta"]
        held = (record.envelope.get("values") or {}).get(delta) if delta is not None else None
        if held is None:
            none = delta is None and (record.type == "skip" or isinstance(core["outcome"], dict))
            return None if none else "its value is not with it"
        if "inline" not in held:
            return None
        value = held["inline"]
        if vhash(value) != delta:
            return "its value does not have the hash it names"
        validator = self._validators.get(record.core["schema"]) if record.core else None
        if validator is None or record.type == "scope_opened":
            return None
        try:
            validator.check(value)
        except OutputMismatch as error:
            return str(error)
        return None


def _called(agent: Node, record: Record) -> str | None:
    """The scope of the tool of an agent that the opening of a call names, or None."""
    named = (record.core or {}).get("tool")
    tools = agent.agent.tools if agent.agent is not None else ()
    return next((tool.graph for tool in tools if tool.name == named), None)


def _files_fault(record: Record) -> str | None:
    """Why the files that a record names cannot be found, or None."""
    root, held = (record.core or {}).get("workspace"), record.envelope.get("workspace")
    if root is None and held is None:
        return None
    return None if isinstance(held, dict) and held.get("root") == root else "its files are not with it"


def _is_round(node: Node, number: str) -> bool:
    return node.loop is not None and number.isdecimal() and 1 <= int(number) <= node.loop.max_iterations


def _marks(node: Node, number: str) -> tuple[str, ...]:
    """The marks that a record of a node, or of one of its rounds, may have."""
    if number:
        return ("output",) if int(number) == 1 else ("open", "output")
    if node.loop is not None:
        return ("", "open", "join", "otherwise")
    return ("", "open", "output", "otherwise") if node.graph is not None else ("", "otherwise")


def _ends(task: Task) -> tuple[str, ...]:
    """The paths of the record that ends a task."""
    match task.kind:
        case "branch":
            return (f"{task.key}!output",)
        case "node":
            return (task.key, f"{task.key}!open")
        case "loop":
            return (f"{task.key}!join",)
        case "round":
            return (task.key, f"{task.scope}/{task.node}!join")
        case "writes":
            return (task.key.removesuffix("!writes"),)
        case _:
            return (task.key,)


def _sealed(graph: CompiledGraph) -> dict[str, tuple[bool, bool]]:
    """Digest of a node or scope → whether its input, and whether what it gives, is encrypted in records."""
    found: dict[str, tuple[bool, bool]] = {}
    for scope in (graph.root, *graph.templates.values()):
        if scope.sealed_input or scope.sealed_output:
            found[scope.digest] = (scope.sealed_input, scope.sealed_output)
        found |= {node.digest: (True, node.sealed == "all") for node in scope.nodes if node.sealed is not None}
    return found


def _validators(graph: CompiledGraph) -> dict[str, Validator]:
    """Validators of all that is committed under this graph, by the hash of the schema."""
    found: dict[str, Validator] = {}
    for scope in (graph.root, *graph.templates.values()):
        for schema in (scope.output_schema, *(node.output for node in scope.nodes)):
            found.setdefault(schema_hash(schema), Validator(schema))
    return found

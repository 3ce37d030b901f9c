"""A compiled graph as a person sees it: what runs after what and why, and how much of it is left to a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from decurion_crds.canonical import canonical
from decurion_crds.compiled import FINALLY, CompiledGraph, Expr, LoopBlock, Node, Scope

SCALE = ("transform", "code", "tool", "llm", "agent")
"""From deterministic to agentic. Graph, map and loop stand where the furthest node of their template stands."""

_SHAPES = {
    "transform": ("[", "]"),
    "code": ("[[", "]]"),
    "tool": ("[[", "]]"),
    "llm": ("([", "])"),
    "agent": ("([", "])"),
    "graph": ("[/", "/]"),
    "map": ("{{", "}}"),
    "loop": (">", "]"),
    "switch": ("{", "}"),
    "approval": (">", "]"),
}


def show_text(graph: CompiledGraph) -> str:
    """Every scope with its nodes in order: the place of each on the scale, its model or template, and its edges.

    `←` is an edge that the author declared, `⇠` one that follows from a read, with the expression that made it, `⇐` one
    from the switch that chooses the node, with its case.
    """
    lines = [f"{graph.name}  {graph.digest[:12]}"]
    lines += _scope_lines(graph, "graph", graph.root)
    for name, scope in graph.templates.items():
        lines += ["", *_scope_lines(graph, scope_title(name), scope)]
    lines += ["", "scale: " + " · ".join(SCALE) + "  (deterministic to agentic)"]
    return "\n".join(lines)


def show_mermaid(graph: CompiledGraph) -> str:
    """The graph as a Mermaid flowchart: one box for each scope, inferred edges dotted and labelled."""
    lines = ["flowchart TD"]
    lines += _mermaid_scope(graph, "root", graph.name, graph.root)
    for name, scope in graph.templates.items():
        lines += _mermaid_scope(graph, _box(name), scope_title(name), scope)
    for prefix, scope in _scopes(graph):
        for node in scope.nodes:
            if node.map is not None:
                lines.append(f'  {prefix}_{node.name} -. "for each {node.map.as_}" .-> {_box(node.map.template)}')
            elif node.loop is not None:
                link = f'-. "{_escaped(_rounds(node.loop))}" .->'
                lines.append(f"  {prefix}_{node.name} {link} {_box(node.loop.template)}")
            elif node.graph is not None:
                lines.append(f'  {prefix}_{node.name} -. "once" .-> {_box(node.graph.template)}')
            for tool in node.agent.tools if node.agent is not None else ():
                if tool.graph is not None:
                    lines.append(f'  {prefix}_{node.name} -. "tool {tool.name}" .-> {_box(tool.graph)}')
    for i, kind in enumerate(SCALE):
        lines.append(f"  classDef {kind} fill:{_COLOURS[i]},stroke:#555,color:#111")
    return "\n".join(lines)


_COLOURS = ("#e8f1fb", "#cfe3f7", "#d8ecd9", "#fbe7c6", "#f7cfc0")


def scope_title(name: str) -> str:
    """A scope of `templates` in words: `template one`, `graph lookup(fast=claude)`, `template one of graph lookup`."""
    if name == FINALLY:
        return name
    if name.startswith("agent:"):
        return f"agent {name.removeprefix('agent:')}"
    if name.endswith(f"/{FINALLY}"):
        return f"{FINALLY} of {scope_title(name.removesuffix(f'/{FINALLY}'))}"
    if not name.startswith("graph:"):
        return f"template {name}"
    graph, _, template = name.removeprefix("graph:").partition("/")
    return f"template {template} of graph {graph}" if template else f"graph {graph}"


def _box(name: str) -> str:
    """The name of a scope as an identifier of Mermaid."""
    return "t_" + "".join(c if c.isalnum() else f"_{ord(c):x}_" if c != "_" else "__" for c in name)


def place(graph: CompiledGraph, node: Node) -> str:
    """The place of a node on the scale."""
    return _furthest(graph, [node], set())


def _furthest(graph: CompiledGraph, nodes: Iterable[Node], seen: set[str]) -> str:
    """The furthest place of these nodes and of all below them. A template is looked into once."""
    furthest = SCALE[0]
    for node in nodes:
        here = node.kind if node.kind in SCALE else SCALE[0]
        if node.template is not None and node.template not in seen:
            seen.add(node.template)
            here = _furthest(graph, graph.templates[node.template].nodes, seen)
        furthest = max(furthest, here, key=SCALE.index)
    return furthest


def _scopes(graph: CompiledGraph) -> Iterator[tuple[str, Scope]]:
    yield "root", graph.root
    for name, scope in graph.templates.items():
        yield _box(name), scope


def _scope_lines(graph: CompiledGraph, title: str, scope: Scope) -> Iterator[str]:
    names = list(scope.input_schema.get("properties", {}))
    yield f"{title}({', '.join(names)})"
    width = max(len(node.name) for node in scope.nodes)
    for name in scope.order:
        node = scope.by_name[name]
        gauge, detail = _gauge(place(graph, node)), _detail(graph, node)
        yield f"  {gauge}  {name.ljust(width)}  {node.kind.ljust(9)}  {detail}".rstrip()
        for other in node.after:
            arrow, why = _reason(scope, node, other)
            yield f"  {' ' * len(SCALE)}  {' ' * width}    {arrow} {other}{f'   {why}' if why else ''}"
    for name, expr in scope.output.items():
        yield f"  → {name}: {expr.src}"


def _gauge(kind: str) -> str:
    """`··●··`: where on the scale."""
    at = SCALE.index(kind)
    return "·" * at + "●" + "·" * (len(SCALE) - at - 1)


def _models(graph: CompiledGraph, first: str) -> str:
    """`fast`, or `fast, else slow`."""
    return ", else ".join(graph.models(first))


def _detail(graph: CompiledGraph, node: Node) -> str:
    if node.tool is not None:
        return f"tool {node.tool.server}/{node.tool.name}"
    if node.agent is not None:
        graphs = "".join(f" → {scope_title(name)}" for name in node.graph_tools)
        return f"model {_models(graph, node.agent.model)}, {len(node.agent.tools)} tools{graphs}"
    if node.llm is not None:
        return f"model {_models(graph, node.llm.ref)}"
    if node.graph is not None:
        return scope_title(node.graph.template)
    if node.loop is not None:
        return f"{_rounds(node.loop)} → {scope_title(node.loop.template)}"
    if node.switch is not None:
        return f"on {_shortened(node.switch.value.src)}"
    if node.map is None:
        return ""
    source = node.map.items or node.map.jsonl or node.map.prefix
    text = _shortened(source.src) if source is not None else ""
    each = "for each" if node.map.items else "for each line of" if node.map.jsonl else "for each file below"
    return f"{each} {text} → {scope_title(node.map.template)}"


def _rounds(loop: LoopBlock) -> str:
    """`at most 5 rounds, until output.good, the best by output.score`."""
    until = f", until {_shortened(loop.until.src)}" if loop.until is not None else ""
    best = f", the best by {_shortened(loop.score.src)}" if loop.score is not None else ""
    return f"at most {loop.max_iterations} rounds{until}{best}"


def _reason(scope: Scope, node: Node, other: str) -> tuple[str, str]:
    """The arrow of an edge, and the expression that made it where it is an inferred one."""
    if other == node.choice:
        return "⇐", _case(scope.by_name[other], node.name)
    if node.join is not None and other in node.join.racers:
        return "←", f"races, with {len(node.join.racers) - 1} more, for {node.join.count} to win"
    if other in node.control:
        return "←", ""
    for where, expr in _expressions(node):
        if any(path == f"nodes.{other}" or path.startswith(f"nodes.{other}.") for path in expr.reads):
            return "⇠", f"{where}: {_shortened(expr.src)}"
    for where, expr in _expressions(node):
        if any(path == "state" or path.startswith("state.") for path in expr.reads):
            return "⇠", f"{where}: {_shortened(expr.src)}"
    return "⇠", ""


def _case(switch: Node, name: str) -> str:
    """Which case of a switch a node stands in."""
    cases = switch.switch.cases if switch.switch is not None else ()
    found = next((case for case in cases if name in case.nodes), None)
    return f"case {_shortened(canonical(found.equals).decode())}" if found is not None else "default"


def _expressions(node: Node) -> Iterator[tuple[str, Expr]]:
    if node.when is not None:
        yield "when", node.when
    for name, expr in node.with_.items():
        yield f"with.{name}", expr
    for name, load in node.load.items():
        yield f"load.{name}", load.from_
    if node.map is not None:
        source = node.map.jsonl or node.map.prefix
        for name, part in (("map.items", node.map.items), ("map.itemsFrom", source), ("map.key", node.map.key)):
            if part is not None:
                yield name, part
    if node.loop is not None:
        yield from ((f"loop.next.{name}", expr) for name, expr in node.loop.next.items())
        for name, part in (("loop.until", node.loop.until), ("loop.score", node.loop.score)):
            if part is not None:
                yield name, part
    if node.switch is not None:
        yield "switch.value", node.switch.value
    for name, expr in (node.otherwise or {}).items():
        yield f"otherwise.{name}", expr
    for name, expr in node.writes.items():
        yield f"writes.{name}", expr


def _shortened(text: str, limit: int = 60) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _mermaid_scope(graph: CompiledGraph, prefix: str, title: str, scope: Scope) -> Iterator[str]:
    yield f'  subgraph {prefix}["{title}"]'
    for node in scope.nodes:
        left, right = _SHAPES[node.kind]
        label = f"{node.name}<br/><small>{node.kind}{_mermaid_detail(node)}</small>"
        yield f'    {prefix}_{node.name}{left}"{label}"{right}:::{place(graph, node)}'
    for node in scope.nodes:
        for other in node.after:
            arrow, why = _reason(scope, node, other)
            link = (
                "-->"
                if arrow == "←"
                else f'== "{_escaped(why)}" ==>'
                if arrow == "⇐"
                else f'-. "{_escaped(why)}" .->'
                if why
                else "-.->"
            )
            yield f"    {prefix}_{other} {link} {prefix}_{node.name}"
    yield "  end"


def _mermaid_detail(node: Node) -> str:
    if node.switch is not None:
        return f"<br/>{_escaped(_shortened(node.switch.value.src))}"
    if node.tool is not None:
        return f" {_escaped(node.tool.server)}/{_escaped(node.tool.name)}"
    return f" {node.llm.ref}" if node.llm is not None else f" {node.template}" if node.template is not None else ""


def _escaped(text: str) -> str:
    for sign, code in (("&", "#amp;"), ('"', "#quot;"), ("<", "#lt;"), (">", "#gt;")):
        text = text.replace(sign, code)
    return text

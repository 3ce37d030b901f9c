"""Compiled graphs for tests of the worker, built by hand: each node's expressions are bare paths or plain Python."""

from __future__ import annotations

from typing import Any

from decurion_crds.compiled import Code, CompiledGraph, Expr, LlmCall, MapBlock, Node, Scope, Text, Tolerate
from decurion_worker.engine.opened import UNBOUNDED

ANY: dict[str, Any] = {}


def path(text: str) -> Expr:
    """A bare path such as `input.reports` or `nodes.read.output.text`."""
    steps = tuple(text.split("."))
    py = steps[0] + "".join(f'["{s}"]' for s in steps[1:])
    return Expr(src=text, py=py, reads=(text,), path=steps)


def expr(py: str, *reads: str) -> Expr:
    return Expr(src=py, py=py, reads=tuple(sorted(reads)))


def code(name: str, body: str, *, after: tuple[str, ...] = (), output: Any = None, **with_: str) -> Node:
    """A code node whose function body is `body` and whose `with` names are bare paths."""
    args = ", ".join(with_)
    py = f"def main({args}):\n" + "\n".join("    " + line for line in body.splitlines())
    return node(name, "code", after=after, output=output, with_=with_, code=Code(src=body, py=py))


def node(
    name: str, kind: str, *, after: tuple[str, ...] = (), output: Any = None, with_: Any = None, **block: Any
) -> Node:
    exprs = {k: path(v) if isinstance(v, str) else v for k, v in (with_ or {}).items()}
    block_reads = [r for e in _exprs(block) for r in e.reads] if kind == "map" else []
    if "when" in block and block["when"] is not None:
        block_reads += block["when"].reads
    reads = tuple(sorted({r for e in exprs.values() for r in e.reads} | set(block_reads)))
    parents = tuple(sorted({r.split(".")[1] for r in reads if r.startswith("nodes.")}))
    return Node(
        name=name,
        kind=kind,
        after=tuple(dict.fromkeys((*after, *parents))),
        control=after,
        parents=parents,
        reads=reads,
        with_=exprs,
        output=output if output is not None else ANY,
        timeout_seconds=30.0,
        digest=f"{name}-digest",
        **block,
    )


def _exprs(block: dict[str, Any]) -> list[Expr]:
    found = block.get("map")
    return [e for e in (found.items, found.jsonl) if e is not None] if isinstance(found, MapBlock) else []


def fan_out(
    name: str, items: str, template: str, *, as_: str = "item", tolerate: Tolerate | None = None, **more: Any
) -> Node:
    block = MapBlock(items=path(items), as_=as_, template=template, tolerate=tolerate or Tolerate(count=0), **more)
    # As the compiler has it: a map has no time of its own.
    return node(name, "map", map=block).model_copy(update={"timeout_seconds": UNBOUNDED})


def llm(name: str, ref: str, *, output: Any = None, **with_: str) -> Node:
    parts: list[Any] = []
    for key in with_:
        parts += [f"{key}=", path(key), "\n"]
    return node(name, "llm", with_=with_, output=output, llm=LlmCall(ref=ref, prompt=Text(parts=tuple(parts))))


def scope(
    *nodes: Node, output: dict[str, Expr], inputs: tuple[str, ...] = (), leaf: bool = True, digest: str = "s"
) -> Scope:
    return Scope(
        input_schema={"type": "object", "properties": {n: {} for n in inputs}},
        nodes=nodes,
        order=_order(nodes),
        output=output,
        output_schema=ANY,
        leaf=leaf,
        digest=digest,
    )


def _order(nodes: tuple[Node, ...]) -> tuple[str, ...]:
    done: list[str] = []
    while len(done) < len(nodes):
        done += [n.name for n in nodes if n.name not in done and all(a in done for a in n.after)][:1]
    return tuple(done)


def graph(root: Scope, *, llms: dict[str, Any] | None = None, **templates: Scope) -> CompiledGraph:
    return CompiledGraph(name="g", root=root, templates=templates, llms=llms or {})


def map_reduce() -> CompiledGraph:
    """items → map(double → add one) → total. The output is the sum of 2n + 1."""
    one = scope(
        code("double", "return {'n': item * 2}", item="input.item"),
        code("plus", "return {'n': d + 1}", d="nodes.double.output.n"),
        output={"n": path("nodes.plus.output.n")},
        inputs=("item",),
    )
    root = scope(
        code("plan", "return {'items': list(range(n))}", n="input.n"),
        fan_out("each", "nodes.plan.output.items", "one"),
        code("total", "return {'sum': sum(r['n'] for r in rows)}", rows="nodes.each.output.items"),
        output={"sum": path("nodes.total.output.sum")},
        inputs=("n",),
        leaf=False,
    )
    return graph(root, one=one)


def nested() -> CompiledGraph:
    """A map whose branches hold a map each: rows of numbers, each row summed, the sums listed."""
    cell = scope(
        code("square", "return {'n': v * v}", v="input.v"), output={"n": path("nodes.square.output.n")}, inputs=("v",)
    )
    row = scope(
        fan_out("cells", "input.row", "cell", as_="v"),
        code("sum", "return {'n': sum(c['n'] for c in cells)}", cells="nodes.cells.output.items"),
        output={"n": path("nodes.sum.output.n")},
        inputs=("row",),
        leaf=False,
    )
    root = scope(
        fan_out("rows", "input.rows", "row", as_="row"),
        output={"rows": path("nodes.rows.output.items")},
        inputs=("rows",),
        leaf=False,
    )
    return graph(root, row=row, cell=cell)


def tolerant() -> CompiledGraph:
    """A map that tolerates the failure of one of its items."""
    one = scope(
        code("first", "return {'n': 10 // item}", item="input.item"),
        code("second", "return {'n': n + 1}", n="nodes.first.output.n"),
        output={"n": path("nodes.second.output.n")},
        inputs=("item",),
    )
    root = scope(
        fan_out("each", "input.items", "one", tolerate=Tolerate(count=1)),
        output={"out": path("nodes.each.output.items")},
        inputs=("items",),
        leaf=False,
    )
    return graph(root, one=one)

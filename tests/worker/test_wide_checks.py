"""What a schema says of the items of a wide list holds too where some of these hold wide lists."""

from __future__ import annotations

from graphs import code, graph, node, path, scope
from test_runs import done


async def test_items_beside_one_that_holds_a_wide_list_are_checked() -> None:
    item = {"type": "object", "properties": {"id": {"type": "integer", "maximum": 5}, "big": {"type": "array"}}}
    schema = {"type": "object", "properties": {"rows": {"type": "array", "items": item}}}
    rows = "{'id': i if i < 512 else 0, 'pad': 'y' * 100, 'big': ['z' * 100] * (900 if i == 0 else 0)}"
    root = scope(
        code("plan", f"return [{rows} for i in range(700)]"),
        node("on", "transform", with_={"rows": "nodes.plan.output"}, transform={"rows": path("rows")}, output=schema),
        output={"n": path("nodes.on.output.rows")},
    )
    session, _ = await done(graph(root), {})
    assert session.projection()["phase"] == "Failed"
    assert session.facts.reason == "OutputBroken"

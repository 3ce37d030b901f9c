"""Tool servers that whoever uses a graph binds: how a graph is typed, what is called, and what does not fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from decurion_crds.compile import Checker, Compilation, Module, compile_graph
from decurion_crds.v1alpha1 import LLM, Agent, MCPServer, TaskGraph

API = "decurion.dev/v1alpha1"
TEXT = {"type": "string"}
HITS = {"type": "object", "properties": {"hits": {"type": "integer"}}, "required": ["hits"]}


@pytest.fixture(scope="module")
def checker() -> Iterator[Checker]:
    with Checker() as opened:
        yield opened


def resource(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": API, "kind": kind, "metadata": {"name": name}, "spec": spec}


def graph(name: str, *nodes: dict[str, Any], **spec: Any) -> TaskGraph:
    return TaskGraph.model_validate(resource("TaskGraph", name, {"nodes": list(nodes), "output": {}, **spec}))


def server(name: str, *tools: dict[str, Any], **spec: Any) -> MCPServer:
    given = {"url": f"http://127.0.0.1:1/{name}", "tools": list(tools), **spec}
    return MCPServer.model_validate(resource("MCPServer", name, given))


def tool(name: str = "find", given: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"name": name, "input": {"q": TEXT}, "output": HITS if given is None else given, **more}


FIND = {
    "name": "find",
    "with": {"q": "'x'"},
    "tool": {"server": "searcher", "name": "find", "arguments": {"q": "{{ q }}"}},
}
LOOKUP = graph("lookup", FIND, needs={"searcher": "MCPServer"}, output={"hits": "nodes.find.output.hits"})
LLMS = {"fast": LLM.model_validate(resource("LLM", "fast", {"protocol": "scripted", "scripted": {"default": "x"}}))}


def use(name: str, ref: str = "lookup", **bind: str) -> dict[str, Any]:
    return {"name": name, "graph": {"ref": ref, "bind": bind}}


def compilation(
    checker: Checker, *graphs: TaskGraph, servers: list[MCPServer], agents: Mapping[str, Agent] | None = None
) -> Compilation:
    return compile_graph(
        graphs[0],
        llms=LLMS,
        servers={one.name: one for one in servers},
        agents=agents or {},
        graphs={one.name: Module(one) for one in graphs[1:]},
        checker=checker,
    )


def told(checker: Checker, *graphs: TaskGraph, servers: list[MCPServer]) -> list[str]:
    return [
        finding.text()
        for finding in compilation(checker, *graphs, servers=servers).findings
        if finding.severity == "error"
    ]


def test_each_use_calls_the_server_that_it_binds(checker: Checker) -> None:
    """Its policy too: whether a call may be repeated, and how long it may take, are those of the bound one."""
    main = graph("main", use("left", searcher="web"), use("right", searcher="wiki"), use("own"))
    policy = {"readOnly": True, "timeoutSeconds": 7}
    servers = [server("searcher", tool()), server("web", tool(policy=policy)), server("wiki", tool(), timeoutSeconds=9)]
    found = compilation(checker, main, LOOKUP, servers=servers).result()
    nodes = {name: scope.by_name["find"] for name, scope in found.templates.items()}
    calls = {name: (n.tool.server, n.tool.repeatable, n.timeout_seconds) for name, n in nodes.items() if n.tool}
    assert calls == {
        "graph:lookup": ("searcher", False, 30.0),
        "graph:lookup(searcher=web)": ("web", True, 7.0),
        "graph:lookup(searcher=wiki)": ("wiki", False, 9.0),
    }
    assert sorted(found.servers) == ["searcher", "web", "wiki"]
    assert len({node.digest for node in nodes.values()}) == 3


def test_a_need_without_a_resource_of_its_name_is_right_where_every_use_binds_it(checker: Checker) -> None:
    main = graph("main", use("left", searcher="web"), output={"hits": "nodes.left.output.hits + 1"})
    found = compilation(checker, main, LOOKUP, servers=[server("web", tool())]).result()
    assert found.root.output_schema["properties"]["hits"] == {"type": "integer"}
    assert sorted(found.servers) == ["web"]


def test_a_need_that_nobody_binds_is_told_at_the_use_and_at_the_graph_alone(checker: Checker) -> None:
    main = graph("main", use("left", searcher="web"), use("right"))
    servers = [server("web", tool())]
    assert told(checker, main, LOOKUP, servers=servers) == [
        "nodes.right.graph.ref [REF-MISSING] the graph lookup needs an MCPServer searcher, and there is none of that "
        "name; bind one, as in bind: {searcher: NAME}"
    ]
    assert told(checker, LOOKUP, servers=servers) == [
        'needs.searcher [REF-MISSING] there is no MCPServer "searcher"; bind it where the graph is used, or apply an '
        "MCPServer of that name"
    ]


def test_a_need_is_passed_on_through_a_graph_in_the_middle(checker: Checker) -> None:
    middle = graph("middle", use("inner", searcher="engine"), needs={"engine": "MCPServer"})
    main = graph("main", use("one", "middle", engine="web"), use("two", "middle", engine="wiki"))
    servers = [server("web", tool()), server("wiki", tool())]
    found = compilation(checker, main, middle, LOOKUP, servers=servers).result()
    assert {name for name in found.templates if "lookup" in name} == {
        "graph:lookup(searcher=web)",
        "graph:lookup(searcher=wiki)",
    }
    bare = graph("main", use("one", "middle", engine="web"), use("two", "middle"))
    [said] = told(checker, bare, middle, LOOKUP, servers=servers)
    assert said.startswith("nodes.two.graph.ref [REF-MISSING] the graph middle needs an MCPServer engine")


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (tool("search"), 'REF-MISSING] the MCPServer wiki lists no tool "find"; its tools are search'),
        (
            tool(input={"q": TEXT, "lang": TEXT}),
            "EXPR-TYPE] the tool find of wiki does not fit where lookup.find calls it: it does not take what is",
        ),
        (
            tool(given={"hits": TEXT}),
            "EXPR-TYPE] the tool find of wiki does not fit where lookup.find calls it: it does not give what is read (",
        ),
    ],
)
def test_a_server_that_does_not_fit_is_told_where_it_is_bound(
    checker: Checker, other: dict[str, Any], why: str
) -> None:
    main = graph("main", use("left", searcher="web"), use("right", "middle", engine="wiki"))
    middle = graph("middle", use("inner", searcher="engine"), needs={"engine": "MCPServer"})
    servers = [server("web", tool()), server("wiki", other)]
    [said] = told(checker, main, middle, LOOKUP, servers=servers)
    assert said.startswith(f"nodes.right.graph.bind.engine [{why}"), said


def test_an_agent_in_a_graph_has_the_tools_of_the_server_that_is_bound(checker: Checker) -> None:
    agent = {"model": "fast", "prompt": "x", "tools": [{"server": "searcher"}]}
    inner = graph("inner", {"name": "ask", "agent": agent}, needs={"searcher": "MCPServer"})
    main = graph("main", use("left", "inner", searcher="web"), use("right", "inner", searcher="wiki"))
    servers = [server("web", tool(), tool("fetch")), server("wiki", tool(policy={"timeoutSeconds": 7}))]
    found = compilation(checker, main, inner, servers=servers).result()
    agents = {name: scope.by_name["ask"].agent for name, scope in found.templates.items()}
    tools = {
        name: [(one.name, one.call.server, one.timeout_seconds) for one in call.tools if one.call]
        for name, call in agents.items()
        if call is not None
    }
    assert tools == {
        "graph:inner(searcher=web)": [("find", "web", 30.0), ("fetch", "web", 30.0)],
        "graph:inner(searcher=wiki)": [("find", "wiki", 7.0)],
    }
    allowing = {**agent, "tools": [{"server": "searcher", "allow": ["fetch"]}]}
    strict = graph("inner", {"name": "ask", "agent": allowing}, needs={"searcher": "MCPServer"})
    [said] = told(checker, main, strict, servers=servers)
    assert said == (
        'nodes.right.graph.bind.searcher [REF-MISSING] the MCPServer wiki lists no tool "fetch"; its tools are find'
    )


def test_a_tool_of_an_agent_binds_and_maps_and_loops_do(checker: Checker) -> None:
    bind = {"searcher": "web"}
    loop = {"ref": "lookup", "bind": bind, "maxIterations": 1, "onExhausted": "succeed"}
    main = graph(
        "main",
        {"name": "ask", "agent": {"model": "fast", "prompt": "x", "tools": [{"graph": "lookup", "bind": bind}]}},
        {"name": "each", "map": {"items": "[1]", "as": "n", "ref": "counted", "bind": bind}},
        {"name": "round", "loop": loop},
    )
    counted = graph("counted", FIND, needs={"searcher": "MCPServer"}, input={"n": {"type": "integer"}})
    found = compilation(checker, main, LOOKUP, counted, servers=[server("web", tool())]).result()
    assert sorted(found.templates) == ["graph:counted(searcher=web)", "graph:lookup(searcher=web)"]


def test_an_agent_that_stands_apart_binds_resources(checker: Checker) -> None:
    spec = {"model": "fast", "tools": [{"graph": "lookup", "bind": {"searcher": "web"}}]}
    clerk = Agent.model_validate(resource("Agent", "clerk", spec))
    main = graph("main", {"name": "ask", "agent": {"ref": "clerk", "prompt": "x"}})
    found = compilation(checker, main, LOOKUP, servers=[server("web", tool())], agents={"clerk": clerk}).result()
    assert sorted(found.templates) == ["graph:lookup(searcher=web)"]


def test_the_built_in_server_is_no_need_and_is_not_bound(checker: Checker) -> None:
    main = graph("main", use("left", searcher="workspace"))
    assert told(checker, main, LOOKUP, servers=[server("searcher", tool())]) == [
        "nodes.left.graph.bind.searcher [FIELD-VALUE] the server workspace is built in and cannot be bound; bind one "
        "that a resource declares"
    ]
    files = graph("files", {"name": "a", "transform": {"x": "1"}}, needs={"workspace": "MCPServer"})
    assert told(checker, files, servers=[])[0] == (
        "needs.workspace [FIELD-VALUE] the server workspace is built in and always the same; remove it, or rename the "
        "need"
    )

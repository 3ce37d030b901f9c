"""What a graph comes to with all that it refers to, and who is due when a part changes. Pure."""

from __future__ import annotations

from typing import Any

from decurion_crds.uses import uses
from decurion_operator.cache import Cache, trim
from decurion_operator.closures import reach
from decurion_operator.queue import Key


def graph(*refs: tuple[str, dict[str, str]], llm: str = "", needs: dict[str, str] | None = None) -> dict[str, Any]:
    nodes: list[dict[str, Any]] = [{"name": f"n{i}", "graph": {"ref": r, "bind": b}} for i, (r, b) in enumerate(refs)]
    nodes += [{"name": "ask", "llm": {"ref": llm, "prompt": "x"}}] if llm else []
    return {"nodes": nodes, "needs": needs or {}}


def test_a_closure_names_what_bindings_come_to_and_not_what_is_always_bound() -> None:
    graphs = {
        "leaf": graph(llm="fast", needs={"fast": "LLM"}),
        "middle": graph(("leaf", {"fast": "model"}), needs={"model": "LLM"}),
        "root": graph(("middle", {"model": "claude"}), ("leaf", {"fast": "gpt"}), llm="own"),
    }
    found = reach("root", graphs["root"], graphs.get)
    assert found.llms == {"claude", "gpt", "own"}
    assert found.graphs == {"leaf", "middle"}
    assert reach("middle", graphs["middle"], graphs.get).llms == {"model"}


def test_a_graph_that_is_missing_or_refers_to_itself_has_a_closure_all_the_same() -> None:
    graphs = {"a": graph(("b", {}), ("gone", {"x": "y"})), "b": graph(("a", {}), llm="fast")}
    found = reach("a", graphs["a"], graphs.get)
    assert (found.llms, found.graphs) == ({"fast"}, {"b", "gone"})


def test_each_graph_is_looked_at_once_for_each_binding() -> None:
    """Twenty levels with two uses of the next each: a million paths, twenty graphs."""
    graphs = {f"g{i}": graph((f"g{i + 1}", {}), (f"g{i + 1}", {})) for i in range(20)}
    asked: list[str] = []

    def look(name: str) -> Any:
        asked.append(name)
        return graphs.get(name)

    assert len(reach("g0", graphs["g0"], look).graphs) == 20
    assert len(asked) == 20


def test_bindings_without_end_are_cut() -> None:
    needs = {f"n{i}": "LLM" for i in range(20)}
    swap = {f"n{i}": f"n{(i + 1) % 20}" for i in range(20)}
    swaps = [dict(swap), {**{n: n for n in needs}, "n0": "n1", "n1": "n0"}]
    graphs = {"g": graph(*(("g", s) for s in swaps), llm="n0", needs=needs)}
    assert len(reach("g", graphs["g"], graphs.get).llms) == 20


def test_fallbacks_belong_to_a_closure_as_what_stands_for_a_name_has_them() -> None:
    llms: dict[str, Any] = {"fast": {"fallback": "slow"}, "slow": {"fallback": "fast"}, "big": {"fallback": "gone"}}
    spec = graph(llm="fast")
    assert reach("g", spec, lambda name: None, llm=llms.get).llms == {"fast", "slow"}
    swapped = reach("g", spec, lambda name: None, llm=lambda name: llms.get({"fast": "big"}.get(name, name)))
    assert swapped.llms == {"fast", "gone"}


def test_what_is_no_name_is_passed_over() -> None:
    spec = {"nodes": [{"graph": {"ref": 1}}, {"map": "x"}, 3, {"llm": {"ref": []}}], "templates": "t", "needs": 4}
    assert uses(spec) == uses({})


def resource(kind: str, name: str, spec: Any) -> Any:
    meta = {"name": name, "namespace": "n", "uid": name, "resourceVersion": "1", "generation": 1}
    return trim(kind, {"metadata": meta, "spec": spec})


def test_whoever_has_a_part_in_its_closure_is_found_once() -> None:
    cache = Cache()
    cache.put(resource("TaskGraph", "leaf", graph(llm="fast", needs={"fast": "LLM"})))
    cache.put(resource("TaskGraph", "one", graph(("leaf", {}))))
    cache.put(resource("TaskGraph", "two", graph(("leaf", {"fast": "claude"}))))
    cache.put(resource("TaskGraph", "top", graph(("one", {}), ("two", {}))))
    cache.put(resource("TaskGraph", "apart", graph(llm="slow")))

    def users(kind: str, name: str) -> list[str]:
        return sorted(one.key.name for one in cache.users(Key(kind, "n", name)))

    cache.put(resource("LLM", "fast", {"fallback": "spare"}))
    cache.put(resource("LLM", "spare", {"fallback": "last"}))
    assert users("LLM", "fast") == ["leaf", "one", "top", "two"]
    assert users("LLM", "last") == users("LLM", "spare") == users("LLM", "fast")
    assert [key.name for key in cache.falling_back(Key("LLM", "n", "last"))] == ["last", "spare", "fast"]
    assert users("LLM", "claude") == ["top", "two"]
    assert users("TaskGraph", "leaf") == ["one", "top", "two"]
    assert users("TaskGraph", "top") == []


def test_the_graphs_of_agents_belong_to_the_closure_under_their_own_bindings() -> None:
    """The names that an Agent binds are resources; those of an agent in a node are names of its graph."""
    tools = [{"graph": "leaf", "bind": {"fast": "model"}}]
    agents = {"clerk": {"model": "mind", "tools": tools}}
    graphs = {
        "leaf": graph(llm="fast", needs={"fast": "LLM"}),
        "named": {"needs": {"model": "LLM"}, "nodes": [{"name": "ask", "agent": {"ref": "clerk"}}]},
        "inline": {"needs": {"model": "LLM"}, "nodes": [{"name": "ask", "agent": {"model": "mind", "tools": tools}}]},
        "top": graph(("named", {"model": "claude"})),
        "other": graph(("inline", {"model": "claude"})),
    }
    named = reach("top", graphs["top"], graphs.get, agents.get)
    assert (named.graphs, named.llms, named.agents) == ({"named", "leaf"}, {"mind", "model", "claude"}, {"clerk"})
    inline = reach("other", graphs["other"], graphs.get, agents.get)
    assert (inline.graphs, inline.llms) == ({"inline", "leaf"}, {"mind", "claude"})


def test_whoever_has_a_graph_by_an_agent_is_found() -> None:
    cache = Cache()
    cache.put(resource("TaskGraph", "leaf", graph(llm="fast", needs={"fast": "LLM"})))
    tools = [{"graph": "leaf", "bind": {"fast": "claude"}}]
    cache.put(resource("Agent", "clerk", {"model": "mind", "tools": tools}))
    cache.put(resource("TaskGraph", "asks", {"nodes": [{"name": "ask", "agent": {"ref": "clerk"}}]}))
    for kind, name in (("TaskGraph", "leaf"), ("LLM", "claude"), ("LLM", "mind"), ("Agent", "clerk")):
        assert "asks" in {one.key.name for one in cache.users(Key(kind, "n", name))}, name


def test_agents_that_are_tools_of_agents_belong_to_the_closure_also_in_a_circle() -> None:
    agents: dict[str, dict[str, Any]] = {
        "one": {"model": "fast", "tools": [{"agent": "two"}, {"graph": "lookup"}]},
        "two": {"model": "slow", "tools": [{"agent": "one"}, {"server": "desk"}]},
    }
    spec: dict[str, Any] = {"nodes": [{"name": "ask", "agent": {"model": "own", "tools": [{"agent": "one"}]}}]}
    found = reach("g", spec, {"lookup": graph(llm="deep")}.get, agents.get)
    assert found.agents == {"one", "two"}
    assert found.llms == {"own", "fast", "slow", "deep"}
    assert found.servers == {"desk"}


def test_the_graph_is_due_when_an_agent_behind_its_agent_changes() -> None:
    cache = Cache()
    ask = {"nodes": [{"name": "ask", "agent": {"ref": "one", "prompt": "x"}}]}
    for kind, name, spec in (
        ("TaskGraph", "g", ask),
        ("Agent", "one", {"model": "fast", "tools": [{"agent": "two"}]}),
        ("Agent", "two", {"model": "slow", "tools": [{"agent": "one"}]}),
    ):
        cache.put(resource(kind, name, spec))
    (user,) = cache.users(Key("Agent", "n", "two"))
    assert user.key.name == "g"

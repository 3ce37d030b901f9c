"""Graphs made of graphs on the real API server: no order of applying, changes that reach users, runs that stay."""

from typing import Any

from decurion_operator.queue import Key

INTEGER = {"type": "integer"}
LLM_SPEC = {"protocol": "scripted", "scripted": {"default": {"n": 1}}}
INNER = {
    "needs": {"fast": "LLM"},
    "input": {"n": INTEGER},
    "nodes": [
        {"name": "ask", "with": {"n": "input.n"}, "llm": {"ref": "fast", "prompt": "{{ n }}"}, "output": {"n": INTEGER}}
    ],
    "output": {"n": "nodes.ask.output.n"},
}


def outer(ref: str = "inner", **bind: str) -> dict[str, Any]:
    node = {"name": "use", "with": {"n": "input.n"}, "graph": {"ref": ref, "bind": bind}}
    return {"input": {"n": INTEGER}, "nodes": [node], "output": {"n": "nodes.use.output.n"}}


def prompting(text: str) -> dict[str, Any]:
    [node] = INNER["nodes"]
    return {**INNER, "nodes": [{**node, "llm": {"ref": "fast", "prompt": f"{text} {{{{ n }}}}"}}]}


def message(status: dict[str, Any], kind: str) -> str:
    return next(str(c["message"]) for c in status["conditions"] if c["type"] == kind)


async def test_a_graph_waits_for_those_it_refers_to_and_follows_their_changes_while_runs_stay(
    cluster: Any, pool: Any, operate: Any, until: Any
) -> None:
    async with operate() as operator:
        await cluster.create("WorkerPool", "default", {"mode": "External", "url": pool.url})
        await cluster.create("TaskGraph", "outer", outer(fast="claude"))
        await cluster.create("TaskGraphRun", "one", {"graph": "outer", "input": {"n": 1}})
        status = await cluster.until_status(
            "TaskGraph", "outer", Ready="False", ReferencesResolved="False", Stalled="False", Compiled="Unknown"
        )
        assert message(status, "Ready") == (
            'nodes.use.graph.ref [REF-MISSING] there is no TaskGraph "inner"; apply one of that name (there are none)'
        )
        await cluster.until_status("TaskGraphRun", "one", phase="Pending", reason="GraphNotReady")
        await cluster.create("TaskGraph", "inner", INNER)
        status = await cluster.until_status("TaskGraph", "outer", Ready="False", ReferencesResolved="False")

        async def names_the_llm() -> Any:
            return "claude" in message(await cluster.status("TaskGraph", "outer"), "Ready")

        await until(names_the_llm, what="the LLM that is missing to be named")
        await cluster.create("LLM", "claude", LLM_SPEC)
        first = await cluster.until_status("TaskGraph", "outer", Ready="True", ReferencesResolved="True")
        await cluster.until_status("TaskGraph", "inner", Ready="True")
        await cluster.create("TaskGraph", "unbound", outer())
        alone = await cluster.until_status("TaskGraph", "inner", Ready="False", ReferencesResolved="False")
        assert message(alone, "Ready").startswith('needs.fast [REF-MISSING] there is no LLM "fast"; bind it where')
        await cluster.delete("TaskGraph", "unbound")
        await cluster.until_status("TaskGraph", "inner", Ready="True", ReferencesResolved="True")
        run = await cluster.until_status("TaskGraphRun", "one", phase="Running")
        assert run["graphDigest"] == first["digest"]
        assert "graph:inner(fast=claude)" in pool.bundles[first["digest"]]["templates"]

        await cluster.patch("TaskGraph", "inner", {"spec": prompting("Count")})

        async def compiled_again() -> Any:
            return (await cluster.status("TaskGraph", "outer"))["digest"] != first["digest"]

        await until(compiled_again, what="the closure with the changed graph")
        assert (await cluster.status("TaskGraphRun", "one"))["graphDigest"] == first["digest"]
        await cluster.create("TaskGraphRun", "two", {"graph": "outer", "input": {"n": 1}})
        second = await cluster.until_status("TaskGraphRun", "two", phase="Running")
        assert second["graphDigest"] == (await cluster.status("TaskGraph", "outer"))["digest"]

        await cluster.patch("TaskGraph", "inner", {"spec": prompting("Count {{ m }}")})
        broken = await cluster.until_status("TaskGraph", "outer", Ready="False", Stalled="False")
        assert message(broken, "Ready").startswith('TaskGraph "inner" is not ready: nodes.ask.llm.prompt [EXPR-NAME]')
        assert "findings" not in broken, "they are told where they are mended"
        own = await cluster.until_status("TaskGraph", "inner", Stalled="True")
        assert own["findings"][0]["code"] == "EXPR-NAME"

        await cluster.delete("TaskGraph", "inner")
        await cluster.until_status("TaskGraph", "outer", Ready="False", Compiled="Unknown")
        assert operator.meter.tally.reconciles[Key("TaskGraph", cluster.namespace, "outer")] <= 30


async def test_a_run_binds_what_is_inside_another_graph(cluster: Any, pool: Any, operate: Any) -> None:
    async with operate():
        await cluster.create("WorkerPool", "default", {"mode": "External", "url": pool.url})
        for name in ("fast", "other"):
            await cluster.create("LLM", name, {"protocol": "scripted", "scripted": {"default": name}})
        await cluster.create("TaskGraph", "inner", INNER)
        await cluster.create("TaskGraph", "outer", outer())
        digests = set()
        for name, llms in (("plain", {}), ("swapped", {"fast": "other"})):
            spec = {"graph": "outer", "input": {"n": 1}, "overrides": {"llms": llms}}
            await cluster.create("TaskGraphRun", name, spec)
            run = await cluster.until_status("TaskGraphRun", name, phase="Running")
            digests.add(run["graphDigest"])
            [model] = pool.bundles[run["graphDigest"]]["llms"].values()
            assert model["scripted"]["default"] == (llms.get("fast") or "fast")
        assert len(digests) == 2


async def test_graphs_that_contain_one_another_never_run_and_say_so(cluster: Any, operate: Any) -> None:
    async with operate():
        await cluster.create("TaskGraph", "a", outer("b"))
        await cluster.create("TaskGraph", "b", outer("a"))
        first = await cluster.until_status("TaskGraph", "a", Ready="False", Compiled="False", Stalled="True")
        assert "graphs contain one another (a → b → a)" in message(first, "Ready")
        other = await cluster.until_status("TaskGraph", "b", Ready="False", ReferencesResolved="False")
        assert message(other, "Ready").startswith('TaskGraph "a" is not ready: nodes.use.graph.ref [CYCLE]')


async def test_a_change_of_a_shared_graph_costs_each_user_few_looks(cluster: Any, operate: Any, until: Any) -> None:
    users = [f"user-{i}" for i in range(12)]
    async with operate() as operator:
        await cluster.create("LLM", "fast", LLM_SPEC)
        for name in users:
            await cluster.create("TaskGraph", name, outer("middle"))
        await cluster.create("TaskGraph", "middle", outer())
        await cluster.create("TaskGraph", "inner", INNER)
        digests = {}
        for name in users:
            digests[name] = (await cluster.until_status("TaskGraph", name, Ready="True"))["digest"]
        await cluster.patch("TaskGraph", "inner", {"spec": prompting("Count")})
        for name in users:

            async def again(name: str = name) -> Any:
                return (await cluster.status("TaskGraph", name))["digest"] != digests[name]

            await until(again, what=f"{name} with the changed graph")
        counts = operator.meter.tally.reconciles
        assert max(counts[Key("TaskGraph", cluster.namespace, name)] for name in users) <= 20

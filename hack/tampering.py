"""Changes of what is stored of runs, one at a time, drawn by a seed, and whether the verifier reports each.

The ledger holds five runs: `done` (a real run, signed by two drivers, with blobs, a wide list and a statement),
`begun` (a real run that is open), `long` (forty segments, with an index and the list of its blobs), `files` (versions
of files in packs and in records, one of them in parts, and encrypted values) and `plain` (unsigned). All have
anchors, at their length and at one before. What is not reported, because it harms nothing or cannot be seen, is left
out here and named in `docs/trust.md`: deleting what is made anew from the log (`index/`, `tail`, `needs`), and deleting
an anchor.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

from decurion_crds.canonical import canonical, merkle_root
from decurion_crds.compile import Checker, compile_graph
from decurion_crds.globs import ALL
from decurion_crds.v1alpha1 import parse_resource
from decurion_ledger import (
    Anchors,
    LogWriter,
    Record,
    Seal,
    Signer,
    SigningKey,
    Values,
    anchor,
    make_core,
    verify,
    vhash,
)
from decurion_ledger.errors import RunNotFound
from decurion_ledger.layout import final_key, needs_key, provenance_key, run_prefix, slot_key
from decurion_ledger.log import fence
from decurion_ledger.references import blobs_of
from decurion_ledger.segment import FORMAT, Segment, build, parse, prepare, segment_hash
from decurion_ledger.stores import MemoryStore
from decurion_ledger.workspace import EMPTY, Draft, Objects
from decurion_ledger.workspace.objects import LARGE
from decurion_worker.embedded import run_embedded
from decurion_worker.opening import OpenRequest

AT = "2026-12-02T10:00:00Z"
SIGNED, RUNS = ("done", "begun", "long", "files"), ("done", "begun", "long", "files", "plain")
ANYTHING = {"type": "object", "additionalProperties": True}
GRAPH = {
    "apiVersion": "decurion.dev/v1alpha1",
    "kind": "TaskGraph",
    "metadata": {"name": "wide"},
    "spec": {
        "nodes": [
            {
                "name": "plan",
                "code": '{"rows": [{"text": "row " + str(i) * 30} for i in range(700)], "few": ["a", "b"]}',
                "output": {
                    "rows": {"type": "array", "items": {"type": "object", "properties": {"text": {"type": "string"}}}},
                    "few": {"type": "array", "items": {"type": "string"}},
                },
            },
            {
                "name": "each",
                "map": {"items": "nodes.plan.output.few", "as": "one", "template": "saying"},
            },
        ],
        "templates": [
            {
                "name": "saying",
                "input": {"one": {"type": "string"}},
                "nodes": [
                    {
                        "name": "say",
                        "with": {"one": "input.one"},
                        "code": '{"said": one * 3000}',
                        "output": {"said": {"type": "string"}},
                    }
                ],
                "output": {"said": "nodes.say.output.said"},
            }
        ],
        "output": {"all": "nodes.each.output.items"},
    },
}


@dataclass(frozen=True, slots=True)
class World:
    """The ledger, its anchors, and what an auditor knows: the public keys of root and anchors."""

    ledger: MemoryStore
    anchors: MemoryStore
    root: str
    anchor_key: str
    objects: dict[str, bytes] = field(default_factory=dict)
    anchor_objects: dict[str, bytes] = field(default_factory=dict)
    blobs: dict[str, list[str]] = field(default_factory=dict)
    """The keys of the blobs of each run."""

    def of(self, run: str) -> list[str]:
        """The keys of the objects of a run, its blobs among them."""
        return [*(key for key in self.objects if key.startswith(run_prefix(run))), *self.blobs[run]]

    def slots(self, run: str) -> int:
        return sum(key.startswith(f"{run_prefix(run)}log/") for key in self.objects)

    async def reported(self, run: str, *, roots: bool = True, anchors: bool = True) -> set[str]:
        """The codes of what the verifier finds of a run."""
        compared = Anchors(self.anchors, (self.anchor_key,)) if anchors else None
        known = (self.root,) if roots and run in SIGNED else ()
        try:
            return {problem.code for problem in await verify(self.ledger, run, roots=known, anchors=compared)}
        except RunNotFound:
            return {"RUN-NOT-FOUND"}


async def world() -> World:
    """The ledger as honest writers left it."""
    ledger, anchors, root, key = MemoryStore(), MemoryStore(), SigningKey.generate(), SigningKey.generate()
    found = World(ledger, anchors, root.public, key.public)

    async def anchored(run: str) -> None:
        report, _ = await anchor(ledger, run, anchors, key=key, at=AT)
        if report.problems:
            raise RuntimeError(f"{run}: {report.problems[0]}")

    for run in ("begun", "done"):
        await _run(ledger, run, root)
        await _reopen(ledger, run)
        await anchored(run)
    await _run(ledger, "done", root)
    for run in ("long", "plain"):
        await _written(ledger, run, root if run in SIGNED else None, 38 if run == "long" else 3, anchored)
    await _filled(ledger, root, anchored)
    for run in RUNS:
        await anchored(run)
        found.blobs[run] = [f"blobs/{sha[:2]}/{sha}" async for sha in blobs_of(ledger, run)]
    for store, held in ((ledger, found.objects), (anchors, found.anchor_objects)):
        held.update({info.key: await store.get(info.key) async for info in store.list("")})
    return found


async def _run(ledger: MemoryStore, run: str, root: SigningKey) -> None:
    with Checker() as checker:
        graph, _ = parse_resource(GRAPH)
        compiled = compile_graph(graph, llms={}, checker=checker).compiled
    request = OpenRequest(run=run, name="wide", graph=compiled, input={}, appointed=root)
    await run_embedded(request, ledger="memory://mutations", store=ledger, secrets=lambda graph: {})


async def _reopen(ledger: MemoryStore, run: str) -> None:
    """Take away what closed a run, as if its driver had died before."""
    last = 0
    async for info in ledger.list(f"{run_prefix(run)}log/"):
        last = max(last, int(info.key.rpartition("/")[2]))
    for key in (final_key(run), provenance_key(run), slot_key(run, last)):
        await ledger.delete(key)


async def _begun(ledger: MemoryStore, run: str, root: SigningKey | None) -> LogWriter:
    key = SigningKey.generate()

    def appoint(epoch: int) -> Any:
        return (root or key).certify(key.public, cluster="c", run=run, leader_epoch=epoch)

    opened = await LogWriter.open(
        ledger,
        run,
        leader_epoch=1,
        driver="d",
        genesis=lambda: Record.event("genesis", "/", {"name": run}),
        signer=Signer(key, appoint) if root is not None else None,
    )
    return opened.writer


async def _filled(ledger: MemoryStore, root: SigningKey, anchored: Callable[[str], Awaitable[None]]) -> None:
    """The run `files`: four nodes that leave files and give something sensitive."""
    writer = await _begun(ledger, "files", root)
    objects, version = Objects(ledger, "files"), EMPTY
    values = Values(ledger, "files", seal=Seal(b"k" * 32)).sealing()
    dice = random.Random(0)
    for number, size in enumerate((10, 40_000, LARGE + 100, 20)):
        draft = Draft(objects, version, read=ALL, write=ALL)
        draft.write(f"d/{number}", dice.randbytes(size))
        version = await draft.commit()
        value = {"patients": [f"{number} {i}" * 20 for i in range((1, 300, 2000, 1)[number])]}
        packed = await values.pack([value])
        core = make_core(
            type="commit",
            path=f"/n{number}",
            node="0" * 64,
            parents=[],
            input=None,
            outcome="ok",
            delta=values.name(value),
            schema=None,
        )
        core["workspace"] = version.root
        await writer.append([Record.result(core, {"values": packed, "workspace": version.to_json()})])
        if number == 1:
            await anchored("files")
    await writer.finish(Record.event("close", "/", {"outcome": "ok"}))


async def _written(
    ledger: MemoryStore,
    run: str,
    root: SigningKey | None,
    slots: int,
    anchored: Callable[[str], Awaitable[None]],
) -> None:
    writer = await _begun(ledger, run, root)
    values = Values(ledger, run)
    for i in range(slots):
        value = {"text": f"{run} {i} " * (900 if i % 10 == 0 else 1)}
        core = make_core(
            type="commit",
            path=f"/n{i}",
            node="0" * 64,
            parents=[],
            input=None,
            outcome="ok",
            delta=vhash(value),
            schema=None,
        )
        await writer.append([Record.result(core, {"values": await values.pack([value])})])
        if i == slots // 2:
            await anchored(run)
    await writer.finish(Record.event("close", "/", {"outcome": "ok"}))
    if run == "long":
        await _needs(ledger, run)


async def _needs(ledger: MemoryStore, run: str) -> None:
    from hashlib import sha256

    end = sha256(await ledger.get(final_key(run))).hexdigest()
    body = canonical({"blobs": [sha async for sha in blobs_of(ledger, run)], "final": end})
    await ledger.put(needs_key(run), body + b"\n" + sha256(body).hexdigest().encode())


# ------------------------------------------------------------------ changes

Change = dict[str, bytes | None]
"""What stands at a key of the ledger afterwards; None for nothing."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change of what is stored of `run`, in the ledger or, of `anchors`, there."""

    kind: str
    run: str
    ledger: Change = field(default_factory=dict)
    anchors: Change = field(default_factory=dict)


def draw(world: World, seed: int) -> Mutation:
    """The change of a seed. It differs from what is there."""
    dice = random.Random(seed)
    while True:
        kind = dice.choices(list(KINDS), weights=[weight for weight, _ in KINDS.values()])[0]
        run = dice.choices(RUNS, weights=(4, 3, 1, 3, 3))[0]
        found = KINDS[kind][1](world, dice, run)
        if found is None:
            continue
        there = world.anchor_objects if kind.startswith("anchor") else world.objects
        if any(there.get(key) != data for key, data in found.items()):
            return Mutation(
                kind, run, {} if kind.startswith("anchor") else found, found if kind.startswith("anchor") else {}
            )


def _any_object(world: World, dice: random.Random, run: str) -> str:
    return dice.choice(world.of(run))


def _flipped(data: bytes, dice: random.Random) -> bytes:
    bit = dice.randrange(len(data) * 8)
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def _flip(world: World, dice: random.Random, run: str) -> Change:
    key = _any_object(world, dice, run)
    return {key: _flipped(world.objects[key], dice)}


def _byte(world: World, dice: random.Random, run: str) -> Change:
    """A byte is put in, left out, or another one."""
    key = _any_object(world, dice, run)
    data = world.objects[key]
    at, byte = dice.randrange(len(data)), bytes([dice.randrange(256)])
    return {
        key: dice.choice((data[:at] + byte + data[at:], data[:at] + data[at + 1 :], data[:at] + byte + data[at + 1 :]))
    }


def _cut(world: World, dice: random.Random, run: str) -> Change:
    key = _any_object(world, dice, run)
    data = world.objects[key]
    at = dice.randrange(len(data))
    return {key: dice.choice((data[:at], data[at:], data + data[at:], b""))}


def _delete(world: World, dice: random.Random, run: str) -> Change | None:
    key = _any_object(world, dice, run)
    name = key.removeprefix(run_prefix(run))
    return None if name in ("needs", "tail") or name.startswith("index/") else {key: None}


def _reorder(world: World, dice: random.Random, run: str) -> Change:
    """Some slots change places."""
    some = dice.sample(range(world.slots(run)), min(world.slots(run), dice.choice((2, 2, 3))))
    return {slot_key(run, a): world.objects[slot_key(run, b)] for a, b in zip(some, some[1:] + some[:1], strict=True)}


def _another_run(world: World, dice: random.Random, run: str) -> Change | None:
    """An object of another run stands in the place of the same one of this run, or all of its log does."""
    other = dice.choice([one for one in RUNS if one != run])
    mine, theirs = run_prefix(run), run_prefix(other)
    names = [key.removeprefix(mine) for key in world.objects if key.startswith(mine)]
    if dice.random() < 0.2:
        found = {key: None for key in world.objects if key.startswith(mine)}
        return found | {
            mine + key.removeprefix(theirs): data for key, data in world.objects.items() if key.startswith(theirs)
        }
    name = dice.choice(names)
    data = world.objects.get(theirs + name)
    return {mine + name: data} if data is not None else None


def _swapped_blobs(world: World, dice: random.Random, run: str) -> Change | None:
    if len(world.blobs[run]) < 2:
        return None
    one, other = dice.sample(world.blobs[run], 2)
    return {one: world.objects[other], other: world.objects[one]}


def _swapped_packs(world: World, dice: random.Random, run: str) -> Change | None:
    packs = [key for key in world.objects if key.startswith(f"{run_prefix(run)}packs/")]
    if len(packs) < 2:
        return None
    one, other = dice.sample(packs, 2)
    return {one: world.objects[other], other: world.objects[one]}


def _foreign(world: World, dice: random.Random, run: str) -> Change:
    """Something that no writer leaves: another name, or a slot behind the last one."""
    data = world.objects[slot_key(run, dice.randrange(world.slots(run)))]
    end = slot_key(run, world.slots(run) + dice.choice((0, 0, 1, 7)))
    return {dice.choice((f"{run_prefix(run)}log/extra", f"{run_prefix(run)}more", end)): data}


def _derived(run: str, world: World) -> Change:
    """No derived objects: they are made anew by the next writer."""
    names = ("needs", "tail", "index/")
    return {key: None for key in world.objects if key.removeprefix(run_prefix(run)).startswith(names)}


def _truncate(world: World, dice: random.Random, run: str) -> Change:
    """The newest slots are gone, and all that hints at them: the log is as it once was."""
    slots = world.slots(run)
    kept = dice.randrange(1, slots)
    found: Change = {slot_key(run, slot): None for slot in range(kept, slots)}
    found |= dict.fromkeys((final_key(run), provenance_key(run))) | _derived(run, world)
    if dice.random() < 0.5 and final_key(run) in world.objects:
        hashes = [bytes.fromhex(segment_hash(world.objects[slot_key(run, slot)])) for slot in range(kept)]
        found[final_key(run)] = _final(run, hashes)
    return found


def _final(run: str, hashes: list[bytes]) -> bytes:
    root = merkle_root("final/v0", hashes)
    return canonical({"format": FORMAT, "head": hashes[-1].hex(), "root": root, "run": run, "slot": len(hashes) - 1})


FORGER = SigningKey.generate()


def _forge(world: World, dice: random.Random, run: str) -> Change | None:
    """A record is another one, or is gone, and all hashes behind it are made right: with a key of one's own, with
    the name of the driver's key, with a certificate of one's own, or unsigned.
    """
    slots = world.slots(run)
    segments = [parse(world.objects[slot_key(run, slot)], "forged") for slot in range(slots)]
    first = dice.randrange(slots)
    how = dice.choice(("own key", "name of the key", "own certificate", "unsigned"))
    if how == "own certificate":
        first = max(slot for slot in range(first + 1) if any(r.type == "fence" for r in segments[slot].records))
    found: Change = {}
    previous = segments[first].header.previous
    hashes = [bytes.fromhex(segment.hash) for segment in segments[:first]]
    for slot in range(first, slots):
        records = _changed(segments[slot], dice) if slot == first else list(segments[slot].records)
        if not records:
            return None
        data = _rebuilt(segments[slot], records, previous, how, run)
        previous = segment_hash(data)
        hashes.append(bytes.fromhex(previous))
        found[slot_key(run, slot)] = data
    if final_key(run) in world.objects:
        found[final_key(run)] = _final(run, hashes)
    return found | _derived(run, world)


def _changed(segment: Segment, dice: random.Random) -> list[Record]:
    records = list(segment.records)
    at = dice.randrange(len(records))
    record = records[at]
    if dice.random() < 0.3 and record.type not in ("fence", "genesis", "close"):
        return records[:at] + records[at + 1 :]
    envelope = {**record.envelope, "forged": dice.randrange(1000)}
    records[at] = Record(record.type, record.path, record.core, envelope, record.core_hash)
    return records


def _rebuilt(segment: Segment, records: list[Record], previous: str, how: str, run: str) -> bytes:
    header, key = segment.header, None if how == "unsigned" else FORGER
    if how in ("own certificate", "unsigned"):
        records = [_appointed(record, how, run) if record.type == "fence" else record for record in records]
    if how == "name of the key" and key is not None:
        key = _Named(header.key or FORGER.public)
    _, data = build(
        [prepare(record) for record in records],
        run=header.run,
        slot=header.slot,
        epoch=header.epoch,
        driver=header.driver,
        nonce=header.nonce,
        previous=previous,
        key=key,
    )
    return data


class _Named(SigningKey):
    """The forger's key under another name."""

    def __init__(self, public: str) -> None:
        super().__init__(FORGER._private)
        self.public = public


def _appointed(record: Record, how: str, run: str) -> Record:
    envelope = record.envelope
    own = FORGER.certify(FORGER.public, cluster="c", run=run, leader_epoch=envelope["leader_epoch"])
    certificate = own if how == "own certificate" else None
    return fence(envelope["epoch"], envelope["leader_epoch"], envelope["driver_id"], certificate)


def _taken_over(world: World, dice: random.Random, run: str) -> Change | None:
    """An open log goes on, by somebody who was not appointed."""
    if run != "begun":
        return None
    slots = world.slots(run)
    last = parse(world.objects[slot_key(run, slots - 1)], "forged")
    epoch = last.header.epoch + dice.choice((0, 1))
    how = dice.choice(("own key", "own certificate", "unsigned"))
    begin = [fence(epoch, 9, "rival", None)] if dice.random() < 0.8 else [Record.event("cancel", "/", {"forged": True})]
    if how == "own certificate":
        begin = [_appointed(one, how, run) if one.type == "fence" else one for one in begin]
    _, data = build(
        [prepare(one) for one in begin],
        run=run,
        slot=slots,
        epoch=epoch,
        driver="rival",
        nonce="f" * 16,
        previous=last.hash,
        key=None if how == "unsigned" else FORGER,
    )
    return {slot_key(run, slots): data}


def _anchor_flip(world: World, dice: random.Random, run: str) -> Change:
    key = dice.choice([key for key in world.anchor_objects if key.split("/")[2] == run])
    return {key: _flipped(world.anchor_objects[key], dice)}


def _anchor_other(world: World, dice: random.Random, run: str) -> Change:
    """An anchor of another run, of another length, or by another key."""
    key = dice.choice([key for key in world.anchor_objects if key.split("/")[2] == run])
    if dice.random() < 0.5:
        held = orjson.loads(world.anchor_objects[key])
        held["key"] = FORGER.public
        held["signature"] = FORGER.sign("checkpoint/v0", canonical(held["checkpoint"])).hex()
        return {key: canonical(held)}
    return {key: dice.choice(list(world.anchor_objects.values()))}


KINDS: dict[str, tuple[int, Callable[[World, random.Random, str], Change | None]]] = {
    "flip": (40, _flip),
    "byte": (10, _byte),
    "cut": (8, _cut),
    "delete": (8, _delete),
    "reorder": (6, _reorder),
    "another run": (6, _another_run),
    "swapped blobs": (3, _swapped_blobs),
    "swapped packs": (8, _swapped_packs),
    "foreign": (4, _foreign),
    "truncate": (8, _truncate),
    "forge": (12, _forge),
    "taken over": (3, _taken_over),
    "anchor flip": (3, _anchor_flip),
    "anchor of another": (2, _anchor_other),
}
"""By name how often, and what it does; None where the run offers no such change."""


async def codes(world: World, mutation: Mutation, *, roots: bool = True, anchors: bool = True) -> set[str]:
    """What the verifier says of the run with this change, which is taken back afterwards."""
    both = (
        (world.ledger, world.objects, mutation.ledger),
        (world.anchors, world.anchor_objects, mutation.anchors),
    )
    for store, _, change in both:
        for key, data in change.items():
            await _set(store, key, data)
    try:
        return await world.reported(mutation.run, roots=roots, anchors=anchors)
    finally:
        for store, held, change in both:
            for key in change:
                await _set(store, key, held.get(key))


async def _set(store: MemoryStore, key: str, data: bytes | None) -> None:
    if data is not None:
        await store.put(key, data)
    else:
        await store.delete(key)


async def check(seeds: range) -> list[tuple[str, str]]:
    """For each seed what is wrong, empty when the change was reported, and its kind. The unchanged ledger is clean
    before and afterwards.
    """
    made = await world()
    found = []
    for when in ("before", "after"):
        for run in RUNS:
            if clean := await made.reported(run):
                found.append((f"{run} is not clean {when} the changes: {sorted(clean)}", "unchanged"))
        if when == "before":
            for seed in seeds:
                mutation = draw(made, seed)
                missed = not await codes(made, mutation)
                what = f"seed {seed}: {mutation.kind} of {mutation.run}, {[*mutation.ledger, *mutation.anchors]}"
                found.append((f"{what} was not reported" if missed else "", mutation.kind))
    return found

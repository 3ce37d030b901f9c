"""Small logs for the tests: records, openings, and what a log holds."""

from decurion_crds.canonical import canonical, merkle_root
from decurion_ledger import LogWriter, Opened, Record, RecordType, Store, make_core, read_log, vhash
from decurion_ledger.layout import final_key, slot_key
from decurion_ledger.patience import Clock
from decurion_ledger.segment import FORMAT, build, prepare, segment_hash, start_hash
from decurion_ledger.writer import Observer, Settings

RUN = "0198c7d2-3f00-7000-8000-000000000001"


def commit(name: str, value: object = None, **envelope: object) -> Record:
    """A result at `/name` whose output is `value`, inline."""
    delta = vhash(value)
    core = make_core(
        type=RecordType.COMMIT,
        path=f"/{name}",
        node="1" * 64,
        parents=[],
        input=vhash({}),
        outcome="ok",
        delta=delta,
        schema=None,
    )
    return Record.result(core, {"values": {delta: {"inline": value}}, **envelope})


def genesis(**envelope: object) -> Record:
    return Record.event(RecordType.GENESIS, "/", {"graph": "g", **envelope})


def close() -> Record:
    return Record.event(RecordType.CLOSE, "/", {"phase": "Succeeded"})


async def open_log(
    store: Store,
    run: str = RUN,
    *,
    leader_epoch: int = 1,
    driver: str = "driver-0",
    take_over: bool = False,
    observer: Observer | None = None,
    settings: Settings | None = None,
    clock: Clock | None = None,
    nonce: str | None = None,
) -> Opened:
    return await LogWriter.open(
        store,
        run,
        leader_epoch=leader_epoch,
        driver=driver,
        genesis=genesis,
        take_over=take_over,
        observer=observer,
        settings=settings,
        clock=clock,
        nonce=nonce,
    )


async def in_log(store: Store, run: str = RUN) -> list[tuple[int, str]]:
    """Slot and path of every result, and slot and type of every event, in order."""
    return [(slot, r.path if r.core else r.type) async for slot, r in read_log(store, run)]


async def forge(store: Store, *segments: tuple[int, str, list[Record]], final: bool = False) -> None:
    """A log of these (epoch, driver, records) whose hashes are all right, whatever rules it breaks."""
    previous = start_hash(RUN)
    hashes = []
    for slot, (epoch, driver, records) in enumerate(segments):
        encoded = [prepare(r) for r in records]
        _, data = build(encoded, run=RUN, slot=slot, epoch=epoch, driver=driver, nonce="0" * 16, previous=previous)
        previous = segment_hash(data)
        hashes.append(bytes.fromhex(previous))
        await store.put(slot_key(RUN, slot), data)
    if final:
        root = merkle_root("final/v0", hashes)
        content = {"format": FORMAT, "run": RUN, "slot": len(segments) - 1, "head": previous, "root": root}
        await store.put(final_key(RUN), canonical(content))

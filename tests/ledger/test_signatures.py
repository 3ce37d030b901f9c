"""Signed logs: the certificate in the fence, a signature a segment, and what the verifier says of forged ones."""

from dataclasses import replace

import pytest

from decurion_ledger import Certificate, LogWriter, Opened, Signer, SigningKey, examine, public_keys, public_pem, verify
from decurion_ledger.errors import BadKeyFile, LogCorrupt
from decurion_ledger.layout import slot_key
from decurion_ledger.log import fence
from decurion_ledger.segment import build, parse, prepare, segment_hash, start_hash
from decurion_ledger.stores import MemoryStore
from logs import RUN, close, commit, genesis, in_log

ROOT = SigningKey.generate()
OTHER_ROOT = SigningKey.generate()
DRIVER = SigningKey.generate()


def signer(key: SigningKey = DRIVER, root: SigningKey = ROOT, *, run: str = RUN) -> Signer:
    return Signer(key, lambda epoch: root.certify(key.public, cluster="c", run=run, leader_epoch=epoch))


async def opened(store: MemoryStore, by: Signer | None, *, leader_epoch: int = 1, run: str = RUN) -> Opened:
    return await LogWriter.open(
        store, run, leader_epoch=leader_epoch, driver="d", genesis=genesis, signer=by, nonce="0" * 16
    )


async def signed_log(store: MemoryStore, *, closed: bool = True, run: str = RUN) -> None:
    log = await opened(store, signer(run=run), run=run)
    await log.writer.append([commit("a", 1)])
    log = await opened(store, signer(SigningKey.generate(), run=run), leader_epoch=2, run=run)
    await log.writer.append([commit("b", 2)])
    if closed:
        await log.writer.finish(close())


async def codes(store: MemoryStore, *roots: SigningKey, run: str = RUN) -> set[str]:
    return {problem.code for problem in await verify(store, run, roots=[root.public for root in roots])}


@pytest.mark.parametrize("closed", [False, True])
async def test_a_signed_log_has_no_problem_and_names_who_appointed_its_writers(closed: bool) -> None:
    store = MemoryStore()
    await signed_log(store, closed=closed)
    for roots in ([], [ROOT.public], [OTHER_ROOT.public, ROOT.public]):
        report = await examine(store, RUN, roots=roots)
        assert (report.problems, report.signature, report.issuers) == ([], "signed", (ROOT.public,))
    assert report.slots == report.signed == (5 if closed else 4)


async def test_segments_of_one_driver_hold_its_key_and_are_read_like_others() -> None:
    store = MemoryStore()
    await signed_log(store)
    assert (await in_log(store))[:3] == [(0, "genesis"), (0, "fence"), (1, "/a")]
    keys = [parse(await store.get(slot_key(RUN, slot)), "x").header.key for slot in range(5)]
    assert keys[:2] == [DRIVER.public] * 2
    assert len(set(keys)) == 2


async def test_a_log_without_signatures_passes_alone_and_not_with_a_root_key() -> None:
    store = MemoryStore()
    log = await opened(store, None)
    await log.writer.append([commit("a", 1)])
    report = await examine(store, RUN)
    assert (report.problems, report.signature) == ([], "unsigned")
    assert await codes(store, ROOT) == {"UNSIGNED"}


async def test_a_writer_without_a_key_in_a_signed_log_is_told() -> None:
    store = MemoryStore()
    await opened(store, signer())
    await opened(store, None, leader_epoch=2)
    report = await examine(store, RUN)
    assert (report.problems, report.signature) == ([], "partly signed")
    [problem] = await verify(store, RUN, roots=[ROOT.public])
    assert (problem.code, problem.slot, problem.invariant) == ("UNSIGNED", 1, 15)


async def test_every_flipped_bit_of_a_signed_log_is_reported_without_a_root_key_too() -> None:
    store = MemoryStore()
    await signed_log(store, closed=False)
    last = slot_key(RUN, 3)
    data = await store.get(last)
    missed = []
    for bit in range(0, len(data) * 8, 13):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        await store.put(last, bytes(changed))
        if not await verify(store, RUN):
            missed.append(bit)
    assert missed == []


# --- forged by whoever may write to the store, with every hash right


async def forge_last(store: MemoryStore, key: SigningKey | None, *, says: str | None = None) -> None:
    """Write the last slot anew with another record, signed by `key`; `says` is the key that its header names."""
    where = slot_key(RUN, 3)
    header = parse(await store.get(where), "x").header
    place = {"run": RUN, "slot": 3, "epoch": header.epoch, "driver": header.driver, "nonce": header.nonce}
    signs = key
    if key is not None and says is not None:
        signs = SigningKey(key._private)
        signs.public = says
    _, data = build([prepare(commit("b", "forged"))], **place, previous=header.previous, key=signs)
    await store.put(where, data)


async def test_a_segment_forged_with_another_key_is_reported() -> None:
    store = MemoryStore()
    await signed_log(store, closed=False)
    header = parse(await store.get(slot_key(RUN, 3)), "x").header
    await forge_last(store, OTHER_ROOT)
    assert await codes(store) == {"OWNER"}
    await forge_last(store, OTHER_ROOT, says=header.key)
    assert await codes(store) == {"SIGNATURE"}
    await forge_last(store, None)
    assert await codes(store) == {"OWNER"}


def forged_log(by: SigningKey | None, certificate: Certificate | None) -> bytes:
    """Slot 0 of a log that somebody else made up."""
    records = [genesis(), fence(1, 1, "d", certificate)]
    place = {"run": RUN, "slot": 0, "epoch": 1, "driver": "d", "nonce": "0" * 16, "previous": start_hash(RUN)}
    return build([prepare(r) for r in records], **place, key=by)[1]


HONEST = ROOT.certify(DRIVER.public, cluster="c", run=RUN, leader_epoch=1)


@pytest.mark.parametrize(
    ("by", "certificate", "fault"),
    [
        (DRIVER, OTHER_ROOT.certify(DRIVER.public, cluster="c", run=RUN, leader_epoch=1), "none of the root keys"),
        (OTHER_ROOT, HONEST, "its key is"),
        (DRIVER, ROOT.certify(DRIVER.public, cluster="c", run="another", leader_epoch=1), "its run is"),
        (DRIVER, ROOT.certify(DRIVER.public, cluster="c", run=RUN, leader_epoch=2), "its leader_epoch is"),
        (DRIVER, replace(HONEST, cluster="another"), "not signed by its issuer"),
        (DRIVER, replace(HONEST, signature="zz"), "not hex"),
        (DRIVER, None, "members"),
    ],
)
async def test_a_log_whose_writer_was_not_appointed_is_reported(
    by: SigningKey, certificate: Certificate | None, fault: str
) -> None:
    store = MemoryStore()
    await store.put(slot_key(RUN, 0), forged_log(by, certificate))
    [problem] = await verify(store, RUN, roots=[ROOT.public])
    assert problem.code == "CERTIFICATE"
    assert fault in problem.message


async def test_a_log_rewritten_whole_is_found_only_with_a_root_key() -> None:
    store = MemoryStore()
    await store.put(slot_key(RUN, 0), forged_log(None, None))
    assert await codes(store) == set()
    assert await codes(store, ROOT) == {"UNSIGNED"}
    mine = OTHER_ROOT.certify(DRIVER.public, cluster="c", run=RUN, leader_epoch=1)
    await store.put(slot_key(RUN, 0), forged_log(DRIVER, mine))
    assert await codes(store) == set()
    assert await codes(store, ROOT) == {"CERTIFICATE"}


async def test_a_writer_does_not_go_on_behind_a_fence_whose_certificate_is_for_another_key() -> None:
    store = MemoryStore()
    await store.put(slot_key(RUN, 0), forged_log(OTHER_ROOT, HONEST))
    with pytest.raises(LogCorrupt, match="certificate"):
        await opened(store, signer(), leader_epoch=2)


async def test_a_run_taken_over_on_purpose_is_certified_under_the_epoch_in_its_fence() -> None:
    store = MemoryStore()
    await opened(store, signer(), leader_epoch=7)
    await LogWriter.open(store, RUN, leader_epoch=0, driver="e", genesis=None, take_over=True, signer=signer())
    assert await codes(store, ROOT) == set()


# --- keys


def test_keys_survive_their_files() -> None:
    key = SigningKey.from_pem(DRIVER.to_pem(), "f")
    assert key.public == DRIVER.public
    both = public_pem(ROOT.public) + "a comment\n" + public_pem(DRIVER.public)
    assert public_keys(both.encode(), "f") == (ROOT.public, DRIVER.public)
    assert DRIVER.to_pem().decode() not in repr(key)
    assert Certificate.from_json(HONEST.to_json()) == HONEST


@pytest.mark.parametrize(
    "text", [b"", b"x", ROOT.to_pem(), b"-----BEGIN PUBLIC KEY-----\nxx\n-----END PUBLIC KEY-----"]
)
def test_a_file_without_public_keys_is_refused_with_its_name(text: bytes) -> None:
    with pytest.raises(BadKeyFile, match=r"root\.pem"):
        public_keys(text, "root.pem")


@pytest.mark.parametrize("text", [b"", b"x", public_pem(ROOT.public).encode()])
def test_a_file_without_a_private_key_is_refused_with_its_name(text: bytes) -> None:
    with pytest.raises(BadKeyFile, match=r"k\.pem"):
        SigningKey.from_pem(text, "k.pem")


@pytest.mark.parametrize("found", [{}, {**HONEST.to_json(), "more": 1}, {**HONEST.to_json(), "leader_epoch": "1"}])
def test_what_is_no_certificate_is_refused(found: dict) -> None:
    with pytest.raises(ValueError, match="not a certificate"):
        Certificate.from_json(found)


def test_the_hash_of_a_segment_stands_for_header_and_signature() -> None:
    place = {"run": RUN, "slot": 3, "epoch": 1, "driver": "d", "nonce": "0" * 16, "previous": "0" * 64}
    one, other = (build([prepare(commit("a", 1))], **place, key=key)[1] for key in (DRIVER, ROOT))
    assert segment_hash(one) != segment_hash(other)

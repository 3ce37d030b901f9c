"""Making versions of workspaces for tests."""

from collections.abc import Mapping

from decurion_crds.globs import ALL, Globs
from decurion_ledger.stores import MemoryStore, Store
from decurion_ledger.workspace import EMPTY, Draft, Entry, Objects, Version, files_of

NOTHING = Globs(())


def objects(store: Store | None = None) -> Objects:
    return Objects(store or MemoryStore(), "r")


async def version(kept: Objects, files: Mapping[str, str | None], base: Version = EMPTY) -> Version:
    """`base` with these files; None removes one."""
    draft = Draft(kept, base, read=ALL, write=ALL)
    for path, text in files.items():
        if text is None:
            draft.remove(path)
        else:
            draft.write(path, text.encode())
    return await draft.commit()


async def entries(kept: Objects, of: Version) -> dict[str, Entry]:
    await kept.learn(of)
    return await files_of(kept, of.root)


async def texts(kept: Objects, of: Version) -> dict[str, str]:
    """The content of every file."""
    found = await entries(kept, of)
    return {path: (await kept.read(entry)).decode() for path, entry in found.items()}

"""The seal key on a laptop, and what is shown of sensitive values."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import unquote, urlsplit

import typer

from decurion_crds.errors import InputError

if TYPE_CHECKING:
    from decurion_ledger import Seal, SealKey

SHOWN = "(sensitive)"
ERASED = "(erased)"
SealKeyOption = Annotated[
    Path | None,
    typer.Option(
        "--seal-key",
        envvar="DECURION_SEAL_KEY",
        help="The key with which the keys of runs with sensitive values are encrypted; made where it is not there, for "
        "a run that begins. By default, for a ledger in a folder, the file FOLDER.key beside it.",
    ),
]


def seal_key_file(ledger: str, given: Path | None) -> Path | None:
    """Where the seal key of a ledger is; None where only whoever uses it can say."""
    if given is not None:
        return given
    address = urlsplit(ledger)
    if "://" in ledger and address.scheme != "file":
        return None
    folder = Path(unquote(address.path) if address.scheme == "file" else ledger)
    return folder.with_name(f"{folder.name}.key")


def seal_key(ledger: str, given: Path | None) -> Callable[[bool], SealKey]:
    """Gives the seal key of a ledger when it is needed, and makes it where it may."""

    def give(make: bool) -> SealKey:
        from decurion_ledger import SealKey
        from decurion_ledger.errors import WrongSealKey

        file = seal_key_file(ledger, given)
        if file is None:
            raise InputError(f"sensitive values on {ledger} need a seal key: name its file with --seal-key FILE")
        try:
            return SealKey.of_text(file.read_text(encoding="ascii", errors="replace"), str(file))
        except FileNotFoundError:
            if not make:
                raise WrongSealKey(
                    f"{file}: there is no seal key, without which sensitive values cannot be read; name its file with "
                    "--seal-key, or correct the address of the ledger"
                ) from None
        except OSError as error:
            raise InputError(f"{file}: the seal key cannot be read ({error.strerror}); name another file") from error
        return _made(file)

    return give


def _made(file: Path) -> SealKey:
    from decurion_ledger import SealKey

    key = SealKey.generate()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(file, "x", encoding="ascii", opener=partial(os.open, mode=0o600)) as out:
            out.write(key.to_text() + "\n")
    except FileExistsError:
        return SealKey.of_text(file.read_text(encoding="ascii", errors="replace"), str(file))
    except OSError as error:
        raise InputError(f"{file}: no seal key can be made there ({error.strerror}); name another file") from error
    return key


async def revealing(ledger: str, run: str, given: Path | None) -> Seal | None:
    """The key of a run, None where nothing in it is sensitive. Raises `KeyErased`, `WrongSealKey`."""
    from decurion_ledger import key_of, open_store
    from decurion_ledger.errors import KeyMissing

    store = open_store(ledger)
    try:
        return await key_of(store, run, seal_key(ledger, given)(False))
    except KeyMissing:
        return None
    finally:
        await store.aclose()

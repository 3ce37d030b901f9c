"""The public names of the package, and errors that travel between processes."""

import inspect
import pickle

import pytest

import decurion_ledger
import decurion_ledger.stores
import decurion_ledger.workspace
from decurion_crds.errors import DecurionError, InputError
from decurion_ledger import errors


@pytest.mark.parametrize("package", [decurion_ledger, decurion_ledger.stores, decurion_ledger.workspace])
def test_the_public_names_are_those_that_the_package_imports(package) -> None:
    imported = {
        name for name, value in vars(package).items() if not name.startswith("_") and not inspect.ismodule(value)
    }
    assert set(package.__all__) == imported


FIELDS = {
    errors.StoreUnknown: ("r", 3, "503"),
    errors.Fenced: ("r", 3, 2, 7, "driver-1"),
    errors.StaleLeader: ("r", 5, 6),
    errors.RunNotFound: ("r", "s3://x"),
    errors.StoreMisconfigured: ("Invalid endpoint: x",),
    errors.RecordNotFound: ("r", "/a"),
    errors.RunClosed: ("r", 3),
    errors.WriterStopped: ("r", 3),
    errors.ValueMissing: ("0" * 64,),
    errors.ValueSealed: ("0" * 64,),
    errors.KeyErased: ("r",),
    errors.KeyDamaged: ("keys/00/r",),
    errors.WrongSealKey: ("there is none; give one",),
    errors.ValueTooWide: (9, 8),
    errors.RecordTooLarge: ("/a", 9, 8),
    errors.NewerFormat: ("x", 2, 1),
    errors.DuplicatePath: ("/a",),
    errors.WorkspaceTooLarge: ("files", 9, 8),
    errors.WorkspaceBusy: ("a",),
}
ABSTRACT = {errors.LedgerError, errors._BadInput}
CONCRETE = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, errors.LedgerError) and value not in ABSTRACT
]


@pytest.mark.parametrize("kind", CONCRETE, ids=lambda kind: kind.__name__)
def test_an_error_is_one_sentence_and_survives_pickling(kind: type[errors.LedgerError]) -> None:
    error = kind(*FIELDS.get(kind, ("PUT x", "503")))
    assert issubclass(kind, DecurionError)
    assert str(error).endswith(".")
    assert "\n" not in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_every_error_is_in_the_drawing_of_the_tree() -> None:
    assert errors.__doc__ is not None
    assert {kind.__name__ for kind in CONCRETE} <= set(errors.__doc__.replace(",", " ").split())


def test_what_a_person_must_correct_is_an_input_error() -> None:
    for kind in (errors.BadPath, errors.BadKey, errors.BadRunId, errors.BadStoreUri, errors.NotJson):
        assert issubclass(kind, InputError)

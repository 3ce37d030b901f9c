"""The canonical form against the reference implementation of RFC 8785, and the differences that are named.

Decision 0003 says why there are differences. If one of these tests fails after an upgrade of orjson, hashes change.
"""

from decimal import Decimal

import orjson
import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from decurion_crds.canonical import canonical, digest, merkle_root

SAFE = 2**53 - 1

basic_plane = st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=("Cs",)))
any_text = st.text(st.characters(exclude_categories=("Cs",)))
finite = st.floats(allow_nan=False, allow_infinity=False)


def trees(scalars: st.SearchStrategy, keys: st.SearchStrategy) -> st.SearchStrategy:
    return st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=5) | st.dictionaries(keys, inner, max_size=5),
        max_leaves=20,
    )


same = st.none() | st.booleans() | st.integers(-SAFE, SAFE) | any_text
everything = trees(same | finite | st.integers(-(2**63), 2**64 - 1), any_text)


@given(trees(same, basic_plane))
def test_without_floats_and_with_keys_of_the_basic_plane_it_is_rfc_8785(value: object) -> None:
    assert canonical(value) == rfc8785.dumps(value)


@pytest.mark.parametrize("code_points", [range(0x3000), range(0x3000, 0xD800), range(0xE000, 0x10000)])
def test_every_character_of_the_basic_plane_is_written_as_in_rfc_8785(code_points: range) -> None:
    for character in map(chr, code_points):
        assert canonical({character: character}) == rfc8785.dumps({character: character})


@given(finite)
def test_a_float_has_the_digits_of_rfc_8785_in_a_notation_of_its_own(number: float) -> None:
    ours, reference = canonical(number).decode(), rfc8785.dumps(number).decode()
    assert float(ours) == number
    assert Decimal(ours) == Decimal(reference)
    assert significant(ours) == significant(reference)
    assert isinstance(orjson.loads(ours), float)


def significant(text: str) -> str:
    return text.lstrip("-").partition("e")[0].replace(".", "").strip("0")


@pytest.mark.parametrize(
    ("number", "ours", "reference"),
    [
        (1.0, "1.0", "1"),
        (0.0, "0.0", "0"),
        (-0.0, "-0.0", "0"),
        (1e15, "1000000000000000.0", "1000000000000000"),
        (1e16, "1e+16", "10000000000000000"),
        (1.5e20, "1.5e+20", "150000000000000000000"),
        (1e21, "1e+21", "1e+21"),
        (1e-5, "0.00001", "0.00001"),
        (1e-6, "1e-6", "0.000001"),
        (1e-7, "1e-7", "1e-7"),
        (0.1, "0.1", "0.1"),
        (5e-324, "5e-324", "5e-324"),
        (1.7976931348623157e308, "1.7976931348623157e+308", "1.7976931348623157e+308"),
    ],
)
def test_the_notations_of_floats_are_pinned(number: float, ours: str, reference: str) -> None:
    assert canonical(number).decode() == ours
    assert rfc8785.dumps(number).decode() == reference


def test_an_integer_is_told_from_the_float_of_equal_value() -> None:
    assert canonical([1, 1.0]) == b"[1,1.0]"


def test_keys_are_in_order_of_code_points_also_beyond_the_basic_plane() -> None:
    value = {"\U0001f600": 1, "\ue000": 2, "a": 3}
    assert list(orjson.loads(canonical(value))) == ["a", "\ue000", "\U0001f600"]
    assert list(orjson.loads(rfc8785.dumps(value))) == ["a", "\U0001f600", "\ue000"]


def test_integers_of_64_bits_are_written_where_the_reference_refuses_them() -> None:
    assert canonical([SAFE + 1, 2**64 - 1, -(2**63)]) == b"[9007199254740992,18446744073709551615,-9223372036854775808]"
    with pytest.raises(rfc8785.IntegerDomainError):
        rfc8785.dumps(SAFE + 1)
    for beyond in (2**64, -(2**63) - 1):
        with pytest.raises(TypeError):
            canonical(beyond)


@given(everything)
def test_reading_and_writing_again_changes_no_byte(value: object) -> None:
    once = canonical(value)
    assert canonical(orjson.loads(once)) == once


@given(everything)
def test_order_of_insertion_does_not_matter(value: object) -> None:
    assert canonical(backwards(value)) == canonical(value)


def backwards(value: object) -> object:
    if isinstance(value, dict):
        return {key: backwards(member) for key, member in reversed(value.items())}
    return [backwards(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("value", [{1: 2}, {1, 2}, b"x", "\ud800", {"\udfff": 1}, object()])
def test_what_is_no_json_is_refused(value: object) -> None:
    with pytest.raises(TypeError):
        canonical(value)


def test_digests_and_trees_are_pinned() -> None:
    assert (
        digest("test/v0", b"a", b"b")
        == digest("test/v0", b"ab")
        == "f0c3f62727a7ec4b0952bb89d27851571ce22f95389c06f7186b6a5977a9d3a3"
    )
    assert digest("test/v1", b"ab") != digest("test/v0", b"ab")
    assert [merkle_root("test/v0", [bytes([i]) for i in range(n)]) for n in (0, 1, 2, 3, 7)] == [
        "042666dfcfb08fda57774b504b557026e9054f6ace1a084913c9acc79755a117",
        "e40ba3af0b1a4aaae24e1dc99f559e3d511b6b2b810c00473125ba626575bf6c",
        "4bb64a508ef9518db98bce0388ac874dde424952294801f816ab0ff85e9cc879",
        "f185080fdf098d7e2c1347a17e24af5a1643bbfb3c705c448064a4192cecacf8",
        "972f100d92de320784d7996e66e490d75a5447b5f16eafa7669927f0705f5911",
    ]

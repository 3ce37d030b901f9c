"""Plain words of YAML, as kubectl reads them: tables made with kubectl, which checks them where it is installed."""

import json
import math
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from decurion_crds.loader.scalars import SAME, go_key, go_scalar, other_reading

_TEXTS = """
    tRue yEs oN nUll e3 inf nan . .. ... -- +- 1.2.3 0o 0x 0b 0b2 0o8 0xg 1e 1e+ 100m 5GB
    2026-01-01 2026-1-1 2026-01-01T00:00:00Z 12:30:00 12:30 190:20:30.15 _1 ._5 1e400 0x1p-2
"""
WORDS: dict[str, Any] = {
    **dict.fromkeys(["y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"], True),
    **dict.fromkeys(["n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"], False),
    **dict.fromkeys(["~", "null", "Null", "NULL"]),
    **{word: word for word in _TEXTS.split()},
    "1e3": 1000,
    "1E3": 1000,
    "+1e3": 1000,
    "1e-3": 0.001,
    "1e21": 1e21,
    "1e20": 10**20,
    "0o17": 15,
    "-0o17": -15,
    "017": 15,
    "08": 8,
    "08.5": 8.5,
    "0777": 511,
    "00": 0,
    "-0": 0,
    "-0.0": 0,
    "1_000": 1000,
    "1_": 1,
    "1_0.5": 10.5,
    "+_1": 1,
    "0x1F": 31,
    "0X1f": 31,
    "0x_1": 1,
    "0b11": 3,
    "-0b11": -3,
    "+5": 5,
    "7.0": 7,
    "7.": 7,
    "7.5": 7.5,
    ".5": 0.5,
    "-.5": -0.5,
    ".1_0": 0.1,
    "1.5e3": 1500,
    "9007199254740993": 9007199254740993,
    "9223372036854775807": 9223372036854775807,
    "9223372036854775808": 9223372036854775808.0,
    "18446744073709551616": 18446744073709551616.0,
    "-9223372036854775809": -9223372036854775808.0,
    "4611686018427387904.0": 4611686018427388000,
    "5e-324": 5e-324,
    "1e-400": 0,
}
KEYS = {
    "y": "true",
    "NO": "false",
    "1": "1",
    "017": "15",
    "1.5": "1.5",
    "1.10": "1.1",
    "7.0": "7",
    "0.0001": "0.0001",
    "0.00001": "1e-05",
    "100000.5": "100000.5",
    "1234567.8": "1.2345678e+06",
    "16777217.5": "1.6777218e+07",
    "1e6": "1e+06",
    "1e39": ".inf",
    "-1e39": "-.inf",
    "1e-50": "0",
    "-0.0": "-0",
    "2026-01-01": "2026-01-01",
    "x": "x",
}
ALIKE = [
    "x",
    "true",
    "False",
    "null",
    "~",
    "",
    "1",
    "-5",
    "0",
    "1.5",
    "7.0",
    "0x1F",
    "a b",
    "tRue",
    "100m",
    "http://x.test",
]
DIFFERENT = [
    "y",
    "No",
    "on",
    "1e3",
    "0o17",
    "017",
    "08",
    "1_000",
    "0b11",
    "2026-01-01",
    "12:30:00",
    "190:20:30.15",
    "1:20",
]


@pytest.mark.parametrize(("word", "value"), WORDS.items())
def test_a_word_is_the_value_that_kubectl_makes_of_it(word: str, value: object) -> None:
    assert go_scalar(word) == value
    assert isinstance(go_scalar(word), bool) == isinstance(value, bool)


@pytest.mark.parametrize(("word", "key"), KEYS.items())
def test_a_word_as_key_is_the_text_that_kubectl_makes_of_it(word: str, key: str) -> None:
    assert go_key(word) == key


@pytest.mark.parametrize("word", ["~", "null", "18446744073709551615"])
def test_a_key_that_kubectl_refuses_is_none(word: str) -> None:
    assert go_key(word) is None


def test_infinities_and_nan_are_told_apart_from_texts() -> None:
    assert go_scalar("-.INF") == -math.inf
    assert math.isnan(go_scalar(".nan"))  # type: ignore[arg-type]


@pytest.mark.parametrize("word", ALIKE)
def test_a_word_that_all_read_alike_needs_no_warning(word: str) -> None:
    assert other_reading(word) is SAME


@pytest.mark.parametrize("word", DIFFERENT)
def test_a_word_that_others_read_differently_is_known(word: str) -> None:
    assert other_reading(word) is not SAME


@pytest.fixture
def kubectl(request: pytest.FixtureRequest) -> str:
    return shutil.which("kubectl") or str(request.getfixturevalue("api_server").kubectl_command)


def _read(kubectl: str, lines: list[str], folder: Path) -> list[Any]:
    """The items of a list as kubectl reads them, without any server."""
    file = folder / "words.yaml"
    file.write_text(
        "apiVersion: x.test/v1\nkind: X\nmetadata: {name: x}\nspec:\n" + "".join(f"- {line}\n" for line in lines)
    )
    command = [kubectl, "annotate", "--local", f"--filename={file}", "a=b", "--output=json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    items: list[Any] = json.loads(done.stdout)["spec"]
    return items


def _words(seed: int) -> list[str]:
    """Short words of characters that numbers are made of."""
    choose = random.Random(seed)
    words = {"".join(choose.choices("0123456789+-._eExXoObB", k=choose.randint(1, 7))) for _ in range(3_000)}
    return sorted(word for word in words if not word.startswith(("---", "...")) and word != "-")


def test_kubectl_itself_reads_words_so(kubectl: str, tmp_path: Path) -> None:
    words = [*WORDS, *_words(1)]
    for word, read in zip(words, _read(kubectl, words, tmp_path), strict=True):
        ours = go_scalar(word)
        assert ours == (float(read) if isinstance(ours, float) else read), word
        assert isinstance(ours, bool) == isinstance(read, bool), word
        if not isinstance(ours, float) or abs(ours) < 2**63:
            assert type(ours) is type(read), word


def test_kubectl_itself_reads_keys_so(kubectl: str, tmp_path: Path) -> None:
    keys = [word for word in [*KEYS, *WORDS, *_words(2)] if go_key(word) is not None]
    for word, read in zip(keys, _read(kubectl, [f"{key}: 1" for key in keys], tmp_path), strict=True):
        assert list(read) == [go_key(word)], word

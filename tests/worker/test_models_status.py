"""What servers say when they refuse."""

import time
from email.utils import formatdate

import httpx
import pytest

from decurion_worker.models.status import quoted, retry_after


def seconds(**headers: str) -> float | None:
    return retry_after(httpx.Headers({name.replace("_", "-"): value for name, value in headers.items()}))


@pytest.mark.parametrize(
    ("value", "wait"),
    [("0", 0.0), ("7", 7.0), (" 2.5 ", 2.5), ("-3", 0.0), ("", None), ("soon", None), ("inf", None), ("nan", None)],
)
def test_retry_after_in_seconds(value: str, wait: float | None) -> None:
    assert seconds(retry_after=value) == wait


def test_retry_after_as_a_date_counts_from_the_server_s_clock() -> None:
    date, due = "Tue, 15 Nov 1994 08:12:31 GMT", "Tue, 15 Nov 1994 08:13:01 GMT"
    assert seconds(retry_after=due, date=date) == 30.0
    assert seconds(retry_after=date, date=due) == 0.0


def test_retry_after_as_a_date_counts_from_our_clock_without_the_server_s() -> None:
    wait = seconds(retry_after=formatdate(time.time() + 100, usegmt=True))
    assert wait is not None
    assert 95 < wait <= 100


def test_no_retry_after_is_none() -> None:
    assert seconds() is None


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"error": {"message": "a\n b", "code": 1}}, "a b"),
        ({"error": "a"}, "a"),
        ({"message": "a"}, "a"),
        ({"detail": [{"loc": ["body"], "msg": "a"}]}, '[{"loc":["body"],"msg":"a"}]'),
        ({"error": {"code": 3}}, '{"code":3}'),
        ("<html>", "<html>"),
        (None, ""),
        ("x" * 1000, "x" * 300 + "…"),
    ],
)
def test_the_server_s_words_are_found_in_every_usual_form(body: object, said: str) -> None:
    assert quoted(body, None) == said


def test_a_token_is_taken_out_before_the_cut() -> None:
    assert quoted("x" * 295 + "secret-token", "secret-token") == "x" * 295 + "***"

"""The time of day, as records say it."""

from __future__ import annotations

from datetime import UTC, datetime


def utc_now() -> datetime:
    return datetime.now(UTC)


def stamp(now: datetime) -> str:
    """A time as RFC 3339, in UTC and to the millisecond."""
    return now.astimezone(UTC).isoformat(timespec="milliseconds")

"""Moments on the wire: ISO 8601 or Unix seconds come in, Unix seconds are kept, ISO 8601 goes out."""

from __future__ import annotations

import time
from datetime import UTC, datetime

LATEST = 7_258_118_400.0
"""The year 2200: beyond it somebody sent milliseconds."""
AHEAD = 86_400.0
"""So far may the clock of whoever reports something be ahead of ours."""


def seconds_of(given: float | str) -> float:
    """Unix seconds; a text without a zone is UTC. `ValueError` says what is wrong with it."""
    if isinstance(given, str):
        try:
            moment = datetime.fromisoformat(given)
        except ValueError:
            raise ValueError(
                "a time is ISO 8601, such as 2024-05-01T12:00:00Z, or a number of Unix seconds"
            ) from None
        try:
            given = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except (OverflowError, ValueError):
            given = -1.0
    if not 0 <= given < LATEST:
        raise ValueError("a time lies between 1970 and 2200; a number means seconds, not milliseconds")
    return float(given)


def past_seconds_of(given: float | str) -> float:
    """Unix seconds of what has happened. One time far ahead would make everything else old: the age of
    bundles is counted from the latest moment in the data."""
    found = seconds_of(given)
    if found > time.time() + AHEAD:
        raise ValueError("this lies in the future; leave the time out for now, by the clock of the service")
    return found


def queried_seconds_of(text: str) -> float:
    """Unix seconds of a time in an address, where a number is text, too."""
    try:
        number = float(text)
    except ValueError:
        return seconds_of(text)
    return seconds_of(number)


def written(seconds: float) -> str:
    """ISO 8601 in UTC, with thousandths where there are any."""
    moment = datetime.fromtimestamp(round(seconds, 3), UTC)
    timespec = "milliseconds" if moment.microsecond else "seconds"
    return moment.replace(tzinfo=None).isoformat(timespec=timespec) + "Z"

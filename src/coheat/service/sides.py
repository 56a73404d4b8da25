"""Several models side by side: whom each answers, and how a list says which one made it.

A user falls on a side by a hash of the id: the first eight bytes of SHA-256 of "coheat side", a zero byte and
the id, as a share of their range. The sides divide that range by their shares, in the order of their names;
so it is the same after a restart and on another machine, and raising the share of the first side from 0.1 to
0.2 leaves those who were on it there.

The id of a list begins with its side and with its model, so that what came of it can be counted without
remembering every list.
"""

from __future__ import annotations

import hashlib
import re
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from coheat.errors import ConfigError
from coheat.service.tokens import Tokens

ONLY = "main"
"""The side of a service with one model."""
NAME = re.compile(r"[A-Za-z0-9_]{1,32}")
MODEL_CHARACTERS = 8
TOKEN_BYTES = 12
TOKEN_CHARACTERS = 16
MADE_HERE = re.compile(r"([A-Za-z0-9_]{1,32})-([0-9a-f]{8})")
"""Side and model: what the id of a list begins with."""

_tokens = Tokens()


@dataclass(frozen=True)
class Side:
    """A run under a name, and the share of the users whom it answers."""

    name: str
    run: Path
    share: float = 1.0


def sides_of(runs: Mapping[str, Path], shares: Mapping[str, float]) -> tuple[Side, ...]:
    """In the order of their names; those without a share divide what is left evenly."""
    for name in runs:
        if not NAME.fullmatch(name):
            raise ConfigError(f"--run {name}=...: a side's name has 1 to 32 letters, digits or underscores")
    if unknown := set(shares).difference(runs):
        raise ConfigError(f"--share {min(unknown)}=...: there is no such side; name it with --run")
    left, open_sides = 1.0 - sum(shares.values()), [name for name in runs if name not in shares]
    is_share = all(0 <= share <= 1 for share in shares.values())
    if not is_share or left < -1e-9 or (not open_sides and abs(left) > 1e-9):
        raise ConfigError(
            "--share: shares lie between 0 and 1 and add up to 1; a side without one gets the rest"
        )
    rest = max(left, 0.0) / max(len(open_sides), 1)
    return tuple(Side(name, runs[name], shares.get(name, rest)) for name in sorted(runs))


def side_of(sides: Sequence[Side], user_id: str) -> Side:
    """The side that a user falls on, always the same."""
    digest = hashlib.sha256(b"coheat side\0" + user_id.encode("utf-8", "surrogatepass")).digest()
    place, reached = int.from_bytes(digest[:8]) / 2.0**64, 0.0
    for side in sides:
        reached += side.share
        if place < reached:
            return side
    return next(side for side in reversed(sides) if side.share > 0)  # rounding


def new_list_id(side: str, fingerprint: str) -> str:
    """Nobody can guess it, and it says where it comes from. For the thread of the event loop."""
    return f"{side}-{fingerprint[:MODEL_CHARACTERS]}-{urlsafe_b64encode(_tokens.take(TOKEN_BYTES)).decode()}"

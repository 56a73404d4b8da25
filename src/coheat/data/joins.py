"""Tables that should join and do not: the same users, bundles or items written in two ways.

Such data can be read, and a model can be trained on them, but what one table tells of a user or a bundle
never meets what the other tells. Where nothing joins that is an error, where hardly anything does a warning.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coheat.data.problems import Problems
from coheat.ids import Vocabulary

HARDLY = 0.05
"""Below this share of the smaller of two tables it is no longer a matter of taste who is in both."""
FEWEST = 5
"""With fewer ids than this on a side it may be chance that none is in both, so reading goes on."""
EXAMPLES = 3


@dataclass(frozen=True)
class Side:
    """One of two tables: its name in messages, and which ids of a vocabulary stand in it."""

    source: str
    present: npt.NDArray[np.bool_]


def report_join(vocabulary: Vocabulary, one: Side, other: Side, problems: Problems) -> bool:
    """Tell where two tables share no ids, or hardly any, and say whether that was so.

    A table without any ids has been told before, and joins with everything.
    """
    sizes = [int(side.present.sum()) for side in (one, other)]
    joined = int((one.present & other.present).sum())
    if not min(sizes) or joined >= max(1, HARDLY * min(sizes)):
        return False
    here, there = (
        _ids(vocabulary, side.present & ~rest.present) for side, rest in ((one, other), (other, one))
    )
    count = f"only {joined}" if joined else "none"
    verb = "are" if joined > 1 else "is"
    what = (
        f"{count} of its {sizes[0]} {vocabulary.kind} ids {verb} among the {sizes[1]} of {other.source}: "
        f"{', '.join(map(repr, here[:EXAMPLES]))} here, {', '.join(map(repr, there[:EXAMPLES]))} there"
    )
    hint = f"write the ids of {vocabulary.kind}s in both tables in the same way"
    if _same_numbers(here, there):
        hint += "; these seem to be the same ones in two spellings"
    tell = problems.error if not joined and min(sizes) >= FEWEST else problems.warning
    tell(one.source, what, hint)
    return True


def _ids(vocabulary: Vocabulary, chosen: npt.NDArray[np.bool_]) -> list[str]:
    return [vocabulary[int(position)] for position in np.flatnonzero(chosen)[:10_000]]


def _same_numbers(here: list[str], there: list[str]) -> bool:
    """Whether most ids of the shorter list end in a number that one of the other list ends in, too.

    >>> _same_numbers(["17", "18"], ["user-017", "user-018", "user-019"]), _same_numbers(["a"], ["b"])
    (True, False)
    """
    numbers = [
        {found[1] for name in names if (found := re.search(r"0*(\d+)\D*$", name))} for names in (here, there)
    ]
    return len(numbers[0] & numbers[1]) > min(len(here), len(there)) / 2

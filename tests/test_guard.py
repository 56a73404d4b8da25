"""The guard notices a change to any part of the data."""

from __future__ import annotations

import pytest
from guard import digest

from coheat.data.synthetic import planted_world


@pytest.mark.parametrize(
    "part", ["train.user_bundle", "train.user_item", "train.bundle_item", "validation", "test"]
)
def test_a_changed_entry_changes_the_digest(part: str) -> None:
    split = planted_world()
    before = digest(split)
    assert digest(planted_world()) == before
    matrix = split.train if part.startswith("train.") else split
    matrix = getattr(matrix, part.removeprefix("train."))
    with pytest.raises(ValueError, match="read-only"):
        matrix.indices[0] += 1
    matrix.indices.flags.writeable = True
    matrix.indices[0] += 1
    assert digest(split) != before

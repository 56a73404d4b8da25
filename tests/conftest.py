"""Fixtures for everybody: small worlds with known answers, guarded against being changed by a test."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from coheat.data.split import Split
from coheat.data.synthetic import planted_world
from coheat.data.writing import write_tables


def digest(split: Split) -> str:
    """Everything in a split, read anew: the data's own fingerprint is computed once and kept."""
    found = hashlib.sha256()
    for vocabulary in (split.train.users, split.train.bundles, split.train.items):
        found.update("\0".join(vocabulary.ids).encode())
    for matrix in (*split.parts.values(), split.train.user_item, split.train.bundle_item):
        for array in (matrix.indptr, matrix.indices, matrix.data):
            found.update(array.tobytes())
    return found.hexdigest()


@pytest.fixture(scope="session")
def _planted() -> Split:
    return planted_world()


@pytest.fixture
def planted(_planted: Split) -> Iterator[Split]:
    """The planted world, the same object for all tests; a test that changes it fails."""
    before = digest(_planted)
    yield _planted
    assert digest(_planted) == before, "this test changed the data it was given"


@pytest.fixture
def planted_directory(planted: Split, tmp_path: Path) -> Path:
    """The planted world as files, with its split."""
    write_tables(planted, tmp_path / "planted")
    return tmp_path / "planted"

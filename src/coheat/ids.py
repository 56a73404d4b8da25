"""Ids behind rows: their one home. An unknown one is an error with a suggestion."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self, overload

import numpy as np
import numpy.typing as npt

from coheat.errors import ArtifactError, DataError, UnknownIdError
from coheat.reading import read_parquet

STRETCH = 10_000


class Vocabulary:
    """Distinct string ids in a fixed order; position in it is the internal integer."""

    def __init__(self, ids: Iterable[str], kind: str):
        self.ids: Sequence[str] = tuple(ids)
        self.kind = kind
        if "" in self.index:
            raise DataError(f"a {kind} id is empty; every id must be a non-empty text")
        if len(self.index) != len(self.ids):
            seen: set[str] = set()
            twice = next(i for i in self.ids if i in seen or seen.add(i))  # type: ignore[func-returns-value]
            raise DataError(f"the {kind} id {twice!r} is in the vocabulary twice")

    @classmethod
    def read(cls, path: Path, kind: str, count: int | None = None) -> Self:
        """From a Parquet file written from a vocabulary; an id becomes a text when it is looked at.

        With `count`, a file with another number of ids is refused before it is read.
        """
        found = cls.__new__(cls)
        found.ids, found.kind = ArrowTexts.read(path, count), kind
        return found

    def column(self) -> Any:
        """The ids as an Arrow column."""
        import pyarrow as pa

        return self.ids.column if isinstance(self.ids, ArrowTexts) else pa.array(self.ids, pa.string())

    @cached_property
    def index(self) -> dict[str, int]:
        return {name: position for position, name in enumerate(self.ids)}

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, position: int) -> str:
        return self.ids[position]

    def __contains__(self, name: object) -> bool:
        return name in self.index

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and tuple(self.ids) == tuple(other.ids)

    def __hash__(self) -> int:
        return hash(tuple(self.ids))

    def position(self, name: str) -> int:
        """The internal integer of an id; an unknown one is an error that names it."""
        try:
            return self.index[name]
        except KeyError:
            raise UnknownIdError(f"unknown {self.kind} id {name!r}") from None

    def positions(self, names: Sequence[str]) -> npt.NDArray[np.int64]:
        return np.fromiter((self.position(name) for name in names), dtype=np.int64, count=len(names))


class ArrowTexts(Sequence[str]):
    """The texts of an Arrow column; each becomes a text of Python's when it is looked at.

    So they take a tenth of the memory: there may be millions of users, and few of them are asked for.
    """

    def __init__(self, column: Any):
        self.column = column

    @classmethod
    def read(cls, path: Path, count: int | None = None) -> Self:
        """The one column of a Parquet file, whose ids are distinct; as many as `count`, where given."""
        import pyarrow as pa
        import pyarrow.compute as pc

        table = read_parquet(path, ArtifactError, count)
        kind = table.schema.types[0] if table.num_columns == 1 else None
        kind = kind.value_type if kind is not None and pa.types.is_dictionary(kind) else kind
        if kind != pa.string():
            raise ArtifactError(f"{path}: not one column of texts, as was written there")
        # While it is a dictionary, a text that repeats is held once; none is copied before each is known to
        # stand there once.
        encoded = table.column(0).unify_dictionaries()
        codes = [chunk.indices.to_numpy(zero_copy_only=False) for chunk in encoded.chunks]
        n_codes = len(np.unique(np.concatenate(codes))) if codes else 0
        texts = encoded.cast(pa.string()).combine_chunks() if n_codes == len(encoded) else None
        if encoded.null_count or texts is None or pc.count_distinct(texts).as_py() != len(texts):
            raise ArtifactError(f"{path}: some of its ids are missing or repeated")
        if len(texts) and pc.min(pc.binary_length(texts)).as_py() == 0:
            raise ArtifactError(f"{path}: an id is empty")
        pa.default_memory_pool().release_unused()  # checking takes many times what is kept
        return cls(texts)

    def __len__(self) -> int:
        return len(self.column)

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), STRETCH):
            yield from self.column[start : start + STRETCH].to_pylist()

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> list[str]: ...
    def __getitem__(self, place: int | slice) -> str | list[str]:
        if isinstance(place, slice):
            return list(self.column[place].to_pylist())
        return str(self.column[int(place)])


def unknown(name: str, kind: str, known: Sequence[str]) -> UnknownIdError:
    """The error for an id that is not there, with the nearest one that is."""
    # Comparing texts is slow, so only the ids that begin alike are looked at, and not too many.
    wanted = name.strip()[:100]
    alike = [one for one in known if one[:1].casefold() == wanted[:1].casefold()]
    close = difflib.get_close_matches(wanted, alike[:5000], n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"the model knows {len(known)} {kind}s"
    return UnknownIdError(f"unknown {kind} id {shortened(name)}; {hint}")


def text_id(name: object, kind: str) -> str:
    """An id as it was given, if it is text; a number is never taken for the text of it."""
    if not isinstance(name, str):
        given = repr(name)
        given = given if len(given) <= 100 else f"{given[:100]}..."
        raise DataError(f"a {kind} id must be a string, not {given}; ids are text, also those made of digits")
    return name


def shortened(name: str) -> str:
    """An id as it stands in a sentence: quoted, and cut where it is very long."""
    return repr(name) if len(name) <= 100 else f"{name[:100]!r}... ({len(name)} characters)"

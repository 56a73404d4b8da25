"""`coheat data collect`: what a service recorded, merged into the tables that training reads.

The new directory holds tables as `write_tables` makes them, and two files more: `collected.parquet`, the rows
that the tables owe to collecting, and `collected.json`, which says from where and up to which write. Both are
what makes collecting from there again add only what is new, and take out what was withdrawn.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

from coheat.data.dataset import BundleData
from coheat.data.files import LEDGER, read_data
from coheat.data.merging import Row, merge
from coheat.data.writing import COLLECTED, fill_tables, fresh_directory
from coheat.errors import ConfigError, DataError
from coheat.retraining.records import read_recorded
from coheat.service.places import shown
from coheat.storage import read_json, write_json

FORMAT = 1
COLUMNS = pa.schema(
    [
        ("sequence", pa.int64()),
        ("user_id", pa.string()),
        ("bundle_id", pa.string()),
        ("kind", pa.string()),
        ("timestamp", pa.int64()),
    ]
)
TAKEN = ("took",)
KINDS = ("shown", "clicked", "took")
LEFT_OUT = ("of_unknown_bundles", "unfit_values")
"""Counts of what was not collected."""


@dataclass(frozen=True)
class Collected:
    """What was collected, from where, up to which write; `counts` say what is new by it."""

    data: str
    source: str
    sequence: int
    positive: list[str]
    fingerprint: str
    counts: dict[str, int] = field(default_factory=dict)
    is_unchanged: bool = False
    """Whether the directory was so already."""

    @property
    def has_news(self) -> bool:
        """Whether the data are other than those that were collected into."""
        return any(count for name, count in self.counts.items() if name not in LEFT_OUT)


def collect(
    source: str | Path,
    data: str | Path,
    out: str | Path,
    positive: Collection[str] = TAKEN,
    key: str | None = None,
    overwrite: bool = False,
) -> Collected:
    """Merge what `source` recorded into the tables of `data`, and write them to `out`, whole or not at all.

    What stands in `out` is replaced where it was collected before, or where `overwrite` says so; where it
    would be the same again it is left as it is.
    """
    directory, target = Path(data), Path(out)
    wrong = [kind for kind in positive if kind not in KINDS]
    if wrong:
        raise ConfigError(f"there is no kind {wrong[0]!r} of interactions; choose among {', '.join(KINDS)}")
    recorded = read_recorded(str(source), key)
    merged = merge(read_data(directory), recorded, read_ledger(directory), positive)
    found = Collected(
        data=str(directory),
        source=shown(str(source)),
        sequence=recorded.sequence,
        positive=[kind for kind in KINDS if kind in positive],
        fingerprint=merged.data.fingerprint,
        counts=merged.counts,
    )
    if _is_there(target, found, merged.ledger):
        return Collected(**{**asdict(found), "is_unchanged": True})
    with fresh_directory(target, overwrite or (target / COLLECTED).exists()) as partial:
        _write(partial, merged.data, merged.ledger, found)
    return found


def _write(directory: Path, data: BundleData, ledger: list[Row], found: Collected) -> None:
    fill_tables(data, directory)
    columns = list(zip(*ledger, strict=True)) or [()] * len(COLUMNS)
    table = pa.table([pa.array(column, kind.type) for column, kind in zip(columns, COLUMNS, strict=True)],
                     schema=COLUMNS)  # fmt: skip
    parquet.write_table(table, directory / LEDGER)
    write_json(directory / COLLECTED, {"format": FORMAT, **_document(found)})


def _document(found: Collected) -> dict[str, Any]:
    return {name: value for name, value in asdict(found).items() if name != "is_unchanged"}


def _is_there(target: Path, found: Collected, ledger: list[Row]) -> bool:
    """Whether the directory holds this very collection."""
    if not (target / COLLECTED).exists():
        return False
    before = read_json(target / COLLECTED)
    same = before.get("fingerprint") == found.fingerprint and before.get("sequence") == found.sequence
    return same and read_ledger(target) == ledger


def read_ledger(directory: Path) -> list[Row]:
    """The rows that the tables of a directory owe to collecting; none where they were not collected."""
    path = directory / LEDGER
    if not path.exists():
        return []
    try:
        table = parquet.read_table(path, schema=COLUMNS)
    except (pa.ArrowInvalid, OSError) as error:
        reason = str(error).split("\n")[0]
        raise DataError(f"{path}: cannot be read ({reason}); collect again into a new directory") from None
    return [Row(*row) for row in zip(*(column.to_pylist() for column in table.columns), strict=True)]

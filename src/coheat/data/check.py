"""Checking a directory: everything that is wrong with it, at once.

Reading and checking find the same things, but for leaks, which need a closer look. Reading stops with one
DataError that names the first errors, and passes warnings on to Python's `warnings` as `DataWarning`;
`check` collects all findings.
Rows are numbered from 1, as an editor shows the lines of a text file (the header of a .csv is line 1).

What is found, and what comes of it:

| found                                                     | outcome                                        |
|-----------------------------------------------------------|------------------------------------------------|
| directory, table or text file missing; no tables at all   | error                                          |
| the same table in two formats, or both layouts            | error                                          |
| column missing, named twice, or wrong delimiter           | error; the hint shows the header               |
| .csv or .tsv without a header; unreadable Parquet or gzip | error                                          |
| table or text file without a single pair                  | warning                                        |
| line with too few or too many columns                     | error with the lines                           |
| id missing: empty, null or NaN                            | error with the rows                            |
| text that is not UTF-8                                    | error with the lines                           |
| quoted cell over several lines (a quote not closed)       | error with its first line                      |
| file that is not a table, line longer than 4 MB           | error                                          |
| id that is neither text nor a whole number (7.5, true)    | error                                          |
| ids 7 and 7.0 of a numeric column                         | the id "7"                                     |
| ids with spaces inside, slashes, quotes, emoji            | kept as they are                               |
| ids that begin or end with a space, or read "nan", "null" | kept as they are; warning                      |
| columns of a table swapped (its ids are found crosswise)  | error                                          |
| research text: something other than an integer            | error with the lines                           |
| research text: integer outside the declared size          | error with the lines; names swapped columns    |
| research text: sizes missing or not three integers        | error                                          |
| timestamp missing or not a time                           | error with the rows                            |
| timestamp that looks like milliseconds                    | warning                                        |
| `launched` or `ends` in the list of bundles: not a time   | error with the rows; empty is "not known"      |
| `price` not a number, `available` neither true nor false  | error with the rows; empty is "not known"      |
| further columns of `bundles` and `items`                  | kept, and listed with their types              |
| further columns of other tables                           | not read; note                                 |
| table of another name                                     | not read; note; warning if nearly a known name |
| column of lists, structures or without a name             | not kept; warning                              |
| end of a bundle before its launch                         | kept; warning with the rows                    |
| interaction while its bundle was not on offer             | kept; note                                     |
| `shown`: bundle that no other table has                   | error with the rows                            |
| `shown`: users whom no other table has                    | added; warning                                 |
| pair repeated                                             | dropped and counted; warning                   |
| pair in two parts of a split                              | error with the rows                            |
| `user_bundle` beside the parts of a split                 | not read; warning                              |
| bundle with interactions but no items                     | kept; warning                                  |
| tables without a common user, item or bundle              | error; warning if there are only a few ids     |
| tables with hardly any common user, item or bundle        | warning                                        |
| user known from one table only                            | kept; note                                     |
| held-out bundles that `user_item` gives away              | warning, in `check` and `train` only           |
| id not in the optional list `users`, `bundles`, `items`   | added; warning                                 |
| id twice in such a list                                   | counts once; warning                           |
| `split.json` that is not readable                         | error                                          |
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coheat.data.dataset import column_kinds
from coheat.data.files import Reading, inspect
from coheat.data.leaks import REMEDY, Leakage, leakage, leakage_before_division
from coheat.data.problems import Problem, Problems
from coheat.data.split import PARTS


@dataclass(frozen=True)
class CheckReport:
    """All findings about a directory, and its counts where it can be read."""

    directory: Path
    problems: tuple[Problem, ...]
    counts: dict[str, int] | None
    columns: dict[str, dict[str, str]] | None = None
    """Of the tables `bundles` and `items`: their further columns, and what each is taken for."""
    leakage: Leakage | None = None
    """Whether held-out interactions (where nothing is divided yet, any) give themselves away."""

    @property
    def errors(self) -> list[Problem]:
        return [problem for problem in self.problems if problem.severity == "error"]

    @property
    def warnings(self) -> list[Problem]:
        return [problem for problem in self.problems if problem.severity == "warning"]

    @property
    def ok(self) -> bool:
        """Whether the directory can be used; warnings and notes do not prevent it."""
        return not self.errors

    def to_dict(self) -> dict[str, Any]:
        return {
            "directory": str(self.directory),
            "ok": self.ok,
            "counts": self.counts,
            "columns": self.columns,
            "leakage": None if self.leakage is None else self.leakage.to_dict(),
            "problems": [problem.to_dict() for problem in self.problems],
        }


def check(directory: str | Path) -> CheckReport:
    """Read a directory without stopping at the first error, and report everything that was found."""
    place = Path(directory)
    problems = Problems(place)
    reading = inspect(place, problems)
    counts, columns, leaks = None, None, None
    if reading is not None and not problems.of("error"):
        world = reading.world
        counts = {"users": len(world.users), "bundles": len(world.bundles), "items": len(world.items)}
        for part, interactions in world.parts.items():
            counts["user_bundle" if part == "all" else part] = int(interactions.matrix.nnz)
        counts |= {"user_item": int(world.user_item.matrix.nnz), "bundle_item": int(world.bundle_item.nnz)}
        if world.shown is not None:
            counts["shown"] = len(world.shown)
        columns = column_kinds(world.data())
        leaks = _leaks(reading, problems)
    return CheckReport(place, tuple(problems.found), counts, columns, leaks)


def _leaks(reading: Reading, problems: Problems) -> Leakage:
    """How far what is to be found gives itself away; where that is too far, a warning is told."""
    world = reading.world
    divided = set(world.parts) == set(PARTS)
    found = leakage(world.split(reading.facts)) if divided else leakage_before_division(world.data())
    if found.is_suspicious:
        problems.warning(world.user_item_source, str(found), REMEDY)
    return found

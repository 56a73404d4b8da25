"""Reading a directory of tables or research text: what is in it decides how it is read."""

from __future__ import annotations

from pathlib import Path

from coheat.data.dataset import BundleData, Vocabulary
from coheat.data.problems import Problems
from coheat.data.research import PART_FILES, UNSPLIT_FILE, read_pairs, read_sizes
from coheat.data.split import Split
from coheat.data.world import World, build_world
from coheat.errors import DataError


def read_data(directory: str | Path) -> BundleData:
    """All interactions of a directory; where it holds a split, those of its parts together."""
    return _read(Path(directory)).data()


def read_split(directory: str | Path) -> Split:
    """The split that a directory holds: train, validation (or tune) and test."""
    if not has_split(directory):
        raise DataError(
            f"{directory}: it holds no split; name a scenario, or make a split with "
            f"`coheat data split {directory} --scenario cold --out SPLIT`"
        )
    return _read(Path(directory)).split("published", None)


def has_split(directory: str | Path) -> bool:
    """Whether a directory holds interactions that are already divided into parts."""
    return (Path(directory) / PART_FILES["train"]).is_file()


def _read(directory: Path) -> World:
    problems = Problems()
    world = _read_research(directory, problems)
    problems.conclude()
    assert world is not None, "a reader that finds no error returns a world"
    return world


def _read_research(directory: Path, problems: Problems) -> World | None:
    sizes = read_sizes(directory, problems)
    names = PART_FILES if has_split(directory) else {"all": UNSPLIT_FILE}
    parts = {
        part: read_pairs(directory / name, ("user", "bundle"), sizes, problems)
        for part, name in names.items()
    }
    user_item = read_pairs(directory / "user_item.txt", ("user", "item"), sizes, problems)
    bundle_item = read_pairs(directory / "bundle_item.txt", ("bundle", "item"), sizes, problems)
    found = {part: pairs for part, pairs in parts.items() if pairs is not None}
    if sizes is None or user_item is None or bundle_item is None or len(found) < len(parts):
        return None
    users, bundles, items = (Vocabulary(map(str, range(size)), kind) for kind, size in sizes.items())
    return build_world((users, bundles, items), user_item, bundle_item, found, problems)

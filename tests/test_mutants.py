"""A few of the mutants of benchmarks/service_mutants.py, in this process: a sentence each, or harmless."""

from __future__ import annotations

import random
import resource
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import mutants
import pytest
from mutants import bomb, mutated
from service_mutants import bases_of, write_bases

from coheat import Recommender
from coheat.data import read_data
from coheat.data.check import check
from coheat.errors import ArtifactError, CoheatError, ConfigError, DataError
from coheat.memory_limit import memory_limit, parse_size
from coheat.reading import build, read_object

MUTANTS = 40


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], list[Path]]:
    place = tmp_path_factory.mktemp("bases")
    write_bases(place)
    return bases_of(place)


@pytest.fixture(autouse=True)
def _limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COHEAT_MEMORY_LIMIT", "500MB")
    monkeypatch.setattr(mutants, "scale", [1])


@pytest.mark.parametrize("seed", range(2))
def test_mutated_artifacts_end_in_a_sentence(
    bases: tuple[list[Path], list[Path]], tmp_path: Path, seed: int
) -> None:
    rng, refused = random.Random(seed), 0
    for _ in range(MUTANTS):
        label = mutated("artifact", rng.choice(bases[0]), tmp_path / "mutant", rng)
        try:
            Recommender.load(tmp_path / "mutant").recommend(["user-1"], k=3)
        except CoheatError as error:
            refused += 1
            if str(tmp_path) not in str(error) and "unknown" not in str(error):
                pytest.fail(f"{label}: {error} names no place")
        except Exception as error:
            pytest.fail(f"{label}: {error!r}")
    assert refused > MUTANTS / 2


@pytest.mark.filterwarnings("ignore::coheat.data.DataWarning")
def test_mutated_data_end_in_a_sentence(bases: tuple[list[Path], list[Path]], tmp_path: Path) -> None:
    rng, refused = random.Random(5), 0
    for _ in range(MUTANTS):
        base = rng.choice(bases[1])
        label = f"{base.name}: {mutated('data', base, tmp_path / 'mutant', rng)}"
        try:
            read_data(tmp_path / "mutant")
        except DataError:
            refused += 1
        except Exception as error:
            pytest.fail(f"{label}: {error!r}")
    assert refused > MUTANTS / 2


def test_declared_sizes_are_held_against_memory(bases: tuple[list[Path], list[Path]], tmp_path: Path) -> None:
    research = shutil.copytree(_base(bases[1], "research-all"), tmp_path / "research")
    next(research.glob("*_data_size.txt")).write_text("1000000000\t40\t50\n")
    tables = shutil.copytree(_base(bases[1], "tables-all"), tmp_path / "tables")
    bomb(tables / "user_item.parquet", "user_id", "item_id")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for directory, said in ((research, "1,000,000,000 users"), (tables, "30,000,000 rows")):
        [error] = check(directory).errors
        assert said in error.what
        assert "the limit is 500 MB" in error.what
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kilobytes


def test_a_limit_of_memory_is_kept_by_the_command(
    bases: tuple[list[Path], list[Path]], tmp_path: Path
) -> None:
    """What is declared is refused before it is read; what no declaration tells is stopped by the system."""
    start = "from coheat.cli import main; main()"
    research = shutil.copytree(_base(bases[1], "research-all"), tmp_path / "research")
    next(research.glob("*_data_size.txt")).write_text("9000000\t40\t50\n")
    command = [sys.executable, "-c", start, "--memory-limit", "1GB", "data", "stats", str(research)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "the limit is 1 GB" in done.stderr
    taken = (
        "import numpy; from coheat.memory_limit import limit_memory; limit_memory('200MB'); numpy.ones(10**8)"
    )
    done = subprocess.run([sys.executable, "-c", taken], capture_output=True, text=True, check=False)
    assert "Unable to allocate" in done.stderr


@dataclass(frozen=True)
class Example:
    name: str
    count: int
    share: float
    lines: tuple[tuple[float, ...], ...]
    pairs: list[tuple[str, str]] = field(default_factory=list)
    told: bool | None = None


GOOD: dict[str, object] = {
    "name": "a",
    "count": 1,
    "share": 1,
    "lines": [[1, 2.5], []],
    "pairs": [["a", "b"]],
    "told": None,
}


def test_a_dataclass_from_json_has_the_types_that_it_says() -> None:
    assert build(Example, GOOD, "here") == Example("a", 1, 1, ((1, 2.5), ()), [("a", "b")], None)
    wrong: dict[str, object] = {
        "name": None, "count": True, "share": "1", "lines": [1], "pairs": [["a"]], "told": 0, "more": 1,
    }  # fmt: skip
    for name, value in wrong.items():
        with pytest.raises(ArtifactError, match=rf"here.*{name}"):
            build(Example, {**GOOD, name: value}, "here")
    strange: list[object] = [float("nan"), 1 << 80, -(1 << 70)]
    for value in strange:
        with pytest.raises(ArtifactError, match="share"):
            build(Example, {**GOOD, "share": value}, "here")
        with pytest.raises(ArtifactError, match="lines"):
            build(Example, {**GOOD, "lines": [[1.0, value]]}, "here")
    with pytest.raises(ArtifactError, match="count is missing"):
        build(Example, {name: value for name, value in GOOD.items() if name != "count"}, "here")


def test_sizes_of_memory() -> None:
    assert [parse_size(text) for text in ("1", "2 kb", "1.5GB", "3m")] == [1, 2000, 1_500_000_000, 3_000_000]
    for text in ("", "0", "-1", "many", "1 XB", "nan"):
        with pytest.raises(ConfigError, match="500MB"):
            parse_size(text)
    assert memory_limit() == 500_000_000


@pytest.mark.parametrize(
    "content", ["[" * 100_000, "9" * 5000, '{"a": ' + "9" * 5000 + "}", "[]", "{", "\x80"]
)
def test_json_that_is_none_of_ours(tmp_path: Path, content: str) -> None:
    (tmp_path / "x.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(ArtifactError, match=r"x\.json: "):
        read_object(tmp_path / "x.json")


def _base(bases: list[Path], name: str) -> Path:
    return next(base for base in bases if base.name == name)

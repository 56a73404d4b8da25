"""`coheat retrain`: collect, judge, train, publish; each step is done once, however often it is begun.

In the new run's directory:

    retrain/asked.json       what was asked for
    data/                    the tables with what was collected
    retrain/judged/          the training that is judged; removed afterwards
    retrain/judgement.json   how it stood beside the old model
    run.json, model/, ...    the new run, trained on everything
"""

from __future__ import annotations

import shutil
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from coheat.data.files import read_data
from coheat.data.writing import COLLECTED
from coheat.errors import ArtifactError, CoheatError, ConfigError, DataError
from coheat.presets import model_class
from coheat.recommender import Recommender
from coheat.retraining import publishing
from coheat.retraining.collecting import TAKEN, collect, read_ledger
from coheat.retraining.judging import Judgement, judge, prepare
from coheat.runs import DATA, STEPS, Run, open_run, train_run
from coheat.service.places import shown
from coheat.storage import alone_in, read_json, write_json
from coheat.training import Watcher
from coheat.warm_start import starts_warm

ASKED, JUDGED, JUDGEMENT = "asked.json", "judged", "judgement.json"


@dataclass(frozen=True)
class Asked:
    """What a retraining was asked for; the same again goes on with it."""

    run: str
    fingerprint: str
    source: str
    """Without a password, where it is the address of a database."""
    data: str | None
    positive: list[str]
    fresh: bool


@dataclass(frozen=True)
class Outcome:
    """What came of it. `run` is the new one, None where it is clearly worse and was not forced."""

    run: Run | None
    old: Path
    counts: dict[str, int]
    judgement: Judgement
    started_warm: bool
    kept: Path | None = None
    loaded: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "run": None if self.run is None else str(self.run.path),
            "old": str(self.old),
            "collected": self.counts,
            "judgement": self.judgement.to_dict(),
            "started_warm": self.started_warm,
            "seconds": None if self.run is None else self.run.artifact.description.seconds,
            "kept": None if self.kept is None else str(self.kept),
            "loaded": self.loaded,
        }


def retrain(
    run: str | Path,
    source: str | Path,
    out: str | Path,
    data: str | Path | None = None,
    positive: Collection[str] = TAKEN,
    reload: str | None = None,
    key: str | None = None,
    fresh: bool = False,
    force: bool = False,
    device: str = "auto",
    watcher: Watcher | None = None,
) -> Outcome:
    """Train a run anew on its data and what `source` recorded, starting from its vectors, into `out`.

    The settings are the run's. First a model without the newest interactions is judged beside the old one;
    where it is clearly worse nothing more is done, unless `force` says so. With `reload`, the address of a
    service that serves `run`, that path becomes a link to `out` and the service loads it.
    """
    served, target = Path(run).absolute(), Path(out)
    publishing.recover(served)
    old, asked = _asked(served, shown(str(source)), target, data, positive, fresh)
    steps = target / STEPS
    if not (target / DATA).exists() and data is None:
        _data_of(old)  # what is missing is said before anything is written
    with alone_in(steps):
        write_json(steps / ASKED, asdict(asked))
        try:
            counts = _collected(old, str(source), asked, target, key)
        except CoheatError:
            if not (target / DATA).exists():  # nothing was begun: the next try may ask for something else
                (steps / ASKED).unlink()
            raise
        warm = starts_warm(model_class(old.record.model)) and not asked.fresh
        options = {"device": device, "watcher": watcher, "start": old.path if warm else None}
        judgement = _judged(old, target, options)
        if judgement.is_worse and not force and not (target / "model").is_dir():
            return Outcome(None, old.path, counts, judgement, warm)
        trained = _train(old, target / DATA, target, options)
        shutil.rmtree(steps / JUDGED, ignore_errors=True)
    outcome = Outcome(trained, old.path, counts, judgement, warm)
    if reload is None:
        return outcome
    Recommender.load(target)  # what cannot be loaded is not published
    kept = publishing.publish(served, target)
    return Outcome(trained, old.path, counts, judgement, warm, kept, publishing.reload(reload, target, key))


def _asked(
    served: Path, source: str, out: Path, data: str | Path | None, positive: Collection[str], fresh: bool
) -> tuple[Run, Asked]:
    """The old run, and what is asked for; where that was begun before, it must be the same."""
    place = out / STEPS / ASKED
    before = Asked(**read_json(place)) if place.exists() else None
    # Once it is published, the path that is served leads to the new run.
    published = before is not None and served.resolve() == out.resolve()
    old = _begun_with(before) if before is not None and published else open_run(served.resolve())
    given = None if data is None else str(Path(data).resolve())
    asked = Asked(str(old.path), old.artifact.fingerprint, source, given, sorted(positive), fresh)
    if old.path == out.resolve():
        raise ConfigError(f"{out}: the old run itself; choose another --out for the new one")
    # What begins with a dot is left of somebody who was killed while writing.
    if (
        before is None
        and out.is_dir()
        and any(one.name[0] != "." and one.name != STEPS for one in out.iterdir())
    ):
        raise ConfigError(f"{out}: holds something else already; choose a new --out for the new run")
    if before is not None:
        differences = [
            name for name, value in asdict(before).items() if name != "run" and value != getattr(asked, name)
        ]
        if differences:
            raise ConfigError(
                f"{out}: another retraining was begun there (other {', '.join(differences)}); give the same "
                "command again to go on, or choose another --out"
            )
    return old, asked


def _begun_with(asked: Asked) -> Run:
    """The run that a published retraining began with, also where it was a directory and is kept aside now."""
    for place in (Path(asked.run), publishing.kept_of(Path(asked.run))):
        if place.is_dir() and (found := open_run(place.resolve())).artifact.fingerprint == asked.fingerprint:
            return found
    raise ArtifactError(f"{asked.run}: the run that this retraining began with no longer exists")


def _data_of(old: Run) -> Path:
    """The data of a run, where they still lie: in the run itself, where an earlier retraining made it."""
    places = (old.path / DATA, Path(old.record.data_resolved), Path(old.record.data))
    found = next((place for place in places if place.exists()), None)
    if found is None:
        raise DataError(
            f"{old.record.data}: the data of {old.path} are not there; say where they are with --data DIR"
        )
    return found.resolve()


def _collected(old: Run, source: str, asked: Asked, out: Path, key: str | None) -> dict[str, int]:
    """The data with what was recorded, collected once; what is new in them."""
    directory = out / DATA
    for part in out.glob(f".{DATA}.*.part"):  # of a process that was killed
        shutil.rmtree(part)
    if not (directory / COLLECTED).exists():
        base = Path(asked.data) if asked.data is not None else _data_of(old)
        return collect(source, base, directory, asked.positive, key).counts
    counts: dict[str, int] = read_json(directory / COLLECTED)["counts"]
    return counts


def _judged(old: Run, out: Path, options: dict[str, Any]) -> Judgement:
    """The judgement, made once."""
    place = out / STEPS / JUDGEMENT
    if place.exists():
        return Judgement.from_dict(read_json(place))
    directory = out / DATA
    exam = prepare(read_data(directory), old.artifact, read_ledger(directory))
    found = Judgement(0, 0, {}, {}, {})
    if exam.is_possible:
        new = _train(old, exam.known, out / STEPS / JUDGED, options)
        found = judge(exam, Recommender.load(old.path), Recommender.load(new.path), old.record.seed)
    write_json(place, found.to_dict())
    return found


def _train(old: Run, data: Any, out: Path, options: dict[str, Any]) -> Run:
    """A run with the old one's settings, on everything."""
    record = old.record
    return train_run(
        data,
        out,
        record.model,
        record.preset,
        record.overrides,
        record.seed,
        "everything",
        resume=True,
        **options,
    )

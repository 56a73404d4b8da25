"""Run experiments of the paper on data, and write what came out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from coheat.errors import ConfigError, DataError, Interrupted
from coheat.experiments.jobs import Job
from coheat.experiments.kept import KEPT, carry_over, forecast, kept_documents
from coheat.experiments.plan import Experiment, check_only, load_experiments
from coheat.experiments.results import gather, missing_divisions, plan_tables
from coheat.experiments.sources import Sources, find_datasets
from coheat.experiments.writing import read_document, write_document, write_report
from coheat.tasks import Display, Place, place_for, run_tasks
from coheat.tasks.choosing import HERE


@dataclass(frozen=True)
class Reproduction:
    """What was written: the documents of the experiments, and all files."""

    documents: list[dict[str, Any]]
    files: list[Path]


def reproduce(
    name: str,
    data: Path,
    out: Path,
    seeds: int | None = None,
    only: Sequence[str] = (),
    parallel: int = 1,
    console: Console | None = None,
    epochs: int | None = None,
    on: str | Place = HERE,
    kept: Path | None = None,
) -> Reproduction:
    """Train what an experiment (`all`: every one) needs and is not done yet in `out`, then write its tables.

    `only` limits what is trained now to these models, `epochs` shortens every training. The tables show all
    that has been measured in `out`, whenever that was, and, of a directory `kept` with results, the rows that
    have more seeds there. How long it will take is said first, from what such trainings took. `parallel` > 1
    trains so many at a time in processes with one core each; `on` has the machines of a Ray cluster do it
    (`coheat.tasks.place_for`). Killed at any moment, the same call goes on where it stopped.
    """
    if only:
        check_only(only)
    experiments = load_experiments(name)
    datasets, sources = find_datasets(data), Sources(out)
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out}: a file is in the way; choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    jobs: dict[str, Job] = {}
    for experiment in experiments:
        tables = plan_tables(experiment, datasets, sources, seeds, epochs)
        if not tables and experiment.view != "datasets" and name != "all":
            raise _nothing_to_do(missing_divisions(experiment, datasets, sources), data)
        for table in tables:
            for entry in table.entries:
                if not only or entry.row.model in only:
                    jobs |= {job.place: job for job in entry.jobs}
    before = kept_documents(kept or (KEPT if KEPT.is_dir() else None), [one.name for one in experiments])
    waiting = [job for job in jobs.values() if not job.is_done()]
    if waiting:
        announce(waiting, parallel, out, before, kept or KEPT, console)
        train(waiting, data, out, parallel, on, console)
    documents = [gather(experiment, datasets, sources, out, seeds, epochs) for experiment in experiments]
    if kept is not None:
        documents = [carry_over(document, before) for document in documents]
    return _write(documents, out, name)


def _nothing_to_do(missing: list[str], data: Path) -> DataError:
    return DataError(
        f"{data}: no table can be made of it. {'; '.join(missing)}. Put a split where its scenario is the "
        "name of a directory, for example DIR/cold/NAME, and give --data DIR"
    )


def announce(
    jobs: list[Job],
    parallel: int,
    out: Path,
    documents: list[dict[str, Any]],
    kept: Path,
    console: Console | None = None,
) -> None:
    """Say how long these trainings will take."""
    found = forecast(jobs, parallel, out, documents, str(kept if documents else out))
    (console or Console(stderr=True)).print(str(found), markup=False, highlight=False, soft_wrap=True)


def train(
    jobs: list[Job],
    data: Path,
    out: Path,
    parallel: int,
    on: str | Place = HERE,
    console: Console | None = None,
) -> None:
    """Do these jobs. One that fails is told and the others go on; Ctrl-C is passed on when all is saved."""
    with place_for(on, parallel, out=out, reads=[data]) as place, Display(jobs, place, console) as display:
        try:
            run_tasks(jobs, place, display)
        except (KeyboardInterrupt, Interrupted):
            raise Interrupted(
                f"interrupted after {display.finished} of {display.total} trainings; everything is saved. "
                "The same command goes on from here"
            ) from None


def rebuild(name: str, results: Path, out: Path) -> Reproduction:
    """The same tables and pictures from documents alone, without data; for `all`, of those that are there."""
    experiments: list[Experiment] = load_experiments(name)
    names = [e.name for e in experiments if name != "all" or (results / f"{e.name}.json").exists()]
    if not names:
        raise ConfigError(f"{results}: there are no results of experiments here")
    return _write([read_document(results, one) for one in names], out, name)


def _write(documents: list[dict[str, Any]], out: Path, name: str) -> Reproduction:
    files = [path for document in documents for path in write_document(document, out)]
    if name == "all":
        files.append(write_report(documents, out))
    return Reproduction(documents, files)

"""What `coheat train` was asked for, whether one process does it or several."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coheat.graph.ranks import Ranks
    from coheat.runs import Run


@dataclass(frozen=True)
class Job:
    """The arguments of `train_run` and who follows it, ready for JSON."""

    data: str
    out: str
    model: str = "ember"
    preset: str = "default"
    overrides: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    scenario: str | None = None
    device: str = "auto"
    resume: bool = False
    overwrite: bool = False
    remove_leaks: bool = False
    start: str | None = None
    quiet: bool = False
    tensorboard: str | None = None
    mlflow: str | None = None


def train_job(job: Job, ranks: Ranks | None = None) -> Run:
    """Train as asked; the leading one of several ranks is followed."""
    from coheat.graph.ranks import ALONE
    from coheat.progress import ProgressBar
    from coheat.runs import train_run
    from coheat.training import Watcher
    from coheat.watchers import MLflow, Several, TensorBoard

    ranks = ranks or ALONE
    watchers: list[Watcher] = []
    if ranks.leads:
        watchers += [] if job.quiet else [ProgressBar()]
        watchers += [] if job.tensorboard is None else [TensorBoard(Path(job.tensorboard))]
        watchers += [] if job.mlflow is None else [MLflow(job.mlflow)]
    return train_run(
        job.data,
        job.out,
        model_name=job.model,
        preset=job.preset,
        overrides=job.overrides,
        seed=job.seed,
        scenario=job.scenario,
        device=job.device,
        resume=job.resume,
        overwrite=job.overwrite,
        watcher=Several(*watchers),
        remove_leaks=job.remove_leaks,
        start=job.start,
        ranks=ranks,
    )

"""A progress bar for training, on standard error, so that standard output stays for results."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from coheat.memory import MemoryEstimate
from coheat.memory_limit import memory_limit, readable
from coheat.models.base import Model
from coheat.training import Record, Standing, TrainingSettings, Watcher


class _Bar(Progress):
    """A bar with lines of text below it, which stay readable where the terminal is narrow."""

    lines: tuple[str, ...] = ()

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        yield from (Text(line, overflow="ellipsis", no_wrap=True) for line in self.lines if line)


class ProgressBar(Watcher):
    """Epoch, time left, losses and the best validation so far; silent where nobody is looking."""

    def __init__(self, console: Console | None = None, show_memory: bool = True):
        self.show_memory = show_memory
        self.console = console or Console(stderr=True)
        self.watched = self.console.is_terminal or self.console.is_jupyter
        self.bar = _Bar(
            TextColumn("epoch {task.fields[epoch]}/{task.fields[epochs]}"),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.watched,
        )
        self.task = TaskID(0)
        self.per_epoch = 1

    def begin(
        self, model: Model, standing: Standing, settings: TrainingSettings, memory: MemoryEstimate
    ) -> None:
        if self.watched and self.show_memory:
            self.console.print(
                f"memory: about {readable(memory.total)} more of {readable(memory_limit())} available "
                f"({memory.describe()})",
                highlight=False,
            )
        # One extra step per epoch stands for its validation, so that models without batches move too.
        self.per_epoch = model.n_batches(settings.batch_size) + 1
        self.task = self.bar.add_task(
            "training",
            total=settings.epochs * self.per_epoch,
            completed=standing.epoch * self.per_epoch,
            epoch=standing.epoch,
            epochs=settings.epochs,
        )
        self.bar.lines = ("", _best(standing))
        self.bar.start()

    def backbone(self, model: Model) -> Watcher:
        if self.watched:
            self.console.print(
                f"first {model.backbone}, whose vectors this model starts from (kept for the next time)",
                highlight=False,
            )
        return ProgressBar(self.console, show_memory=False)

    def rehearsal(self, model: Model) -> Watcher:  # noqa: ARG002
        if self.watched:
            self.console.print("then on a part of the data, to learn what evidence is worth", highlight=False)
        return ProgressBar(self.console, show_memory=False)

    def batch(self) -> None:
        self.bar.advance(self.task)

    def epoch(self, record: Record, standing: Standing) -> None:
        values = {**record["terms"], **record["facts"]}
        self.bar.lines = ("  ".join(f"{name} {value:.4g}" for name, value in values.items()), _best(standing))
        self.bar.update(self.task, completed=standing.epoch * self.per_epoch, epoch=standing.epoch)

    def end(self) -> None:
        self.bar.stop()


def _best(standing: Standing) -> str:
    if not standing.best_metrics:
        return ""
    metrics = "  ".join(f"{name} {value:.4f}" for name, value in standing.best_metrics.items())
    return f"best validation: {metrics} (epoch {standing.best_epoch})"

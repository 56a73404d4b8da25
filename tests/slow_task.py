"""A task for tests that takes its time, so that something can happen to it meanwhile."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from coheat.errors import DataError
from coheat.storage import replacing_file
from coheat.tasks import Task


@dataclass(frozen=True)
class SlowTask(Task):
    """Sleeps, notes that it was begun, and writes what it was told to."""

    path: str
    seconds: float = 0.0
    text: str = "done"

    @property
    def name(self) -> str:
        return Path(self.path).name

    def run(self) -> None:
        with Path(f"{self.path}.begun").open("a") as file:
            file.write(f"{os.getpid()}\n")
        if self.text == "refuse":
            raise DataError("the data is not to its liking")
        if self.text == "die":
            os._exit(1)
        time.sleep(self.seconds)
        with replacing_file(Path(self.path)) as aside:
            aside.write_text(self.text)

    def is_done(self) -> bool:
        return Path(self.path).exists()

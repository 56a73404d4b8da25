"""One job in a process of its own: `python -m coheat.experiments.worker OUT CORE`, with the job on one line.

Standard input stays open as long as whoever asked for the job is alive; when it closes, the job saves where
it stands and ends. So nothing goes on training unnoticed after its parent was killed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path

INTERRUPTED = 130


def main() -> None:
    out, core = Path(sys.argv[1]), int(sys.argv[2])
    line = sys.stdin.readline()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if hasattr(os, "sched_setaffinity"):  # the compiled kernels use all cores a process may run on
        with suppress(OSError):
            os.sched_setaffinity(0, {core})
    from coheat.experiments.jobs import Job, run_job
    from coheat.training import TrainingInterrupted

    try:
        run_job(out, Job(**json.loads(line)))
    except (KeyboardInterrupt, TrainingInterrupted):
        sys.exit(INTERRUPTED)


def _end_with_parent() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    main()

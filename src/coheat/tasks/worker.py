"""One task in a process of its own: `python -m coheat.tasks.worker CORE`, with the task on one line.

Standard input stays open as long as whoever asked for the task is alive; when it closes, the task saves where
it stands and ends. So nothing goes on unnoticed after its parent was killed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress

INTERRUPTED = 130


def main() -> None:
    core = int(sys.argv[1])
    line = sys.stdin.readline()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if hasattr(os, "sched_setaffinity"):  # the compiled kernels use all cores a process may run on
        with suppress(OSError):
            os.sched_setaffinity(0, {core})
    from coheat.errors import CoheatError, Interrupted
    from coheat.tasks.task import from_text

    try:
        from_text(line).run()
    except (KeyboardInterrupt, Interrupted):
        sys.exit(INTERRUPTED)
    except CoheatError as error:
        sys.exit(str(error))


def _end_with_parent() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    main()

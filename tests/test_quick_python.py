"""What a quick Python does as an ordinary one does."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from quick_python import quick


def test_a_command_finds_what_stands_beside_quick_python_where_it_is_told_to() -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    words = [quick("python"), "-c", "import slow_task; print(slow_task.__name__)"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=600)
    assert (done.stdout.strip(), done.returncode) == ("slow_task", 0), done.stderr

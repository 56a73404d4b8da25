"""The table of costs: every model it is asked for, with what it needed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "model_costs.py"


def test_costs_are_measured_and_failures_told(planted_directory: Path, tmp_path: Path) -> None:
    out = tmp_path / "costs.json"
    models = ("heater", "nobody")
    command = [sys.executable, SCRIPT, "--data", planted_directory, "--models", *models, "--json", out]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "failed: nobody" in done.stderr
    found = json.loads(out.read_text())["models"]
    assert set(found) == set(models)
    assert "unknown model 'nobody'" in found["nobody"]["failed"]
    assert found["heater"]["backbone_seconds"] > 0
    assert found["heater"]["epoch_seconds"] > 0
    assert found["heater"]["peak_megabytes"] > 50
    assert done.stdout.count("\n|") == 3, "the table is printed"

"""The table of costs: what a model needed, and which one failed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from quick_python import quick

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import model_costs  # noqa: E402


def test_an_epoch_is_measured_with_its_parts(planted_directory: Path) -> None:
    found = model_costs.measure(planted_directory, "heater", "netease", 1)
    for part in ("setup", "backbone", "epoch", "validation"):
        assert found[f"{part}_seconds"] > 0
    assert found["preset"] == "netease"
    assert found["peak_megabytes"] > 50
    assert len(model_costs.row("heater", found)) == len(model_costs.COLUMNS)
    assert model_costs.measure(planted_directory, "counting", "youshu", 1)["backbone_seconds"] is None


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes apart are quick ones."""
    monkeypatch.setattr(sys, "executable", quick("python"))


@pytest.mark.usefixtures("_quick")
def test_later_epochs_do_not_count_the_first(planted_directory: Path) -> None:
    later = model_costs.measure(planted_directory, "mfbpr", "youshu", 3)["epoch_seconds"]
    assert 0 < later < model_costs.measure_apart(planted_directory, "coheat", "youshu", 1)["epoch_seconds"]


@pytest.mark.usefixtures("_quick")
def test_a_model_that_fails_is_a_finding(planted_directory: Path) -> None:
    found = model_costs.measure_apart(planted_directory, "nobody", "netease", 1)
    assert "unknown model 'nobody'" in found["failed"]
    assert "failed" in model_costs.row("nobody", found)[1]

"""The demo: the whole walk on a made-up shop (`walk`), and what it finds on the way (`findings`)."""

from coheat.demo.findings import Demo, FirstDays, Knob, NewBundle, Scenario, ShownUser
from coheat.demo.walk import (
    EVERYTHING,
    LEARNING,
    MODELS,
    OURS,
    SCENARIOS,
    YOUNG,
    YOUNG_MODELS,
    K,
    Viewer,
    run_demo,
    run_directory,
)

__all__ = [
    "EVERYTHING",
    "LEARNING",
    "MODELS",
    "OURS",
    "SCENARIOS",
    "YOUNG",
    "YOUNG_MODELS",
    "Demo",
    "FirstDays",
    "K",
    "Knob",
    "NewBundle",
    "Scenario",
    "ShownUser",
    "Viewer",
    "run_demo",
    "run_directory",
]

"""The walk through the library goes one way: nothing imports from a later step."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "coheat"

# Modules and packages by step, earliest first; those of one step may import each other.
STEPS = [
    {"errors", "config", "rng", "storage", "reading", "memory_limit", "threads", "ids", "display"},
    {"tasks"},
    {"attributes"},
    {"served"},
    {"data"},
    {"graph", "losses"},
    {"models"},
    {"evaluation"},
    {"memory", "checkpoint", "backbone", "training", "progress", "presets", "watchers", "together"},
    {"artifact"},
    {"recommender"},
    {"batch", "export"},
    {"judging", "warm_start"},
    {"runs"},
    {"workers"},
    {"contract", "testing", "experiments", "plots", "report", "demo"},
    {"service"},
    {"retraining"},
    {"cli"},
]
POSITION = {name: step for step, names in enumerate(STEPS) for name in names}


def modules() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def home(path: Path) -> str:
    """The top-level name a file belongs to: data/files.py -> data, runs.py -> runs."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """Top-level names of our own that a file imports, at its head or inside its functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: import by full name"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "coheat" and len(parts) > 1 and parts[1] != "__version__":
                found.add(parts[1])
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_nothing_imports_from_a_later_step(path: Path) -> None:
    own = home(path)
    assert own in POSITION, f"{own} has no place in the order of steps; give it one in this test"
    later = {name for name in imported(path) if POSITION.get(name, len(STEPS)) > POSITION[own]}
    assert not later, f"{path.relative_to(SOURCE)} imports from later steps: {sorted(later)}"


def loaded_by(statement: str) -> set[str]:
    """The modules a fresh Python has loaded after a statement."""
    code = f"{statement}\nimport sys\nprint('\\n'.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("name", ["Recommender", "BundleData", "Split", "read_data", "load_artifact"])
def test_serving_and_data_start_without_torch(name: str) -> None:
    loaded = loaded_by(f"from coheat import {name}")
    assert not loaded & {"torch", "matplotlib"}
    if name == "Recommender":
        assert not loaded & {"numba", "scipy", "pyarrow", "coheat.data"}


def test_help_starts_without_heavy_packages() -> None:
    loaded = loaded_by(
        "import importlib, coheat.cli\n"
        "for name in coheat.cli.COMMANDS: importlib.import_module(f'coheat.cli.{name}')"
    )
    assert not loaded & {"torch", "numba", "scipy", "pyarrow", "matplotlib", "numpy", "pandas"}


def test_every_public_name_is_there() -> None:
    import coheat

    for name in coheat.__all__:
        assert getattr(coheat, name) is not None
    assert set(coheat.__all__) <= set(dir(coheat))
    with pytest.raises(AttributeError, match="no attribute 'Recomender'"):
        _ = coheat.Recomender


def test_a_models_own_knob_is_named_in_few_files() -> None:
    """What one model needs stays with it: its files, the option, an example, and sentences for people."""
    texts = (path for path in SOURCE.rglob("*") if path.suffix in {".py", ".toml", ".json", ".js", ".html"})
    named = {str(path.relative_to(SOURCE)) for path in texts if "welcome" in path.read_text(encoding="utf-8")}
    assert len(named) <= 6, sorted(named)

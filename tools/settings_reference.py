"""Write docs/reference/settings.md: every setting and every preset, as the code has them.

python tools/settings_reference.py            # write the page
python tools/settings_reference.py --check    # exit with 1 where it is out of date
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from coheat.config import Settings
from coheat.models import MODELS
from coheat.presets import load_preset, preset_names
from coheat.training import TrainingSettings

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "settings.md"
HEAD = """\
# Settings

Every setting of every model with its default, and the presets. `--set key=value` changes one on the command
line, `overrides={"key": value}` in Python. This page is generated: run `python tools/settings_reference.py`
after a change to a config class or a preset. What the settings are for is explained in
[models.md](../models.md).

A preset names only what differs from the defaults. Some have other values for the cold scenario, where every
held-out bundle is new; `coheat train` uses those by itself when the data call for it.
"""


def settings_table(config: type[Settings]) -> str:
    lines = ["| setting | default | meaning |", "|---|---|---|"]
    for name, field in config.model_fields.items():
        if not field.description:
            raise SystemExit(f"{config.__name__}.{name} has no description; give it one in its Field")
        shown = str(field.default)
        if isinstance(field.default, bool | None):
            shown = shown.lower()
        lines.append(f"| `{name}` | {shown} | {_cell(field.description)} |")
    return "\n".join(lines)


def presets_table(model: str) -> str:
    lines = ["| preset | settings |", "|---|---|"]
    for preset in preset_names(model):
        usual = _merged(load_preset(model, preset))
        cold = _merged(load_preset(model, preset, cold=True))
        lines.append(f"| `{preset}` | {_pairs(usual)} |")
        if cold != usual:
            lines.append(f"| `{preset}`, cold scenario | {_pairs(cold)} |")
    return "\n".join(lines)


def reference() -> str:
    """The whole page."""
    parts = [HEAD, "## Training\n\nThe same for every model.\n", settings_table(TrainingSettings) + "\n"]
    for name, model in MODELS.items():
        settings = settings_table(model.Config) if model.Config.model_fields else "It has no settings."
        parts.append(f"## {name}\n\n{settings}\n\n{presets_table(name)}\n")
    return "\n".join(parts)


def _merged(preset: tuple[dict[str, object], dict[str, object]]) -> dict[str, object]:
    model_values, training_values = preset
    return model_values | training_values


def _pairs(values: dict[str, object]) -> str:
    return ", ".join(f"`{key}={value}`" for key, value in values.items()) or "the defaults"


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing, only compare")
    if not parser.parse_args().check:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(reference(), encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != reference():
        sys.exit(f"{PAGE.name} is out of date: run python tools/settings_reference.py")


if __name__ == "__main__":
    main()

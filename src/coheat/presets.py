"""Named settings for a model: `models/presets/<model>.toml`, and where an override belongs.

A preset file has the tables `[<preset>.model]` and `[<preset>.training]`, and may have
`[<preset>.cold.model]` and `[<preset>.cold.training]` with what is different where all held-out bundles are
new; `origin` in `[<preset>]` says where its values come from. The preset `default` always exists, even
without a file, and stands under every other: a preset says only what it has of its own. One's own preset,
such as `coheat tune` writes, is named by the path of its file: a .toml with `[model]` and `[training]`.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coheat.config import Settings, read_toml
from coheat.errors import ConfigError
from coheat.models import MODELS
from coheat.models.base import Model
from coheat.training import TrainingSettings

PRESETS = Path(__file__).parent / "models" / "presets"
PARTS = ("model", "training")


def model_class(name: str) -> type[Model]:
    """The model of this name; an unknown one is a ConfigError that lists the known ones."""
    if name not in MODELS:
        raise ConfigError(f"unknown model {name!r}; known models: {', '.join(sorted(MODELS))}")
    return MODELS[name]


def preset_names(model_name: str) -> list[str]:
    """The presets of a model, `default` first."""
    return sorted(_tables(model_name), key=lambda name: (name != "default", name))


def load_preset(model_name: str, preset: str, cold: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
    """The values a preset sets for the model and for training; both may be empty.

    With `cold`, those for data whose held-out bundles are all new, where the preset has any of these.
    """
    model_class(model_name)
    tables = _tables(model_name)
    if preset.endswith(".toml"):
        tables[preset] = _own(Path(preset))
    elif preset not in tables:
        known = ", ".join(preset_names(model_name))
        raise ConfigError(
            f"model {model_name!r} has no preset {preset!r}; it has: {known}; or name a .toml file"
        )
    layers = [tables["default"], tables[preset]]
    if cold:
        layers.append(tables[preset].get("cold", {}))
    model, training = (
        {key: value for layer in layers for key, value in layer.get(part, {}).items()} for part in PARTS
    )
    return model, training


def resolve_settings(
    model_name: str, preset: str, overrides: Mapping[str, Any], cold: bool = False
) -> tuple[Settings, TrainingSettings]:
    """The model's config and the training settings: defaults, then the preset, then the overrides.

    An override goes to whichever of the two has a field of that name; the names never coincide.
    """
    config_class = model_class(model_name).Config
    model_values, training_values = load_preset(model_name, preset, cold)
    for key, value in overrides.items():
        if key in config_class.model_fields:
            model_values[key] = value
        elif key in TrainingSettings.model_fields:
            training_values[key] = value
        else:
            raise _unknown(key, model_name, config_class)
    source = f"settings of {model_name!r}, preset {preset!r}"
    return config_class.create(model_values, source), TrainingSettings.create(training_values, source)


def origin_of(model_name: str, preset: str) -> str:
    """Where the values of a preset come from: published, or chosen on validation, and by which command."""
    if preset.endswith(".toml"):
        return f"one's own: {preset}"
    return str(_tables(model_name).get(preset, {}).get("origin", ""))


def _tables(model_name: str) -> dict[str, Any]:
    path = PRESETS / f"{model_name}.toml"
    return {"default": {}, **(read_toml(path) if path.exists() else {})}


def _own(path: Path) -> dict[str, Any]:
    tables = read_toml(path)
    wrong = [name for name, table in tables.items() if name not in PARTS or not isinstance(table, dict)]
    if wrong:
        raise ConfigError(f"{path}: a preset has the tables [model] and [training], not {', '.join(wrong)}")
    return tables


def _unknown(key: str, model_name: str, config_class: type[Settings]) -> ConfigError:
    model_keys, training_keys = list(config_class.model_fields), list(TrainingSettings.model_fields)
    close = difflib.get_close_matches(key, model_keys + training_keys, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return ConfigError(
        f"unknown setting {key!r}; {hint}settings of {model_name}: {', '.join(sorted(model_keys))}; "
        f"of training: {', '.join(sorted(training_keys))}"
    )

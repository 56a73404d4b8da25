"""What an experiment asks for: a TOML file with its rows, scenarios and seeds.

The files of the paper's tables and figures, and of tables of our own, stand in `tables` (and, in the
repository, in `experiments` at the root). Anybody's own file of the same kind is run by its path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from coheat.config import Settings, read_toml
from coheat.data.synthetic import LIKE
from coheat.errors import ConfigError
from coheat.evaluation import Candidates
from coheat.models import MODELS
from coheat.presets import preset_names
from coheat.training import TrainingSettings

TABLES = Path(__file__).parent / "tables"
NAMES = (
    "datasets",
    "cold-methods",
    "warm-methods",
    "cold-ratio",
    "ablation",
    "temperature",
    "figure-comparison",
)
"""The experiments of the paper, in the order of the report."""
OWN = ("current-rivals", "ember", "warm-up", "other-shops", "worlds")
"""Experiments that the paper does not have; `all` runs the paper's and these."""

Family = Literal["cold-start", "warm-start", "ours", "yardstick"]
Scenario = Literal["cold", "warm", "all", "warm-up", "time", "published"]


class ModelRow(Settings):
    """A row of the table: a model under the name the paper gives it."""

    name: str = Field(description="as published, or as it should stand in the table")
    model: str = Field(description="as on the command line")
    settings: dict[str, Any] = Field({}, description="what differs from the preset")
    preset: str | None = Field(
        None, description="default: the preset named like the data set, where there is one"
    )
    seeds: int | None = Field(None, ge=1, description="how many; default: the experiment's")
    scenarios: tuple[Scenario, ...] = Field((), description="only in these; default: all of the experiment's")
    family: Family = Field("ours", description="what kind of method; a yardstick is not a published rival")


class Experiment(Settings):
    """One table or figure."""

    name: str
    title: str
    view: Literal["datasets", "methods", "lines", "bars", "warm-up"] = Field(description="how it is drawn")
    scenarios: tuple[Scenario, ...] = Field(
        (), description='ways to divide the data; "published" is the one split that a data set came with'
    )
    cold_shares: tuple[float, ...] = Field(
        (), description="instead of scenarios: shares of test interactions on cold bundles"
    )
    seeds: int = Field(1, ge=1, description="runs of each row, with seeds 0, 1, ...")
    grid: dict[str, tuple[Any, ...]] = Field(
        {}, max_length=1, description="a setting to vary, and its values"
    )
    data: Literal["all", "divided", "other"] = Field(
        "all",
        description='which data sets: "divided" are those published as cold, warm and all (every one where '
        'there are none of these), "other" those that are not',
    )
    worlds: tuple[str, ...] = Field((), description="made-up worlds instead, as `coheat data synth --like`")
    without_leaks: bool = Field(
        False, description="where held-out bundles give themselves away, take out what they alone explain"
    )
    candidates: Candidates = Field("all", description='what is ranked: "all" or "offered" bundles')
    models: tuple[ModelRow, ...] = ()

    @property
    def divisions(self) -> tuple[str, ...]:
        """The ways to divide the data, as `sources` names them."""
        return tuple(self.scenarios) + tuple(f"cold-ratio-{share:g}" for share in self.cold_shares)


@dataclass(frozen=True)
class Row:
    """A row with its settings: of the grid's setting, `varied`, it has one value, `at`."""

    name: str
    model: str
    preset: str | None
    settings: dict[str, Any]
    seeds: int
    family: Family
    varied: str | None = None
    at: float | None = None
    scenarios: tuple[str, ...] = ()

    def belongs_in(self, division: str) -> bool:
        return not self.scenarios or division in self.scenarios


def load_experiment(name: str) -> Experiment:
    """An experiment of the paper by name, or one's own by the path of its TOML file."""
    path = Path(name) if name.endswith(".toml") else TABLES / f"{name}.toml"
    if not name.endswith(".toml") and name not in (*NAMES, *OWN):
        known = ", ".join((*NAMES, *OWN))
        raise ConfigError(f"there is no experiment {name!r}; choose one of {known}, all, or a .toml file")
    experiment = Experiment.create({"name": path.stem, **read_toml(path)}, str(path))
    if experiment.view != "datasets" and not (experiment.divisions and experiment.models):
        raise ConfigError(f"{path}: an experiment needs models, and scenarios or cold_shares")
    if experiment.view == "warm-up" and experiment.divisions != ("warm-up",):
        raise ConfigError(
            f'{path}: the view "warm-up" shows the scenario of that name; write scenarios = ["warm-up"]'
        )
    unknown = [world for world in experiment.worlds if world not in LIKE]
    if unknown:
        raise ConfigError(f"{path}: worlds = {unknown}: choose among {', '.join(LIKE)}")
    for key in experiment.grid:
        if not any(_has_setting(row.model, key) for row in experiment.models):
            raise ConfigError(f"{path}: grid.{key}: none of its models has a setting of that name")
    return experiment


def load_experiments(name: str) -> list[Experiment]:
    """The experiment of this name; for `all`, every one."""
    return [load_experiment(known) for known in ((*NAMES, *OWN) if name == "all" else [name])]


def rows(experiment: Experiment, seeds: int | None = None, epochs: int | None = None) -> list[Row]:
    """Every row of the table, one for each value of the grid; `seeds` overrides what the file says.

    A model without the grid's setting, such as a yardstick, has one row. `epochs` overrides those of every
    model that learns in epochs.
    """
    found = []
    for row in experiment.models:
        count = seeds or row.seeds or experiment.seeds
        if epochs is not None and row.model in MODELS and MODELS[row.model].learns:
            row = row.model_copy(update={"settings": {**row.settings, "epochs": epochs}})
        common = (row.model, row.preset)
        grid = {key: values for key, values in experiment.grid.items() if _has_setting(row.model, key)}
        where = row.scenarios
        if not grid:
            found.append(Row(row.name, *common, dict(row.settings), count, row.family, scenarios=where))
        for key, values in grid.items():
            for value in values:
                settings = {**row.settings, key: value}
                found.append(Row(row.name, *common, settings, count, row.family, key, float(value), where))
    return found


def _has_setting(model: str, key: str) -> bool:
    return model not in MODELS or key in {
        **MODELS[model].Config.model_fields,
        **TrainingSettings.model_fields,
    }


def preset_for(row: Row, dataset: str) -> str:
    """The preset named like the data set where the model has one, else its default."""
    if row.preset is not None:
        return row.preset
    return dataset.lower() if dataset.lower() in preset_names(row.model) else "default"


def check_only(only: Sequence[str]) -> None:
    """Refuse a model that nobody knows, so that a slip of the pen does not train nothing."""
    known = set(MODELS) | {row.model for name in (*NAMES, *OWN) for row in load_experiment(name).models}
    unknown = [model for model in only if model not in known]
    if unknown:
        raise ConfigError(
            f"--only {','.join(only)}: no model {', '.join(unknown)}; known: {', '.join(sorted(known))}"
        )

"""The models, by the name the command line uses. One line each; a new model adds one."""

from __future__ import annotations

from coheat.models.base import Model

MODELS: dict[str, type[Model]] = {}

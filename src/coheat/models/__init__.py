"""The models, by the name the command line uses. One line each; a new model adds one."""

from __future__ import annotations

from coheat.models.base import Model
from coheat.models.clcrec import CLCRec
from coheat.models.coheat import CoHeat
from coheat.models.counting import Counting
from coheat.models.mfbpr import MFBPR
from coheat.models.popularity import Popularity

MODELS: dict[str, type[Model]] = {
    "clcrec": CLCRec,
    "coheat": CoHeat,
    "counting": Counting,
    "mfbpr": MFBPR,
    "popularity": Popularity,
}

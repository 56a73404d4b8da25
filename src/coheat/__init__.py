"""Recommend bundles that nobody has bought yet.

The names below are imported when first used, so that `from coheat import Recommender` starts without
torch, and `coheat --help` at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coheat.artifact import load_artifact as load_artifact
    from coheat.data.dataset import BundleData as BundleData
    from coheat.data.files import read_data as read_data
    from coheat.data.files import read_split as read_split
    from coheat.data.split import Split as Split
    from coheat.evaluation import evaluate as evaluate
    from coheat.recommender import Recommender as Recommender
    from coheat.runs import fit_recommender as fit_recommender
    from coheat.runs import open_run as open_run
    from coheat.runs import train_run as train_run
    from coheat.training import TrainingSettings as TrainingSettings
    from coheat.training import fit as fit

__version__ = "0.2.0"

_HOMES = {
    "BundleData": "coheat.data.dataset",
    "Recommender": "coheat.recommender",
    "Split": "coheat.data.split",
    "TrainingSettings": "coheat.training",
    "evaluate": "coheat.evaluation",
    "fit": "coheat.training",
    "fit_recommender": "coheat.runs",
    "load_artifact": "coheat.artifact",
    "open_run": "coheat.runs",
    "read_data": "coheat.data.files",
    "read_split": "coheat.data.files",
    "train_run": "coheat.runs",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'coheat' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        from coheat.errors import extra_of

        extra = extra_of(error)
        if extra is None:
            raise
        advice = f"coheat.{name} needs {error.name}; install it with: pip install 'coheat[{extra}]'"
        raise ModuleNotFoundError(advice, name=error.name) from None


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})

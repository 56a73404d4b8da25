"""Errors meant for the person who reads them: what is wrong, where, and what to do about it.

Every error a user can cause derives from `CoheatError`. The command line prints its message as one
sentence and exits with status 2; anything else is a bug of ours and keeps its traceback.
"""

from __future__ import annotations


class CoheatError(Exception):
    """Base of all errors with a message for the user."""


class DataError(CoheatError):
    """The input tables are missing, malformed or contradict each other."""


class ConfigError(CoheatError):
    """A setting is unknown, has the wrong type, or lies outside its range."""


class ArtifactError(CoheatError):
    """A saved model or run is missing, incomplete, altered, or of another format."""


class TrainingError(CoheatError):
    """Training cannot start or go on (no interactions, not enough memory, a loss that is not finite)."""


class Interrupted(CoheatError):
    """Ctrl-C: what is finished is kept, what was begun is saved, and the same command goes on."""


class UnknownIdError(CoheatError):
    """A user, bundle or item id that the data or the model does not know."""


EXTRAS = {
    "train": ("torch", "numba", "llvmlite", "scipy", "matplotlib", "psutil"),
    "serve": ("fastapi", "starlette", "uvicorn", "httptools", "prometheus_client"),
    "postgres": ("psycopg", "psycopg_pool"),
    "export": ("faiss",),
    "tune": ("optuna",),
    "ray": ("ray",),
}
"""The packages that come with an extra of `pip install 'coheat[EXTRA]'`."""


def extra_of(error: ModuleNotFoundError) -> str | None:
    """The extra that brings an absent package; None for one that none of them brings."""
    package = (error.name or "").partition(".")[0]
    return next((extra for extra, packages in EXTRAS.items() if package in packages), None)

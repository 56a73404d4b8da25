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


class UnknownIdError(CoheatError):
    """A user, bundle or item id that the data or the model does not know."""

"""What changes come to, and why they are refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from coheat.attributes import Value
from coheat.errors import CoheatError, UnknownIdError
from coheat.ids import shortened
from coheat.recommender import Recommender, UserInfo


class Conflict(CoheatError):
    """What is to be made is there already."""


class PreconditionFailed(CoheatError):
    """What is to be changed is no longer as the one who asks has seen it."""


@dataclass(frozen=True)
class Remembered:
    """Of each interaction whether it was not there before, and whether the model counted it."""

    is_new: list[bool]
    counted: list[bool]


class UnknownRow(UnknownIdError):
    """One of several rows names what is not there."""

    def __init__(self, place: int, message: str):
        super().__init__(message)
        self.place = place


def known_values(columns: Mapping[str, Value]) -> dict[str, Value]:
    """Those that are known: whether others have a value in a column is not said of this one."""
    return {name: value for name, value in columns.items() if value is not None}


def require_bundle(recommender: Recommender, bundle_id: str) -> Recommender:
    """The recommender, if it has the bundle. The library's own error looks for similar ids, which takes long
    enough for a few wrong requests to hold up the right ones."""
    if not recommender.has_bundle(bundle_id):
        raise unknown_bundle(bundle_id)
    return recommender


def unknown_bundle(bundle_id: str) -> UnknownIdError:
    return UnknownIdError(f"unknown bundle id {shortened(bundle_id)}")


def no_knob(name: str) -> UnknownIdError:
    return UnknownIdError(f"this model has no knob {shortened(name)}")


def require_user(recommender: Recommender, user_id: str) -> UserInfo:
    """What is known of a user; an error where that is nothing at all."""
    found = recommender.user(user_id)
    if not found.is_known and not found.recorded_ids:
        raise UnknownIdError(f"unknown user id {shortened(user_id)}")
    return found

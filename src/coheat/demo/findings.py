"""What the demo finds, step by step; each ready for JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Scenario:
    """One way to divide the shop, and how each model did there.

    `models` has, by name, what `Run.evaluate` reports: metrics on test and validation, the chosen epoch,
    the seconds. `verdict` says in a sentence, computed from the numbers, who is ahead.
    """

    name: str
    split: dict[str, Any]
    models: dict[str, dict[str, Any]]
    verdict: str


@dataclass(frozen=True)
class Sides:
    """Recall@K of the held-out bundles that nobody took in training, and of those that somebody took."""

    new: float
    known: float


@dataclass(frozen=True)
class Knob:
    """Both sides on the test part of the scenario all: Ember as its knob turns, its rivals as they are."""

    name: str
    value: float
    turned: list[tuple[float, Sides]]
    rivals: dict[str, Sides]


@dataclass(frozen=True)
class FirstDays:
    """Bundles made young again: Recall@K of their later takers, by how many takers they kept.

    `levels` has, by model, what an evaluation calls `warm_up`. `verdict` says it in a sentence.
    """

    levels: dict[str, dict[str, dict[str, float]]]
    verdict: str


@dataclass(frozen=True)
class ShownBundle:
    """A recommended bundle and the reason at a glance: which of its items the user has already."""

    rank: int
    bundle_id: str
    score: float
    times_taken: int
    size: int
    shared_items: list[str]


@dataclass(frozen=True)
class ShownUser:
    """A user, what they have and took, and the list recommended to them."""

    user_id: str
    items: list[str]
    bundles: list[str]
    recommended: list[ShownBundle]


@dataclass(frozen=True)
class Receiver:
    """A user whom the new bundle suits; `owned` of its items are theirs already."""

    rank: int
    user_id: str
    score: float
    owned: int


@dataclass(frozen=True)
class NewBundle:
    """A bundle that did not exist in training, and who gets it.

    `owned_on_average` is over all users; `lists_entered` says how many of their lists of K it enters.
    `list_of_first` is the list of the first of the audience.
    """

    bundle_id: str
    items: list[str]
    audience: list[Receiver]
    owned_on_average: float
    lists_entered: int
    n_users: int
    list_of_first: list[str]


@dataclass(frozen=True)
class Demo:
    """Everything the demo found, ready for JSON. `served` is the run that learned from everything."""

    out: str
    seed: int
    quick: bool
    seconds: float
    world: dict[str, Any]
    scenarios: dict[str, Scenario]
    knob: Knob
    first_days: FirstDays
    served: str
    user: ShownUser
    new_bundle: NewBundle
    versions: dict[str, str]
    commands: list[str]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

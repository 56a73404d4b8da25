"""The models that answer now, one for each side. All of them get every change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from coheat.errors import CoheatError, DataError, UnknownIdError
from coheat.ids import shortened
from coheat.service.results import known_values, no_knob, unknown_bundle
from coheat.service.schemas import Bundle
from coheat.service.served import LoadedModel, load
from coheat.service.sides import Side, side_of
from coheat.service.store import TOOK, Kind


class Models:
    """By the names of their sides. Where one has to speak for all, it is that of the first side."""

    def __init__(
        self,
        sides: Sequence[Side],
        knobs: Mapping[str, float] | None = None,
        positive: frozenset[Kind] = TOOK,
    ):
        self.sides, self.knobs, self.positive = tuple(sides), knobs, positive
        self.loaded = self.load(1)

    def load(self, generation: int) -> dict[str, LoadedModel]:
        """All of them anew; what was written since training is not in them yet."""
        return {side.name: load(side.run, generation, self.knobs, self.positive) for side in self.sides}

    def __getitem__(self, side: str) -> LoadedModel:
        return self.loaded[side]

    def __iter__(self) -> Iterator[LoadedModel]:
        return iter(self.loaded.values())

    @property
    def first(self) -> LoadedModel:
        return self.loaded[self.sides[0].name]

    @property
    def sequence(self) -> int:
        """The number of the latest change that all of them have followed."""
        return min(one.sequence for one in self)

    def of_user(self, user_id: str) -> LoadedModel:
        """The model that answers a user."""
        return self.loaded[side_of(self.sides, user_id).name]

    @property
    def fingerprints(self) -> str:
        """With blanks between."""
        return " ".join(one.fingerprint for one in self)

    def has_bundle(self, bundle_id: str) -> bool:
        """Whether one of them has it."""
        return any(one.recommender.has_bundle(bundle_id) for one in self)

    def check_knob(self, name: str, value: float | None) -> None:
        """Raise where none of them has this knob, or it cannot stand so."""
        having = [one.recommender for one in self if name in one.recommender.knobs]
        if not having:
            raise no_knob(name)
        for model in having:
            model.turned(**{name: model.knobs[name] if value is None else value})

    def has_item(self, item_id: str) -> bool:
        return any(one.recommender.has_item(item_id) for one in self)

    def waits(self, bundle_id: str) -> bool:
        """Whether a bundle was written that none of them can place."""
        return not self.has_bundle(bundle_id) and bundle_id in self.first.waiting_bundles

    def described(self, bundle_id: str) -> Bundle:
        """A bundle as it stands, in the first model that has it."""
        found = next((one for one in self if one.recommender.has_bundle(bundle_id)), None)
        if found is None and self.waits(bundle_id):
            raise UnknownIdError(
                f"the bundle {shortened(bundle_id)} waits for a model that knows its items; DELETE withdraws "
                "it"
            )
        if found is None:
            raise unknown_bundle(bundle_id)
        model, left_out = found.recommender, found.unknown_items.get(bundle_id, [])
        columns = known_values(model.fields_of(bundle_id))
        on_offer = model.is_on_offer(bundle_id)
        return Bundle(
            **vars(model.bundle(bundle_id)), unknown_item_ids=left_out, columns=columns, on_offer=on_offer
        )

    def check_bundle(self, bundle_id: str, item_ids: Sequence[str]) -> None:
        """Raise where none can make anything of these items; where one can, it waits in the others."""
        faults = [self._refusal(one, bundle_id, item_ids) for one in self]
        refused = [fault for fault in faults if fault is not None]
        if len(refused) == len(faults):
            raise refused[0]

    @staticmethod
    def _refusal(loaded: LoadedModel, bundle_id: str, item_ids: Sequence[str]) -> CoheatError | None:
        model = loaded.recommender
        try:
            model.check_bundles({bundle_id: item_ids}, model.has_bundle(bundle_id))
        except UnknownIdError as error:
            return DataError(str(error))
        except CoheatError as error:
            return error
        return None

"""A served model as arrays and back, for every model there is; what is asked of both is answered alike."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from coheat.contract import small_config
from coheat.data.split import Split
from coheat.models import MODELS
from coheat.models.base import Progress
from coheat.rng import Randomness
from coheat.served import Knob, OwnScores, Served
from coheat.served.arrays import Array


def served_of(name: str, split: Split) -> Served:
    """That of a model whose numbers are not all zero."""
    kind = MODELS[name]
    model = kind(split.train, small_config(kind), Randomness(3))
    if model.backbone is not None:
        generator = Randomness(1).torch_generator("pretrained")
        model.pretrained_users.normal_(generator=generator)
        model.pretrained_bundles.normal_(generator=generator)
    model.begin_epoch(Progress(1, 2))
    return model.eval().served()


def plain(arrays: dict[str, Array]) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {name: (str(array.dtype), array.shape, array.tobytes()) for name, array in arrays.items()}


@pytest.mark.parametrize("name", sorted(MODELS))
def test_arrays_are_all_there_is(name: str, planted: Split) -> None:
    served = served_of(name, planted)
    arrays = served.arrays()
    if isinstance(served, OwnScores):
        assert served.refusal is not None
        again = Served.from_arrays(arrays)  # its relations, which are its training data, are kept
        assert np.array_equal(again.relations.user_bundle.indices, planted.train.user_bundle.indices)
        return
    again = Served.from_arrays(arrays)
    assert plain(again.arrays()) == plain(arrays)
    users, rows = np.arange(planted.train.n_users), np.arange(planted.train.n_bundles)
    assert np.array_equal(again.scores(users), served.scores(users))
    assert np.array_equal(again.bundles.weighed.take(rows), served.bundles.weighed.take(rows))
    assert again.cannot_place == served.cannot_place
    items = np.array([0, 3, 5])
    if served.cannot_place is None:
        one, other = (s.score(s.people(users), s.added(s.bundles, [items])) for s in (served, again))
        assert np.array_equal(one, other)
    folded = served.fold_in(items, np.array([1, 4])), again.fold_in(items, np.array([1, 4]))
    assert (folded[0] is None) == (folded[1] is None)
    if folded[0] is not None and folded[1] is not None:
        assert np.array_equal(folded[0], folded[1])
    for evidence in ((0, 1.0), (0, 0.0), (7, 0.0)):
        assert again.history_weight(*evidence) == served.history_weight(*evidence)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_one_bundle_for_all_is_a_column_of_all_bundles(name: str, planted: Split) -> None:
    served = served_of(name, planted)
    scores = served.scores(np.arange(planted.train.n_users))
    for bundle in (0, 11, planted.train.n_bundles - 1):
        contents = served.relations.bundle_item.row(bundle)
        found = served.scores_of_bundle(served.bundles, bundle, contents)
        np.testing.assert_allclose(found, scores[:, bundle], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["coheat", "counting", "crosscbr", "ember", "popularity"])
def test_parts_weighed_are_the_scores(name: str, planted: Split) -> None:
    served = served_of(name, planted)
    users, bundles = np.array([5, 0, 5, 17]), served.bundles
    parts = served.parts(users)
    curves = [block.curve for block in served.blocks] + [overlap.curve for overlap in served.overlaps]
    assert parts.shape == (len(curves), len(users), len(bundles))
    expected = np.zeros((len(users), len(bundles)))
    for part, curve in zip(parts, curves, strict=True):
        expected += part * curve.at(bundles.taken, bundles.youth)
    for curve in (served.bias, *(knob.curve for knob in served.knobs.values())):
        expected += curve.at(bundles.taken, bundles.youth)
    np.testing.assert_allclose(served.scores(users), expected, rtol=1e-4, atol=1e-5)
    assert np.abs(expected).max() > 0


def test_some_columns_are_those_of_all(planted: Split) -> None:
    served = served_of("ember", planted)
    people, columns = served.people(np.array([5, 0, 5])), np.array([2, 3, 17])
    whole = served.score(people, served.bundles)
    np.testing.assert_allclose(served.score(people, served.bundles, columns), whole[:, columns], rtol=1e-5)
    scratch = np.full((9, planted.train.n_bundles), np.nan, dtype=np.float32)
    assert np.array_equal(served.score(people, served.bundles, scratch=scratch), whole)


def test_turning_a_knob_leaves_the_model_as_it_was(planted: Split) -> None:
    served = served_of("ember", planted)
    lines = ((-5.0, -1.0), (0.0, 0.0), (3.0, 1.0))
    knob = Knob(2.0, (0.0, 1.0, 100.0), (0.0, 8.0), lines, (0.0, 0.1, 1.0), "")
    served = replace(served, knobs={"welcome": knob}).turned(welcome=2.0)
    users = np.arange(planted.train.n_users)
    before = served.scores(users)
    lifted = served.turned(welcome=100.0)
    assert np.array_equal(served.scores(users), before)
    bundles = served.bundles
    low = np.interp(bundles.taken, [0, 8], np.array([3, 1]) / 99)
    expected = bundles.youth * (np.interp(bundles.taken, [0, 8], [3, 1]) - low)
    found = lifted.scores(users) - before
    np.testing.assert_allclose(found, np.broadcast_to(expected, found.shape), atol=1e-5)
    assert expected.max() > 2.9  # of a bundle that nobody took
    assert 0 < expected[bundles.taken > 0].max() < 1.5  # it fades with evidence

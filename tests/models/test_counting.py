from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_artifact import describe

from coheat.config import read_toml
from coheat.data import BundleData, Vocabulary, relation
from coheat.data.dataset import Sparse
from coheat.errors import ConfigError
from coheat.evaluation import Candidates, evaluate
from coheat.models.base import Progress
from coheat.models.counting import Counting, CountingConfig
from coheat.recommender import Recommender
from coheat.rng import Randomness
from coheat.runs import contents_of

ROOT = Path(__file__).parents[2]
YOUSHU = ROOT.parent / "shared" / "data" / "cold" / "Youshu"


def bundle_data(user_bundle: Sparse, user_item: Sparse, bundle_item: Sparse) -> BundleData:
    return BundleData(
        users=Vocabulary((f"{i:05}" for i in range(user_item.shape[0])), "user"),
        bundles=Vocabulary((f"{i:05}" for i in range(bundle_item.shape[0])), "bundle"),
        items=Vocabulary((f"{i:05}" for i in range(user_item.shape[1])), "item"),
        user_bundle=user_bundle,
        user_item=user_item,
        bundle_item=bundle_item,
    )


def random_data(seed: int) -> BundleData:
    rng = np.random.default_rng(seed)
    n_users, n_bundles, n_items = rng.integers(1, 9, size=3)

    def some(rows: int, columns: int) -> Sparse:
        row_indices, column_indices = np.nonzero(rng.random((rows, columns)) < 0.4)
        return relation(row_indices, column_indices, (rows, columns))

    return bundle_data(some(n_users, n_bundles), some(n_users, n_items), some(n_bundles, n_items))


def slow_score(data: BundleData, user: int, bundle: int, use_bundle_items: bool, exponent: float) -> float:
    owned, taken = data.user_item.toarray()[user], data.user_bundle.toarray()[user]
    contents = data.bundle_item.toarray()
    overlap = 0.0
    for item in np.flatnonzero(contents[bundle]):
        overlap += float(owned[item])
        if use_bundle_items:
            overlap += float(contents[np.flatnonzero(taken), item].sum())
    size = float(max(contents[bundle].sum(), 1))
    return overlap / math.pow(size, exponent)


@settings(deadline=None)
@given(st.integers(0, 10**6), st.booleans(), st.sampled_from([0.0, 0.25, 1.0]))
def test_scores_equal_the_slow_version(seed: int, use_bundle_items: bool, exponent: float) -> None:
    data = random_data(seed)
    config = CountingConfig(use_bundle_items=use_bundle_items, size_exponents=(exponent,))
    users = np.arange(data.n_users)[::-1].copy()
    scores = Counting(data, config, Randomness(0)).served().scores(users)
    expected = [
        [slow_score(data, user, bundle, use_bundle_items, exponent) for bundle in range(data.n_bundles)]
        for user in users
    ]
    assert scores.dtype == np.float32
    assert scores == pytest.approx(np.array(expected, dtype=np.float32), rel=1e-6)


def test_a_bundle_without_items_scores_zero() -> None:
    data = bundle_data(relation([0], [1], (1, 2)), relation([0], [0], (1, 1)), relation([1], [0], (2, 1)))
    model = Counting(data, CountingConfig(), Randomness(0))
    assert model.served().scores(np.array([0])).tolist() == [[0.0, 2.0]]


def test_each_epoch_tries_one_exponent_and_a_checkpoint_carries_it() -> None:
    data, config = random_data(5), CountingConfig(size_exponents=(0.0, 0.5, 1.0))
    model = Counting(data, config, Randomness(0))
    tried = []
    for epoch in range(1, 5):
        model.begin_epoch(Progress(epoch, 4))
        tried.append(model.facts()["size_exponent"])
        if epoch == 2:
            saved = {name: tensor.clone() for name, tensor in model.state_dict().items()}
            expected = model.served().scores(np.arange(data.n_users))
    assert tried == [0.0, 0.5, 1.0, 1.0]

    again = Counting(data, config, Randomness(1))
    again.load_state_dict(saved)
    assert again.facts() == {"size_exponent": 0.5}
    assert np.array_equal(again.served().scores(np.arange(data.n_users)), expected)


def test_there_is_nothing_to_learn() -> None:
    model = Counting(random_data(5), CountingConfig(), Randomness(0))
    assert list(model.batches(8)) == []
    assert model.n_batches(8) == 0
    assert model.optimizers() == []
    assert not list(model.parameters())
    assert all(isinstance(buffer, torch.Tensor) for buffer in model.state_dict().values())


def test_new_bundles_score_as_if_they_had_been_there() -> None:
    data = random_data(11)
    served = Counting(data, CountingConfig(size_exponents=(0.25,)), Randomness(0)).served()
    users, n = np.arange(data.n_users), data.n_bundles
    filled = np.flatnonzero(np.diff(data.bundle_item.indptr))[::-1]
    items = [data.bundle_item[[bundle]].indices.astype(np.int64) for bundle in filled]
    found = served.score(served.people(users), served.added(served.bundles, items))
    assert np.array_equal(found[:, :n], served.scores(users))
    assert np.array_equal(found[:, n:], served.scores(users)[:, filled])


def shop() -> Recommender:
    """One user owns i0 and took "ab" (i0, i1), so the profile is 2 for i0 and 1 for i1."""
    data = BundleData(
        Vocabulary(["ann", "bob"], "user"),
        Vocabulary(["ab", "bc", "c"], "bundle"),
        Vocabulary(["i0", "i1", "i2"], "item"),
        relation([0], [0], (2, 3)),
        relation([0, 1], [0, 2], (2, 3)),
        relation([0, 0, 1, 1, 2], [0, 1, 1, 2, 2], (3, 3)),
    )
    model = Counting(data, CountingConfig(size_exponents=(1.0,)), Randomness(0))
    return Recommender(contents_of(model, describe(model, "counting")))


def test_it_places_new_bundles_by_their_items() -> None:
    recommender = shop()
    recommender.add_bundles({"new": ["i0", "i1"], "alone": ["i0"]})
    found = recommender.recommend(["ann"], 9, exclude_seen=False)
    listed = {row.bundle_id: (row.score, row.is_new) for row in found}
    assert listed == {"ab": (1.5, False), "bc": (0.5, True), "c": (0, True),
                      "new": (1.5, True), "alone": (2, True)}  # fmt: skip
    assert [(row.user_id, row.score) for row in recommender.audience("alone")] == [("ann", 2), ("bob", 0)]
    tried = recommender.audience(items=["i2", "i0"])
    assert [(row.user_id, row.score) for row in tried] == [("ann", 1), ("bob", 0.5)]
    recommender.record("bob", "alone")
    assert recommender.audience(items=["i0"])[1] == ("bob", "", 1, 2, True)
    strange = recommender.recommend(["new here"], 1, items={"new here": ["i2"]})
    assert (strange[0].bundle_id, strange[0].score, strange.sources) == ("c", 1, {"new here": "folded-in"})


def test_it_explains_itself() -> None:
    found = shop().explain("ann", "ab")
    assert [(term.name, term.about, term.weight, term.share) for term in found.terms] == [
        ("items in common", "items", 1, 1.5)
    ]
    assert (found.score, found.history, found.items, found.youth, found.own) == (1.5, 0, 1.5, 0, 0)
    assert [(part.item_id, part.share) for part in found.bundle_items] == [("i0", 1), ("i1", 0.5)]
    assert [(part.item_id, part.share) for part in found.user_items] == [("i0", 0.5)]
    assert [(part.bundle_id, part.share) for part in found.user_bundles] == [("ab", 1)]


def test_it_finds_similar_bundles_by_the_items_themselves() -> None:
    recommender = shop()
    recommender.add_bundles({"abc": ["i0", "i1", "i2"]})
    found = recommender.similar_bundles("ab")
    assert [(row.bundle_id, row.shared_items) for row in found] == [
        ("abc", ["i0", "i1"]), ("bc", ["i1"]), ("c", [])
    ]  # fmt: skip
    assert [row.similarity for row in found] == pytest.approx([2 / math.sqrt(6), 0.5, 0])
    assert recommender.similar_bundles(items=["i2"], k=1)[0].bundle_id == "c"


def test_planted_cold_bundles_are_found() -> None:
    """Two tastes: a user's items are one half of all items; the cold bundles are pure, one for each taste."""
    rng = np.random.default_rng(0)
    tastes = np.arange(20) % 2
    items = np.array([rng.choice(15, size=6, replace=False) + 15 * taste for taste in tastes])
    user_item = relation(np.repeat(np.arange(20), 6), items.ravel(), (20, 30))
    contents = np.array([np.arange(15), np.arange(15, 30)])
    bundle_item = relation(np.repeat([0, 1], 15), contents.ravel(), (2, 30))
    data = bundle_data(relation([], [], (20, 2)), user_item, bundle_item)
    result = evaluate(
        Counting(data, CountingConfig(), Randomness(0)).served(),
        data,
        relation(np.arange(20), tastes, (20, 2)),
        ks=(1,),
        candidates="cold",
    )
    assert result.metrics["recall@1"] == 1.0


def test_it_has_no_vectors_to_export() -> None:
    with pytest.raises(ConfigError, match="without vectors, so there are none to export"):
        shop().vectors()


@pytest.mark.parametrize("values", [{"size_exponents": []}, {"size_exponents": [-1]}, {"exponent": 1}])
def test_wrong_settings_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="exponent"):
        CountingConfig.create(values)


def test_every_preset_tries_every_exponent() -> None:
    presets = read_toml(ROOT / "src" / "coheat" / "models" / "presets" / "counting.toml")
    assert set(presets) == {"default", "youshu", "netease", "ifashion"}
    for preset in presets.values():
        config = CountingConfig.create(preset["model"])
        assert preset["training"] == {"epochs": len(config.size_exponents), "evaluate_every": 1}


@pytest.fixture(scope="module")
def youshu() -> tuple[BundleData, Sparse]:
    if not YOUSHU.exists():
        pytest.skip("the published Youshu files are not here")

    def read(name: str, shape: tuple[int, int]) -> Sparse:
        table = np.loadtxt(YOUSHU / name, dtype=np.int64)
        return relation(table[:, 0], table[:, 1], shape)

    n_users, n_bundles, n_items = map(int, (YOUSHU / "Youshu_data_size.txt").read_text().split())
    data = bundle_data(
        read("user_bundle_train.txt", (n_users, n_bundles)),
        read("user_item.txt", (n_users, n_items)),
        read("bundle_item.txt", (n_bundles, n_items)),
    )
    return data, read("user_bundle_test.txt", (n_users, n_bundles))


@pytest.mark.real_data
@pytest.mark.parametrize(
    ("use_bundle_items", "exponent", "candidates", "recall", "ndcg", "slack"),
    [
        (True, 0.25, "all", 0.0726, 0.0419, 0.0002),
        (True, 0.25, "cold", 0.150, 0.093, 0.0005),
        # Plain overlaps with items alone are small whole numbers: the order of ties moves recall by .005.
        (False, 0.0, "all", 0.0480, 0.0273, 0.003),
        (False, 1.0, "all", 0.0103, 0.0059, 0.0002),
    ],
)
def test_reference_figures_on_youshu(
    youshu: tuple[BundleData, Sparse],
    use_bundle_items: bool,
    exponent: float,
    candidates: Candidates,
    recall: float,
    ndcg: float,
    slack: float,
) -> None:
    train, test = youshu
    config = CountingConfig(use_bundle_items=use_bundle_items, size_exponents=(exponent,))
    scorer = Counting(train, config, Randomness(0)).served()
    result = evaluate(scorer, train, test, candidates=candidates)
    assert result.n_users == 2561
    assert result.metrics["recall@20"] == pytest.approx(recall, abs=slack)
    assert result.metrics["ndcg@20"] == pytest.approx(ndcg, abs=slack)

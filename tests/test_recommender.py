"""The recommender against brute force, and what it says when asked for what is not there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from by_hand import recommender_of, relations
from factorisation import factorisation
from hypothesis import given, settings
from hypothesis import strategies as st
from served_vectors import vectors_of
from test_artifact import save

from coheat.data.dataset import relation
from coheat.data.split import Split
from coheat.errors import ArtifactError, ConfigError, DataError, UnknownIdError
from coheat.evaluation import top_bundles
from coheat.export import export
from coheat.models import MODELS
from coheat.models.base import Model
from coheat.recommender import Recommendation, Recommender, lists
from coheat.rng import Randomness
from coheat.served import Block, Served


@pytest.fixture
def model(planted: Split) -> Model:
    return factorisation(planted.train)


@pytest.fixture
def recommender(model: Model, tmp_path: Path) -> Recommender:
    save(tmp_path / "model", model)
    return Recommender.load(tmp_path / "model")


def small(seed: int, n_users: int = 4, n_bundles: int = 9) -> tuple[Recommender, np.ndarray, np.ndarray]:
    """A recommender with whole-number vectors, so that ties are plenty; its scores; who took what."""
    rng = np.random.default_rng(seed)
    users = rng.integers(-1, 2, (n_users, 2)).astype(np.float32)
    bundles = rng.integers(-1, 2, (n_bundles, 2)).astype(np.float32)
    taken = rng.random((n_users, n_bundles)) < 0.3
    block = Block("score", "items", 2, items=np.eye(2, dtype=np.float32))
    known = relations(taken, np.zeros((n_users, 2)), np.zeros((n_bundles, 2)))
    recommender = recommender_of(Served.create(known, [(block, users, bundles)]))
    return recommender, users @ bundles.T, taken


def brute_force(scores: np.ndarray, allowed: np.ndarray, k: int) -> list[int]:
    return sorted(np.flatnonzero(allowed).tolist(), key=lambda b: (-scores[b], b))[:k]


@given(st.integers(0, 10_000), st.integers(1, 12), st.booleans(), st.sampled_from(["all", "new", "some"]))
@settings(max_examples=80, deadline=None)
def test_recommend_equals_brute_force(seed: int, k: int, exclude_seen: bool, candidates: str) -> None:
    recommender, scores, taken = small(seed)
    some = ["b7", "b2", "b3"]
    open_to = {"all": np.ones(9, bool), "new": ~taken.any(0), "some": np.isin(np.arange(9), [7, 2, 3])}[
        candidates
    ]
    found = recommender.recommend(["u3", "u0"], k, some if candidates == "some" else candidates, exclude_seen)
    expected = []
    for user in (3, 0):
        best = brute_force(scores[user], open_to & ~(taken[user] & exclude_seen), k)
        expected += [
            Recommendation(f"u{user}", f"b{b}", float(scores[user, b]), rank, not taken[:, b].any())
            for rank, b in enumerate(best, 1)
        ]
    assert found == expected


@given(st.integers(0, 10_000), st.integers(1, 6), st.booleans())
@settings(max_examples=80, deadline=None)
def test_audience_equals_brute_force(seed: int, k: int, exclude_seen: bool) -> None:
    recommender, scores, taken = small(seed)
    for bundle in (0, 5):
        best = brute_force(scores[:, bundle], ~(taken[:, bundle] & exclude_seen), k)
        assert recommender.audience(f"b{bundle}", k, exclude_seen) == [
            Recommendation(f"u{u}", f"b{bundle}", float(scores[u, bundle]), rank, not taken[:, bundle].any())
            for rank, u in enumerate(best, 1)
        ]


def test_lists_are_those_of_evaluation(recommender: Recommender, model: Model, planted: Split) -> None:
    data = planted.train
    ranked, _ = top_bundles(model.served(), np.arange(data.n_users), data.user_bundle, 7)
    found = recommender.recommend(list(data.users.ids), k=7)
    expected = [data.bundles[int(bundle)] for row in ranked for bundle in row]
    assert [row.bundle_id for row in found] == expected


def test_ids_read_from_the_disk_are_a_sequence_like_any_other(
    recommender: Recommender, planted: Split
) -> None:
    found, expected = recommender.user_ids, planted.train.users.ids
    assert list(found) == list(expected)
    assert len(found) == len(expected)
    assert (found[0], found[-1], found[7]) == (expected[0], expected[-1], expected[7])
    assert found[3:9] == list(expected[3:9])
    assert found[1::10] == list(expected[1::10])
    assert expected[5] in found


def test_one_user_is_the_same_as_in_a_batch(
    recommender: Recommender, planted: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = list(planted.train.users.ids)
    monkeypatch.setattr(lists, "ROWS", 7)  # more than one block
    together = recommender.recommend(names, k=3)
    assert len(together) == 3 * len(names)
    alone = [row for name in names[:5] for row in recommender.recommend([name], k=3)]
    assert [row.bundle_id for row in together[:15]] == [row.bundle_id for row in alone]
    assert np.allclose([row.score for row in together[:15]], [row.score for row in alone], rtol=1e-5)


def test_a_new_bundle_has_the_vector_the_model_gives_it(
    recommender: Recommender, model: Model, planted: Split
) -> None:
    items = [planted.train.items[n] for n in (3, 0, 11, 3)]  # one of them twice: a bundle is a set
    added = recommender.add_bundles({"new": items, "other": items[:1]})
    assert (added.bundle_ids, added.unknown_items) == (["new", "other"], {})
    matrix = relation([0, 0, 0, 1], [3, 0, 11, 3], (2, planted.train.n_items))
    expected = vectors_of(model).new_bundles(matrix).numpy()
    assert np.allclose(recommender.vectors()["bundle"][1][-2:], expected, rtol=1e-6)
    (block,) = model.served().blocks
    assert block.items is not None
    assert np.allclose(expected[0], block.items[[3, 0, 11]].sum(0) / 3**0.5, rtol=1e-6)
    user = planted.train.users[5]
    best = {row.bundle_id: row.score for row in recommender.recommend([user], k=1000)}
    assert best["new"] == pytest.approx(float(model.served().users[5] @ expected[0]), rel=1e-5)
    assert [row.rank for row in recommender.audience("new", k=4)] == [1, 2, 3, 4]


def test_new_candidates_are_the_cold_and_the_added(recommender: Recommender, planted: Split) -> None:
    recommender.add_bundles({"added": [planted.train.items[0]]})
    found = recommender.recommend([planted.train.users[0]], k=1000, candidates="new")
    cold = {planted.train.bundles[int(n)] for n in np.flatnonzero(planted.cold_bundles)}
    assert {row.bundle_id for row in found} == cold | {"added"}


def test_unknown_items_are_reported_and_left_out(recommender: Recommender, planted: Split) -> None:
    item = planted.train.items[0]
    added = recommender.add_bundles({"a": [item, "moon"], "b": [item]})
    assert added.unknown_items == {"a": ["moon"]}
    vectors = recommender.vectors()["bundle"][1]
    assert np.array_equal(vectors[-1], vectors[-2])


def test_refused_bundles_leave_everything_as_it_was(recommender: Recommender, planted: Split) -> None:
    item, known = planted.train.items[0], planted.train.bundles[0]
    before = len(recommender.bundle_ids)
    for bundles, error, says in (
        ({"fine": [item], "hollow": []}, UnknownIdError, "hollow"),
        ({"fine": [item], known: [item]}, DataError, f"{known}.*taken already"),
        ({"fine": [item], "": [item]}, DataError, "empty"),
        ({"fine": [item], "text": item}, ConfigError, "'text': give a list of item ids, not a single string"),
    ):
        with pytest.raises(error, match=says):
            recommender.check_bundles(bundles)
        with pytest.raises(error, match=says):
            recommender.add_bundles(bundles)
    assert len(recommender.bundle_ids) == len(recommender.vectors()["bundle"][1]) == before
    recommender.add_bundles({"fine": [item]})
    with pytest.raises(DataError, match="taken already"):
        recommender.add_bundles({"fine": [item]})


def test_unknown_ids_come_with_a_suggestion(recommender: Recommender) -> None:
    with pytest.raises(UnknownIdError, match=r"unknown user id 'user-2-111'; did you mean 'user-2-11'\?"):
        recommender.explain("user-2-111", "bundle-0-0")
    with pytest.raises(UnknownIdError, match="unknown user id '🧺'; the model knows 48 users"):
        recommender.explain("🧺", "bundle-0-0")
    with pytest.raises(UnknownIdError, match=r"unknown bundle id 'x{100}'\.\.\. \(5000 characters\)"):
        recommender.audience("x" * 5000)
    with pytest.raises(UnknownIdError, match="bundle"):
        recommender.audience("nothing")


def test_bad_questions(recommender: Recommender) -> None:
    with pytest.raises(ConfigError, match="k = 0"):
        recommender.recommend(["user-2-11"], k=0)
    with pytest.raises(ConfigError, match="'all', 'new', or a list"):
        recommender.recommend(["user-2-11"], candidates="cold")
    with pytest.raises(ConfigError, match="takes a list"):
        recommender.recommend("user-2-11")
    for nonsense in (0, -1, True, 1.5):
        with pytest.raises(ConfigError, match="choose k from 1 up"):
            recommender.audience("bundle-0-0", k=nonsense)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="users is an empty list"):
        recommender.recommend([])
    with pytest.raises(ConfigError, match="users names 'user-2-11' twice"):
        recommender.recommend(["user-2-11", "user-0-0", "user-2-11"])
    with pytest.raises(ConfigError, match="candidates is an empty list"):
        recommender.recommend(["user-2-11"], candidates=[])
    with pytest.raises(ConfigError, match="exclude takes a list"):
        recommender.recommend(["user-2-11"], exclude="bundle-0-0")
    with pytest.raises(ConfigError, match="name a bundle, or give the items"):
        recommender.audience()
    with pytest.raises(DataError, match="a user id is empty"):
        recommender.record("", "bundle-0-0")
    with pytest.raises(DataError, match="a user id must be a string, not 7"):
        recommender.record(7, "bundle-0-0")  # type: ignore[arg-type]


def test_fewer_than_k_is_said(recommender: Recommender) -> None:
    found = recommender.recommend(["user-2-11", "user-0-0"], k=2, candidates=["bundle-0-0"])
    assert len(found.rows) == len(found)
    assert found.short == {user: sum(row.user_id == user for row in found) for user in found.sources}
    assert all("instead of 2" in sentence for sentence in found.notes)
    assert len(found.notes) == 2
    full = recommender.recommend(["user-2-11"], k=2)
    assert (full.short, full.notes, full.sources) == ({}, [], {"user-2-11": "model"})


def test_a_model_that_cannot_use_what_a_known_user_gives_says_so(recommender: Recommender) -> None:
    found = recommender.recommend(["user-2-11"], k=2, items={"user-2-11": ["item-0-0"]})
    assert found == recommender.recommend(["user-2-11"], k=2)
    assert any("fixed by training, so what was given is not used" in note for note in found.notes)


def test_excluded_bundles_stay_away(recommender: Recommender) -> None:
    first = recommender.recommend(["user-2-11"], k=3)
    left = recommender.recommend(["user-2-11"], k=2, exclude=[first[0].bundle_id])
    assert [row.bundle_id for row in left] == [row.bundle_id for row in first[1:]]


def test_an_unknown_user_gets_popular_and_new_bundles(recommender: Recommender, planted: Split) -> None:
    recommender.add_bundles({"a": ["item-0-0"], "b": ["item-0-0"]})
    found = recommender.recommend(["nobody", "user-0-0"], k=6)
    assert found.sources == {"nobody": "popular-and-new", "user-0-0": "model"}
    assert any("'nobody'" in sentence and "popular and new" in sentence for sentence in found.notes)
    mine = found[:6]
    counts = planted.train.popularity
    by_count = sorted(range(len(counts)), key=lambda row: (-counts[row], row))
    popular = [planted.train.bundles[row] for row in by_count[:3]]
    assert [row.bundle_id for row in mine[::2]] == popular
    assert [row.bundle_id for row in mine[1:4:2]] == ["b", "a"]
    assert [row.score for row in mine] == pytest.approx([1 / rank for rank in range(1, 7)])
    only_new = recommender.recommend(["nobody"], k=2, candidates="new")
    assert [row.bundle_id for row in only_new] == ["b", "a"]


def test_similar_bundles_are_those_of_brute_force(recommender: Recommender) -> None:
    recommender.add_bundles({"twin": recommender.bundle("bundle-0-0").item_ids})
    ids, vectors = recommender.vectors()["bundle"]
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = unit @ unit[ids.index("twin")]
    expected = [ids[row] for row in np.argsort(-cosines, kind="stable") if ids[row] != "twin"][:5]
    found = recommender.similar_bundles("twin", k=5)
    assert [row.bundle_id for row in found] == expected
    assert [row.similarity for row in found] == pytest.approx([cosines[ids.index(b)] for b in expected])
    for row in found:
        both = set(recommender.bundle("twin").item_ids) & set(recommender.bundle(row.bundle_id).item_ids)
        assert set(row.shared_items) == both
    preview = recommender.similar_bundles(items=recommender.bundle("twin").item_ids, k=1)
    assert preview[0].bundle_id == "twin"


def test_a_bundle_can_be_tried_before_it_is_added(recommender: Recommender) -> None:
    items = ["item-0-0", "item-0-1"]
    tried = recommender.audience(k=5, items=[*items, "moon"])
    assert any("'moon'" in sentence for sentence in tried.notes)
    recommender.add_bundles({"new": items})
    added = recommender.audience("new", k=5)
    assert [(row.user_id, row.score) for row in tried] == [(row.user_id, row.score) for row in added]


def test_wild_ids_go_through(recommender: Recommender) -> None:
    wild = ["/ ? % # space", "\"quotes'", "🧺", "x" * 1000, "[red]", "\n", "new", "all"]
    recommender.add_bundles({name: ["item-0-0"] for name in wild})
    assert {row.bundle_id for row in recommender.recommend(["user-0-0"], k=8, candidates=wild)} == set(wild)
    for name in wild:
        assert recommender.record(name, name).counted
        assert recommender.user(name).recorded_ids == [name]
        assert recommender.audience(name, k=1)[0].bundle_id == name
    recommender.remove_bundles(wild)
    assert not set(wild) & set(recommender.bundle_ids)


def served(name: str, planted: Split, directory: Path) -> tuple[Model, Recommender]:
    model = MODELS[name](planted.train, MODELS[name].Config.create({}), Randomness(0))
    save(directory, model.eval(), name)
    return model, Recommender.load(directory)


def test_a_model_without_vectors_is_asked_for_its_own_scores(planted: Split, tmp_path: Path) -> None:
    data = planted.train
    model, recommender = served("dam", planted, tmp_path / "model")
    ranked, _ = top_bundles(model.served(), np.arange(data.n_users), data.user_bundle, 7)
    found = recommender.recommend(list(data.users.ids), k=7)
    assert [row.bundle_id for row in found] == [data.bundles[int(bundle)] for row in ranked for bundle in row]
    scores = model.served().scores(np.arange(data.n_users))
    some = recommender.recommend([data.users[3]], k=5, candidates=[data.bundles[n] for n in (9, 2, 5)])
    assert {row.bundle_id: row.score for row in some} == {
        data.bundles[n]: scores[3, n] for n in (2, 5, 9) if not data.user_bundle[3, n]
    }
    for bundle in (0, 7):
        allowed = data.user_bundle[:, [bundle]].toarray()[:, 0] == 0
        best = [data.users[user] for user in brute_force(scores[:, bundle], allowed, 6)]
        assert [row.user_id for row in recommender.audience(data.bundles[bundle], k=6)] == best
    assert recommender.recommend(["guest"], k=3, items={"guest": ["item-0-0"]}).sources == {
        "guest": "popular-and-new"
    }
    first = found[0].bundle_id
    assert recommender.record(data.users[0], first).counted
    assert first not in {row.bundle_id for row in recommender.recommend([data.users[0]], k=7)}
    recommender.remove_bundles([found[1].bundle_id])
    assert found[1].bundle_id not in {row.bundle_id for row in recommender.recommend([data.users[0]], k=24)}


def test_what_a_model_cannot_do_it_says(planted: Split, tmp_path: Path) -> None:
    items = [planted.train.items[0]]
    _, dam = served("dam", planted, tmp_path / "dam")
    user, bundle = planted.train.users[0], planted.train.bundles[0]
    for ask, reason in (
        (lambda: dam.add_bundles({"a": items}), "not trained with"),
        (lambda: dam.replace_bundles({bundle: items}), "not trained with"),
        (lambda: dam.audience(items=items), "not trained with"),
        (lambda: dam.similar_bundles(bundle), "nothing to compare"),
        (lambda: dam.explain(user, bundle), "cannot be taken apart"),
        (dam.vectors, "none to export"),
        (lambda: export(dam, tmp_path / "out"), "none to export"),
    ):
        with pytest.raises(ConfigError, match=f"in a way of its own, without vectors.*{reason}"):
            ask()
    assert not (tmp_path / "out").exists()
    _, mfbpr = served("mfbpr", planted, tmp_path / "mfbpr")
    for refused in (lambda: mfbpr.add_bundles({"a": items}), lambda: mfbpr.audience(items=items)):
        with pytest.raises(ConfigError, match="has no rule for bundles"):
            refused()
    assert mfbpr.recommend([user], k=3) != []
    assert len(mfbpr.similar_bundles(bundle, k=3)) == 3
    scores = {row.bundle_id: row.score for row in mfbpr.recommend([user], 99, exclude_seen=False)}
    assert mfbpr.explain(user, bundle).score == pytest.approx(scores[bundle], abs=1e-6)


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="neither a run nor an artifact"):
        Recommender.load(tmp_path)
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(ArtifactError, match=r"not finished.*--resume"):
        Recommender.load(tmp_path)
    with pytest.raises(ArtifactError, match="no artifact here"):
        Recommender.load(tmp_path / "run.json")

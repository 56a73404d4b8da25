"""What every model promises, as checks that run over the whole table `MODELS`, and over yours.

Each check takes a model's class and a small world with a known answer (`planted_world`), and raises an
AssertionError that says what is broken. A model that cannot keep a promise by its nature says so, with the
reason, in `contract_exceptions`; the check then has to fail, so that no exception outlives its reason.

    import pytest
    from coheat.contract import CHECKS, run_check

    @pytest.mark.parametrize("check", CHECKS)
    def test_my_model(check, tmp_path):
        run_check(check, MyModel, tmp_path)
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from coheat.artifact import Description, load_artifact, save_artifact
from coheat.checkpoint import model_state
from coheat.config import Settings
from coheat.data.dataset import relation
from coheat.data.split import Split
from coheat.data.synthetic import planted_world
from coheat.errors import ConfigError
from coheat.evaluation import top_bundles
from coheat.evaluation.ranking import Mask
from coheat.models import MODELS
from coheat.models.base import FloatArray, Model, Progress
from coheat.recommender import Recommender
from coheat.rng import Randomness
from coheat.runs import contents_of, outcome_of
from coheat.training import FitResult, TrainingSettings, fit, pretrain

# Settings that let any model learn a small world in seconds; a model without such a field ignores it.
SMALL_WORLD_SETTINGS: dict[str, Any] = {
    "embedding_size": 16,
    "learning_rate": 0.02,
    "backbone_learning_rate": 0.02,
    "backbone_batch_size": 64,
    "backbone_weight_decay": 0.05,
    "backbone_epochs": 40,
}
# Lists of 20 out of 24 bundles find nearly everything from the start; where in the list is what still tells.
TRAINING = TrainingSettings(epochs=40, batch_size=64, evaluate_every=5, selection="ndcg")


def small_config(model: type[Model], **settings: Any) -> Settings:
    """The model's config for small worlds: its defaults, its own `contract_settings`, and `settings`."""
    fields = model.Config.model_fields
    values = {key: value for key, value in SMALL_WORLD_SETTINGS.items() if key in fields}
    return model.Config.create({**values, **model.contract_settings, **settings})


def build(model: type[Model], split: Split, seed: int = 0) -> Model:
    """A new model with small settings and, where it needs one, the backbone it starts from."""
    instance = model(split.train, small_config(model), Randomness(seed))
    pretrain(instance, cache=None)
    return instance


def train(model: type[Model], split: Split) -> tuple[Model, FitResult]:
    instance = build(model, split)
    return instance, fit(instance, split, TRAINING)


class Trained(NamedTuple):
    """A model that has learned the planted world; for all checks that only look at it."""

    split: Split
    model: Model
    result: FitResult


def trained(model: type[Model]) -> Trained:
    of_class: Any = model  # the class can be hashed, though type checkers look at that of its instances
    return _trained(of_class)


@lru_cache(maxsize=1)
def _trained(model: type[Model]) -> Trained:
    split = planted_world()
    return Trained(split, *train(model, split))


def all_scores(model: Model) -> FloatArray:
    model.eval()
    return model.served().scores(np.arange(model.data.n_users))


def loss_terms_are_finite(model: type[Model], directory: Path) -> None:
    instance = build(model, planted_world())
    instance.begin_epoch(Progress(1, 10))
    for batch in instance.batches(32):
        for name, term in instance.loss(batch).items():
            assert term.ndim == 0, f"loss term {name!r} must be a single number"
            assert torch.isfinite(term), f"loss term {name!r} is {term.item()}"


def every_parameter_learns(model: type[Model], directory: Path) -> None:
    """After a few steps every parameter that is not declared frozen has moved."""
    instance = build(model, planted_world())
    before = {name: p.detach().clone() for name, p in instance.named_parameters() if p.requires_grad}
    optimizers = instance.optimizers()
    for epoch in (1, 2):
        instance.begin_epoch(Progress(epoch, 2))
        for batch in instance.batches(32):
            instance.step(batch, optimizers)
    for name, parameter in instance.named_parameters():
        if parameter.requires_grad:
            assert not torch.equal(parameter.detach(), before[name]), f"parameter {name!r} never moves"


def loss_falls(model: type[Model], directory: Path) -> None:
    """The mean ranking loss of the last epochs is below that of the first ones.

    Schedules may change other terms, so a model names the term that must fall: its first.
    """
    result = trained(model).result
    terms = [next(iter(record["terms"].values())) for record in result.history if record["terms"]]
    if terms:
        assert np.mean(terms[-3:]) < np.mean(terms[:3]), f"the loss went from {terms[0]} to {terms[-1]}"


def planted_answer_is_ranked_first(model: type[Model], directory: Path) -> None:
    """Warm bundles that a user held out stand before the bundles of other groups."""
    split, instance, _ = trained(model)
    warm = split.train.popularity > 0
    found = _recall(instance, split, warm)
    assert found > 0.9, f"recall of planted warm bundles is {found:.2f}"


def planted_cold_answer_is_ranked_first(model: type[Model], directory: Path) -> None:
    """Bundles that nobody took in training are found too, by a model that claims to place them."""
    split, instance, _ = trained(model)
    cold = split.train.popularity == 0
    found = _recall(instance, split, cold)
    if model.places_cold_bundles:
        assert found > 0.9, f"recall of planted cold bundles is {found:.2f}"
    else:
        assert found < 0.9, "it places cold bundles after all; say so with places_cold_bundles = True"


def _recall(model: Model, split: Split, wanted: Mask) -> float:
    """Recall of the wanted bundles when only they are ranked, with lists as long as a group has them."""
    held_out = (split.validation + split.test).tocsr()
    rows, columns = held_out.nonzero()
    keep = wanted[columns]
    relevant = relation(rows[keep], columns[keep], held_out.shape)
    scores = all_scores(model)
    scores[:, ~wanted] = -np.inf
    train_rows, train_columns = split.train.user_bundle.nonzero()
    scores[train_rows, train_columns] = -np.inf
    hits = total = 0
    for user in range(split.train.n_users):
        own = set(relevant.indices[relevant.indptr[user] : relevant.indptr[user + 1]].tolist())
        top = np.argsort(-scores[user], kind="stable")[: len(own)]
        hits, total = hits + len(own & set(top.tolist())), total + len(own)
    return hits / total


def scores_are_finite(model: type[Model], directory: Path) -> None:
    split = planted_world()
    instance = build(model, split)
    instance.begin_epoch(Progress(1, 10))
    scores = all_scores(instance)
    assert scores.shape == (split.train.n_users, split.train.n_bundles)
    assert scores.dtype == np.float32
    assert np.isfinite(scores).all(), "some bundle has a score that is not finite"


def one_user_equals_the_same_user_in_a_batch(model: type[Model], directory: Path) -> None:
    instance = trained(model).model
    scorer, everyone = instance.served(), all_scores(instance)
    for user in (0, 7):
        alone = scorer.scores(np.array([user]))
        assert np.allclose(alone[0], everyone[user], atol=1e-5), "a score depends on who else is asked for"


def same_seed_same_scores(model: type[Model], directory: Path) -> None:
    again, _ = train(model, planted_world())
    assert np.array_equal(all_scores(trained(model).model), all_scores(again)), (
        "two runs with the same seed differ"
    )


def held_out_edges_cannot_influence_scores(model: type[Model], directory: Path) -> None:
    """With the epoch fixed, other validation and test interactions change nothing."""
    split = planted_world()
    swapped = Split(split.train, split.test, split.validation, split.scenario, split.seed)
    once = TrainingSettings(epochs=3, batch_size=64, evaluate_every=3)
    scores = []
    for parts in (split, swapped):
        instance = build(model, parts)
        fit(instance, parts, once)
        scores.append(all_scores(instance))
    assert np.array_equal(scores[0], scores[1]), "held-out interactions leak into the scores"


def saved(model: type[Model], directory: Path) -> Model:
    """A trained model whose artifact is in `directory`."""
    name = next((name for name, known in MODELS.items() if known is model), None)
    assert name is not None, "the model is not in MODELS"
    _, instance, result = trained(model)
    description = Description(
        model=name,
        config=instance.config.model_dump(mode="json"),
        training=TRAINING.model_dump(mode="json"),
        seed=0,
        scenario="planted",
        data_source="planted",
        data_fingerprint=instance.data.fingerprint,
        **outcome_of(result),
    )
    instance.eval()
    save_artifact(directory, contents_of(instance, description), model_state(instance))
    return instance


def saved_and_loaded_scores_are_equal(model: type[Model], directory: Path) -> None:
    """Both what is served and the model itself, for training on."""
    instance = saved(model, directory / "model")
    found, users = load_artifact(directory / "model"), np.arange(instance.data.n_users)
    for loaded in (found.served().scores(users), all_scores(found.model())):
        assert np.allclose(loaded, all_scores(instance), atol=1e-6), "loading changed the scores"


def served_equals_evaluated(model: type[Model], directory: Path) -> None:
    """The lists of the saved and loaded model are the lists that evaluation judges, but for equal scores."""
    instance = saved(model, directory / "model")
    data, k = instance.data, 8
    judged, scores = top_bundles(instance.served(), np.arange(data.n_users), data.user_bundle, k)
    recommender, whole = Recommender.load(directory / "model"), all_scores(instance)
    for row in recommender.recommend(list(data.users.ids), k=k):
        user, bundle = data.users.position(row.user_id), data.bundles.position(row.bundle_id)
        assert abs(row.score - scores[user, row.rank - 1]) < 1e-4, "a served score is not the judged one"
        as_good = whole[user, judged[user, row.rank - 1]] - whole[user, bundle] < 1e-4
        assert as_good, "a served list is not the judged one"


def explanation_adds_up(model: type[Model], directory: Path) -> None:
    """The terms of an explanation add up to the score, and so does what the user has; or it is refused."""
    instance = saved(model, directory / "model")
    recommender, scores = Recommender.load(directory / "model"), all_scores(instance)
    data = instance.data
    if instance.served().refusal is not None:
        refuses(lambda: recommender.explain(data.users[0], data.bundles[0]))
        return
    for user, bundle in ((0, 0), (7, 3), (11, data.n_bundles - 1)):
        found = recommender.explain(data.users[user], data.bundles[bundle])
        parts = [part.share for part in found.user_items] + [part.share for part in found.user_bundles]
        for total in (
            found.score,
            sum(term.share for term in found.terms),
            found.history + found.items + found.youth,
            sum(parts) + found.own,
        ):
            assert abs(total - scores[user, bundle]) < 1e-4, "an explanation does not add up to the score"


def placed_like_a_cold_bundle(model: type[Model], directory: Path) -> None:
    """A bundle placed from its items scores as the same bundle did in training without interactions; a model
    that cannot place bundles says so."""
    instance = saved(model, directory / "model")
    recommender, data = Recommender.load(directory / "model"), instance.data
    cold = int(np.flatnonzero(data.popularity == 0)[0])
    twin = {"twin": recommender.bundle(data.bundles[cold]).item_ids}
    if instance.served().cannot_place:
        refuses(lambda: recommender.add_bundles(twin))
        return
    recommender.add_bundles(twin)
    placed = {row.user_id: row.score for row in recommender.audience("twin", data.n_users)}
    assert np.isfinite(list(placed.values())).all(), "a placed bundle has a score that is not finite"
    if model.places_cold_bundles:
        expected = all_scores(instance)[:, cold]
        found = np.array([placed[name] for name in data.users.ids])
        assert np.allclose(found, expected, atol=1e-4), "a placed bundle scores unlike the same cold one"


def refuses(question: Callable[[], object]) -> None:
    try:
        question()
    except ConfigError:
        return
    raise AssertionError("what the model cannot do is answered instead of refused")


def resumed_equals_uninterrupted(model: type[Model], directory: Path) -> None:
    """Training cut short by an exception after some epochs and resumed gives the same numbers."""
    split = planted_world()
    settings = TrainingSettings(epochs=6, batch_size=64, evaluate_every=2, checkpoint_every=2)
    whole = build(model, split)
    expected = fit(whole, split, settings, directory / "whole")

    class PowerCut(Exception):
        pass

    cut = build(model, split)
    begin_epoch = cut.begin_epoch

    def begin_or_fail(progress: Progress) -> None:
        if progress.epoch == 4:
            raise PowerCut
        begin_epoch(progress)

    cut.begin_epoch = begin_or_fail  # type: ignore[method-assign]
    with suppress(PowerCut):
        fit(cut, split, settings, directory / "cut")
    again = build(model, split)
    resumed = fit(again, split, settings, directory / "cut", resume=True)
    numbers = [
        [(r["epoch"], r["terms"], r.get("validation")) for r in f.history] for f in (expected, resumed)
    ]
    assert numbers[0] == numbers[1], "a resumed run has another history"
    assert np.array_equal(all_scores(whole), all_scores(again)), "a resumed run has other scores"


def unknown_setting_is_rejected(model: type[Model], directory: Path) -> None:
    try:
        model.Config.create({"no_such_setting": 1})
    except ConfigError as error:
        if "no_such_setting" in str(error):
            return
        raise AssertionError(f"the error does not name the unknown setting: {error}") from None
    raise AssertionError("an unknown setting was accepted")


def data_is_unchanged(model: type[Model], directory: Path) -> None:
    split, twin = trained(model).split, planted_world()
    assert split.train.fingerprint == twin.train.fingerprint, "training changed the data"
    for mine, other in ((split.validation, twin.validation), (split.test, twin.test)):
        assert (mine - other).count_nonzero() == 0, "training changed the held-out interactions"


Check = Callable[[type[Model], Path], None]
CHECKS: dict[str, Check] = {
    check.__name__: check
    for check in (
        loss_terms_are_finite,
        every_parameter_learns,
        loss_falls,
        planted_answer_is_ranked_first,
        planted_cold_answer_is_ranked_first,
        scores_are_finite,
        one_user_equals_the_same_user_in_a_batch,
        same_seed_same_scores,
        held_out_edges_cannot_influence_scores,
        saved_and_loaded_scores_are_equal,
        served_equals_evaluated,
        explanation_adds_up,
        placed_like_a_cold_bundle,
        resumed_equals_uninterrupted,
        unknown_setting_is_rejected,
        data_is_unchanged,
    )
}


def run_check(name: str, model: type[Model], directory: Path) -> None:
    """Run one check; if the model declares an exception to it, the check has to fail."""
    reason = model.contract_exceptions.get(name)
    if reason is None:
        CHECKS[name](model, directory)
        return
    try:
        CHECKS[name](model, directory)
    except AssertionError:
        return
    raise AssertionError(f"the model keeps {name!r} after all; take its exception out ({reason})")

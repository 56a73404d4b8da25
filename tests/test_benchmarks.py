"""The yardstick computes what our implementation computes, and every benchmark runs."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from by_hand import relations
from quick_python import quick

from coheat.data import Split, planted_world, read_split
from coheat.data.sampling import Triples
from coheat.evaluation import evaluate
from coheat.models import MODELS
from coheat.models.base import Progress
from coheat.models.coheat import CoHeat, CoHeatConfig
from coheat.models.crosscbr import CrossCBR, CrossCBRConfig
from coheat.models.two_views import Masks, TwoViewConfig, TwoViewModel
from coheat.presets import resolve_settings
from coheat.rng import Randomness
from coheat.served import Block, Served
from coheat.training import Watcher, fit

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import batch_parts  # noqa: E402
import common  # noqa: E402
import filter_costs  # noqa: E402
import plain  # noqa: E402
import scaling  # noqa: E402
import service_common  # noqa: E402
import settings_grid  # noqa: E402
import ten_times  # noqa: E402
import time_to_quality  # noqa: E402
import training_speed  # noqa: E402


@pytest.fixture(scope="module")
def split() -> Split:
    return planted_world(n_groups=3, users_per_group=20, items_per_group=9, bundles_per_group=8, seed=3)


@pytest.fixture(scope="module")
def tiny_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny") / "world"
    common.write_world(directory, "youshu", 0.02)
    return directory


def both_models(split: Split, n_layers: int, name: str = "coheat") -> tuple[TwoViewModel, plain.PlainCoHeat]:
    """Our model and the plain one with the same parameters, at the same epoch."""
    kinds: dict[str, tuple[type[TwoViewModel], type[TwoViewConfig]]] = {
        "coheat": (CoHeat, CoHeatConfig),
        "crosscbr": (CrossCBR, CrossCBRConfig),
    }
    kind, settings = kinds[name]
    config = settings(n_layers=n_layers, embedding_size=16, user_item_dropout=0.3)
    ours = kind(split.train, config, Randomness(1))
    ours.begin_epoch(Progress(20, 100))
    other = plain.MODELS[name](split.train, plain.PlainSettings.of(config))
    other.begin_epoch(20, 100)
    with torch.no_grad():
        for name in ("users", "bundles", "items"):
            getattr(other, name).copy_(getattr(ours, name))
    return ours, other


def plain_graphs(split: Split, masks: Masks) -> plain.Graphs:
    """The plain version's graphs when just the edges of `masks` stay."""

    def kept(relation: Any, mask: Any) -> Any:
        return sp.csr_matrix((relation.data * mask, relation.indices, relation.indptr), relation.shape)

    def adjacency(relation: Any, to_left: Any, to_right: Any) -> Any:
        upper, lower = kept(relation, to_left), kept(relation.T.tocsr(), to_right)
        return sp.bmat([[None, upper], [lower, None]], format="csr")

    train = split.train
    history = adjacency(train.user_bundle, masks.history_users, masks.history_bundles)
    affiliation = adjacency(train.user_item, masks.affiliation_users, masks.affiliation_items)
    return (
        plain.to_tensor(plain.normalised(history)),
        plain.to_tensor(plain.normalised(affiliation)),
        plain.to_tensor(plain.averaging(kept(train.bundle_item, masks.pooling))),
    )


@pytest.mark.parametrize(("name", "n_layers"), [("coheat", 1), ("coheat", 2), ("crosscbr", 1)])
def test_plain_loss_and_gradients_are_ours(split: Split, name: str, n_layers: int) -> None:
    ours, other = both_models(split, n_layers, name)
    masks = ours.draw_masks(np.random.default_rng(5))
    assert not masks.history_users.all()
    assert not masks.pooling.all()
    batch: Triples = next(ours.triples(64))
    our_terms = ours.loss(ours.prepare((batch, masks)))
    tensors = [torch.from_numpy(part) for part in (batch.users, batch.positives, batch.negatives)]
    plain_terms = other.loss(tensors, plain_graphs(split, masks))
    for ours_term, plain_term in zip(our_terms.values(), plain_terms, strict=True):
        assert ours_term.item() == pytest.approx(plain_term.item(), abs=1e-5)
    torch.stack(list(our_terms.values())).sum().backward()  # type: ignore[no-untyped-call]
    torch.stack(plain_terms).sum().backward()  # type: ignore[no-untyped-call]
    for name in ("users", "bundles", "items"):
        torch.testing.assert_close(getattr(ours, name).grad, getattr(other, name).grad, atol=1e-5, rtol=1e-3)


def test_plain_scores_are_ours(split: Split) -> None:
    ours, other = both_models(split, 1)
    users = np.arange(split.train.n_users)
    with torch.no_grad():
        score = plain.scoring(other.views(other.graphs(training=False)), other.history_weight())
        np.testing.assert_allclose(score(torch.from_numpy(users)), ours.served().scores(users), atol=1e-5)


def test_dropping_keeps_the_expected_share_of_each_direction() -> None:
    adjacency = plain.square(sp.csr_matrix(np.ones((100, 200), dtype=np.float32)))
    dropped = plain.drop_edges(adjacency, 0.3, np.random.default_rng(0)).toarray()
    upper, lower = dropped[:100, 100:], dropped[100:, :100].T
    assert upper.mean() == pytest.approx(0.7, abs=0.02)
    assert lower.mean() == pytest.approx(0.7, abs=0.02)
    assert (upper * lower).mean() == pytest.approx(0.49, abs=0.02)  # drawn apart from each other
    assert dropped.sum() == dropped[:100, 100:].sum() + dropped[100:, :100].sum()


def test_plain_batches_hold_every_pair_once_and_no_taken_negative(split: Split) -> None:
    user_bundle = split.train.user_bundle.toarray()
    batches = list(plain.training_loader(split.train, batch_size=50))
    users, positives, negatives = (torch.cat(part).numpy() for part in zip(*batches, strict=True))
    n_batches = split.train.user_bundle.nnz // 50
    assert len(users) == n_batches * 50
    assert len(set(zip(users.tolist(), positives.tolist(), strict=True))) == len(users)
    assert user_bundle[users, positives].all()
    assert not user_bundle[users, negatives].any()


def test_plain_training_lowers_the_loss(split: Split) -> None:
    model = plain.PlainCoHeat(split.train, plain.PlainSettings(embedding_size=16, learning_rate=0.02))
    optimizer = plain.adam(model)
    losses = []
    for epoch in range(1, 11):
        model.begin_epoch(epoch, 10)
        for batch in plain.training_loader(split.train, seed=epoch):
            losses.append(plain.train_step(model, optimizer, batch)[0])
    assert losses[-1] < 0.8 * losses[0]


def test_plain_evaluation_is_ours(split: Split) -> None:
    generator = torch.Generator().manual_seed(0)
    users = torch.randn(split.train.n_users, 8, generator=generator)
    bundles = torch.randn(split.train.n_bundles, 8, generator=generator)
    train = split.train
    known = relations(train.user_bundle.toarray(), train.user_item.toarray(), train.bundle_item.toarray())
    served = Served.create(known, [(Block("score", "history", 8), users.numpy(), bundles.numpy())])
    found = evaluate(served, split.train, split.test, ks=(5,)).metrics
    expected = plain.evaluate(
        lambda rows: users[rows] @ bundles.T, split.train.user_bundle, split.test, k=5, block=16
    )
    assert 0 < expected["recall@5"] < 1
    assert expected == pytest.approx({name: found[name] for name in expected}, abs=1e-9)


def test_plain_loading_is_ours(tiny_directory: Path) -> None:
    ours, other = read_split(tiny_directory), plain.load(tiny_directory)
    for name, matrix in {
        "train": ours.train.user_bundle,
        "tune": ours.validation,
        "test": ours.test,
        "user_item": ours.train.user_item,
        "bundle_item": ours.train.bundle_item,
    }.items():
        assert matrix.nnz > 0
        assert abs(other[name] - matrix).nnz == 0


def test_plain_crosscbr_drops_edges_once_an_epoch(split: Split) -> None:
    _, other = both_models(split, 1, "crosscbr")
    first, again = other.graphs(training=True), other.graphs(training=True)
    assert all(torch.equal(a.to_dense(), b.to_dense()) for a, b in zip(first, again, strict=True))
    other.begin_epoch(21, 100)
    assert not torch.equal(first[0].to_dense(), other.graphs(training=True)[0].to_dense())
    assert other.graphs(training=False)[0]._nnz() == 2 * split.train.user_bundle.nnz


def test_a_sample_of_batches_is_scaled_to_the_epoch() -> None:
    steps = []

    def begin() -> Iterator[int]:
        time.sleep(0.05)  # what an epoch needs before its first batch
        return iter(range(10))

    def step(batch: int) -> None:
        steps.append(batch)
        time.sleep(0.01)

    found = training_speed.time_epoch(training_speed.Trainer(10, begin, step), n_timed=4)
    assert steps == [0, 1, 2, 3]
    assert found["batch_seconds"] >= found["fastest_batch_seconds"] >= 0.01
    assert found["epoch_seconds"] - 10 * found["batch_seconds"] >= 0.049


def test_the_exponent_of_growth() -> None:
    worlds = [{"edges": edges, "ours": {"epoch_seconds": edges**1.5}} for edges in (10, 20, 80)]
    assert scaling.exponent(worlds, "ours", "epoch_seconds") == pytest.approx(1.5)


def test_the_grid_moves_one_setting_at_a_time() -> None:
    tried = settings_grid.settings_to_try()
    assert tried.pop("published") == settings_grid.PUBLISHED
    for name, settings in tried.items():
        (changed,) = dict(settings.items() - settings_grid.PUBLISHED.items()).items()
        assert name == f"{changed[0]}={changed[1]:g}"


def test_settings_are_set_beside_the_published_ones_of_their_scenario() -> None:
    def run(recall: float, ndcg: float) -> dict[str, float]:
        return {"epoch": 5, "recall@20": recall, "ndcg@20": ndcg}

    found = {
        "cold": {"published": [run(0.1, 0.1), run(0.3, 0.1)], "other": [run(0.3, 0.15)]},
        "warm": {"other": [run(0.3, 0.1)]},
    }
    rows = [line.split(" | ") for line in settings_grid.tabulate(found).splitlines()[2:]]
    assert [row[-1].rstrip(" |") for row in rows] == ["+0.0%", "+50.0%", ""]
    assert rows[0][1:4] == ["5, 5", "0.2000", "0.1000"]


def start(python: str, *command: str) -> subprocess.CompletedProcess[str]:
    """Have a Python run this on one thread: tiny worlds gain nothing from more, and tests share cores."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [python, *command],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=BENCHMARKS,
    )


def test_peak_memory_counts_what_was_given_back() -> None:
    code = "from common import peak_megabytes as peak; a = peak(); bytearray(b'x') * 2**28; print(peak() - a)"
    assert float(start(sys.executable, "-c", code).stdout) == pytest.approx(256, abs=20)


def run(script: str, *arguments: object, out: Path) -> dict[str, Any]:
    """What a benchmark writes as JSON after one round.

    The processes in which it measures are quick ones too: what their figures are is not looked at here.
    """
    python = quick("python")
    code = f"import runpy, sys; sys.executable = {python!r}; del sys.argv[0]; "
    code += "runpy.run_path(sys.argv[0], run_name='__main__')"
    done = start(python, "-c", code, script, *map(str, arguments), "--rounds", "1", "--json", str(out))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    found: dict[str, Any] = json.loads(out.read_text())
    assert found["machine"]["cores"] >= 1
    return found


def test_training_speed_runs(tiny_directory: Path, tmp_path: Path) -> None:
    found = run("training_speed.py", "--data", tiny_directory, out=tmp_path / "out.json")
    assert found["ours"]["batches_timed"] == found["ours"]["batches_per_epoch"] == 1
    assert found["ratio"] == pytest.approx(found["plain"]["epoch_seconds"] / found["ours"]["epoch_seconds"])
    assert found["ours"]["peak_megabytes"] > 50


def test_time_to_quality_counts_epochs_until_the_published_recipe_is_nearly_reached() -> None:
    published = {"recall": [0.1, 0.199, 0.2], "epochs_besides": 0.5, "seconds_besides": 2.0}
    quick = {"recall": [0.197, 0.25], "epochs_besides": 0.0, "seconds_besides": 0.0}
    timed = {
        "youshu": {"epoch_seconds": 4.0},
        "quick": {"epoch_seconds": 1.0},
        "plain": {"epoch_seconds": 40.0},
    }
    same = time_to_quality.reached([published], [published], timed, "youshu")
    assert same["epochs"] == 2
    assert (same["ours_seconds"], same["plain_seconds"]) == (2.5 * 4 + 2, 2.5 * 40 + 2)
    faster = time_to_quality.reached([published], [quick], timed, "quick")
    assert faster["epochs"] == 2  # within 1% of the published best is not enough with 0.197
    assert faster["ratio"] == pytest.approx((2.5 * 40 + 2) / 2)
    never = time_to_quality.reached([published], [quick, {**quick, "recall": [0.1, 0.1]}], timed, "quick")
    assert never["ratio"] is None
    lines = time_to_quality.rows({"coheat": {"presets": {"quick": never}}})
    assert lines == [["coheat", "quick", "0.1750", "never", "never", "102", "never"]]


def test_time_to_quality_follows_fit(tiny_directory: Path) -> None:
    found = time_to_quality.trained(tiny_directory, "ember", "demo", 0)
    split = read_split(tiny_directory)
    config, settings = resolve_settings("ember", "demo", {})
    model = MODELS["ember"](split.train, config, Randomness(0))
    fit(model, split, settings, watcher=Watcher())
    assert len(found["recall"]) == settings.epochs
    metrics = evaluate(model.served(), split.train, split.validation, (20,)).metrics
    assert found["recall"][-1] == pytest.approx(metrics["recall@20"])
    assert 0 < found["epochs_besides"] < 10  # the preset's ten, of a part of the interactions
    assert found["seconds_besides"] > 0


def test_evaluation_speed_runs_and_agrees(tiny_directory: Path, tmp_path: Path) -> None:
    found = run("evaluation_speed.py", "--data", tiny_directory, out=tmp_path / "out.json")
    assert found["difference"] <= 1e-6
    assert found["ours"]["metrics"]["recall@20"] > 0
    assert found["ratio"] > 0


def test_loading_speed_runs_and_agrees(tiny_directory: Path, tmp_path: Path) -> None:
    found = run("loading_speed.py", "--data", tiny_directory, out=tmp_path / "out.json")
    assert found["ours"]["pairs"] == found["plain"]["pairs"]
    assert found["n_pairs"] == sum(found["plain"]["pairs"].values())


def test_scaling_runs(tmp_path: Path) -> None:
    options = "--base", 0.02, "--factors", 1, 2, "--batches", 1
    found = run("scaling.py", *options, out=tmp_path / "out.json")
    small, large = found["worlds"]
    assert large["edges"] == pytest.approx(2 * small["edges"], rel=0.01)
    assert large["ours"]["epoch_seconds"] > 0

    found = run("scaling.py", "--grow", "contents", *options, out=tmp_path / "contents.json")
    same, richer = found["worlds"]
    assert same["edges"] == small["edges"] < richer["edges"] < large["edges"]
    assert richer["ours"]["batches_per_epoch"] == same["ours"]["batches_per_epoch"]


@pytest.mark.parametrize(
    "script",
    ["training_speed.py", "time_to_quality.py", "evaluation_speed.py", "loading_speed.py", "scaling.py"],
)
def test_help_has_an_example(script: str) -> None:
    done = start(quick("python"), script, "--help")
    assert done.returncode == 0
    assert f"python benchmarks/{script}" in done.stdout


def test_the_parts_of_a_batch_are_timed_one_by_one() -> None:
    chosen = argparse.Namespace(like="youshu", factor=0.02, model="ember", batches=2, set={"batch_size": 128})
    found = batch_parts.measure(chosen)
    assert all(value >= 0 for value in found["milliseconds"].values())
    assert found["rows"] == sum(round(count * 0.02) for count in (8_039, 4_771, 32_770))
    assert 0 < found["edges"] < 10 * found["pairs"]
    lines = batch_parts.table({"1": found, "2": found}).splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["1x", "2x", "last / first"]


def test_every_step_of_ten_times_is_measured_in_a_small_world(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    small = {"embedding_size": 8, "batch_size": 64}
    found: dict[str, dict[str, Any]] = {}
    for factor in (1.0, 2.0):
        chosen = argparse.Namespace(
            like="youshu", base=0.01, factor=factor, batches=2, users=20, set=small, work=tmp_path
        )
        place = tmp_path / f"{factor:g}x"
        place.mkdir()
        for step in ten_times.STEPS:
            if step == "serve" and found.get("1", {}).get(step):  # starting a service takes long
                found[f"{factor:g}"][step] = found["1"][step]
                continue
            meter = ten_times.Meter()
            said = ten_times.STEP[step](place, chosen, meter)
            found.setdefault(f"{factor:g}", {})[step] = {**said, "phases": meter.phases}
    lines = ten_times.table(found).splitlines()
    assert len({line.count("|") for line in lines}) == 1
    for name in ("ember: whole training", "serve: first list", "batch: all users", "prepare"):
        assert any(line.startswith(f"| {name} |") for line in lines), name
    grown = [found[factor]["train ember"]["batches_per_epoch"] for factor in ("1", "2")]
    assert grown[1] >= 2 * grown[0]


def test_filter_costs_asks_for_what_it_says(tmp_path: Path) -> None:
    shop = filter_costs.made_up_shop(replace(service_common.SMALL, n_bundles=4_000), tmp_path / "model")
    times = filter_costs.measure(shop, filter_costs.MADE_UP, 2, 2)
    assert set(times) == {*filter_costs.MADE_UP, filter_costs.FIRST}
    for name, asked in filter_costs.MADE_UP.items():
        if "%" in name:
            said = int(name.partition("(")[2].partition("%")[0]) / 100
            assert shop.lists(**asked).n_candidates / 4_000 == pytest.approx(said, abs=0.02)

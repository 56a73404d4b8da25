"""First vectors that know the data: what goes together is alike, and nothing else is touched."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coheat.contract import small_config
from coheat.data.dataset import BundleData
from coheat.data.synthetic import planted_world
from coheat.models import MODELS
from coheat.models.base import Progress
from coheat.models.spectral import LENGTH, orthonormal
from coheat.models.two_views import TwoViewModel
from coheat.rng import Randomness

TABLES = ("users", "bundles", "items")


def model(name: str, data: BundleData, **settings: object) -> TwoViewModel:
    found = MODELS[name](data, small_config(MODELS[name], **settings), Randomness(5))
    assert isinstance(found, TwoViewModel)
    return found


def test_columns_are_orthonormal_and_span_the_same() -> None:
    x = torch.randn(200, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = orthonormal(x)
    torch.testing.assert_close(found.T @ found, torch.eye(6, dtype=torch.float64))
    torch.testing.assert_close(found @ (found.T @ x), x)
    # Of all such columns these are the closest: what turns x into them is symmetric.
    turn = torch.linalg.lstsq(x, found).solution
    torch.testing.assert_close(turn, turn.T)


def test_columns_that_depend_on_each_other_and_none_at_all_do_no_harm() -> None:
    x = torch.ones(50, 3)
    assert torch.isfinite(orthonormal(x)).all()
    assert not orthonormal(torch.zeros(50, 3)).any()


@pytest.mark.parametrize("name", ["crosscbr", "coheat", "ember"])
def test_before_any_training_users_are_like_what_they_took(name: str) -> None:
    data = planted_world().train
    taken = data.user_bundle.toarray() > 0
    known = data.popularity > 0

    def told(first_vectors: str) -> float:
        """How often a bundle that was taken is more like the user than one that was not."""
        found = model(name, data, first_vectors=first_vectors)
        found.begin_epoch(Progress(1, 5))
        likeness = (found.users @ found.bundles.T).detach().numpy()
        chances = [
            np.mean(row[mine & known][:, None] > row[~mine & known])
            for row, mine in zip(likeness, taken, strict=True)
            if mine.any() and (~mine & known).any()
        ]
        return float(np.mean(chances))

    assert told("random") == pytest.approx(0.5, abs=0.1)
    assert told("spectral") > 0.9


def test_who_and_what_has_no_edges_keeps_its_drawn_vector_and_only_the_first_epoch_puts_any() -> None:
    data = planted_world().train
    drawn, put = (model("crosscbr", data, first_vectors=kind) for kind in ("random", "spectral"))
    put.begin_epoch(Progress(2, 5))
    for table in TABLES:
        torch.testing.assert_close(getattr(put, table), getattr(drawn, table))
    put.begin_epoch(Progress(1, 5))
    cold = data.popularity == 0
    assert cold.any()
    assert torch.equal(put.bundles[cold], drawn.bundles[cold])
    lengths = put.bundles[~cold].norm(dim=1)
    torch.testing.assert_close(lengths, torch.full_like(lengths, LENGTH))


def test_a_warm_start_is_not_thrown_away() -> None:
    found = model("crosscbr", planted_world().train, first_vectors="spectral")
    before = found.users.detach().clone()
    found.is_warm = True
    found.begin_epoch(Progress(1, 5))
    assert torch.equal(found.users, before)

"""One training step of CoHeat, slow and obvious: dense matrices, loops, float64, straight from the equations.

It shares no code with `coheat.models.coheat`. Where the published figures differ from the paper's text it
follows the same options, read from the config.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from coheat.data.dataset import BundleData, Sparse
from coheat.data.sampling import Triples
from coheat.models.coheat import CoHeatConfig
from coheat.models.two_views import Masks, TwoViewConfig


def kept(matrix: Sparse, mask: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> Tensor:
    """The dense 0/1 matrix with the edges that stay; the mask follows the matrix' CSR order."""
    dense = torch.zeros(matrix.shape, dtype=torch.float64)
    edge = 0
    for row in range(matrix.shape[0]):
        for column in matrix.indices[matrix.indptr[row] : matrix.indptr[row + 1]]:
            dense[row, int(column)] = float(mask[edge])
            edge += 1
    return dense


def propagate(edges: Tensor, whole: Tensor, sources: Tensor, degrees: str) -> Tensor:
    """x_t = sum over kept neighbours s of x_s / (sqrt(deg t) sqrt(deg s))."""
    counted = edges if degrees == "after" else whole
    rows = []
    for t in range(edges.shape[0]):
        total = torch.zeros(sources.shape[1], dtype=torch.float64)
        for s in range(edges.shape[1]):
            if edges[t, s]:
                total = total + sources[s] / math.sqrt(counted[t].sum() * counted[:, s].sum())
        rows.append(total)
    return torch.stack(rows)


def unit(x: Tensor) -> Tensor:
    length = x.norm()
    return x / length if length > 0 else x


def convolve(
    left0: Tensor,
    right0: Tensor,
    to_left: Tensor,
    to_right: Tensor,
    whole: Tensor,
    config: TwoViewConfig,
) -> tuple[Tensor, Tensor]:
    left, right, left_sum, right_sum = left0, right0, left0, right0
    for k in range(1, config.n_layers + 1):
        left, right = (
            propagate(to_left, whole, right, config.dropout_degrees),
            propagate(to_right, whole.T, left, config.dropout_degrees),
        )
        if config.normalise_layers:
            left_sum = left_sum + torch.stack([unit(x) for x in left])
            right_sum = right_sum + torch.stack([unit(x) for x in right])
        else:
            left_sum, right_sum = left_sum + left / (k + 1), right_sum + right / (k + 1)
    return left_sum, right_sum


def uniformity(rows: list[Tensor]) -> Tensor:
    terms = [
        torch.exp(-2 * (unit(rows[i]) - unit(rows[j])).square().sum())
        for i in range(len(rows))
        for j in range(i + 1, len(rows))
    ]
    return torch.log(torch.stack(terms).mean())


def alignment(first: list[Tensor], second: list[Tensor]) -> Tensor:
    return torch.stack(
        [(unit(a) - unit(b)).square().sum() for a, b in zip(first, second, strict=True)]
    ).mean()


Views = tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]


def two_views(data: BundleData, config: TwoViewConfig, tables: dict[str, Tensor], masks: Masks) -> Views:
    """Users and bundles in the history view and in the affiliation view, with just these edges."""
    user_bundle, user_item = torch.tensor(data.user_bundle.toarray()), torch.tensor(data.user_item.toarray())
    h_users, h_bundles = convolve(
        tables["users"],
        tables["bundles"],
        kept(data.user_bundle, masks.history_users),
        kept(data.user_bundle.T.tocsr(), masks.history_bundles),
        user_bundle.double(),
        config,
    )
    a_users, a_items = convolve(
        tables.get("item_users", tables["users"]),
        tables["items"],
        kept(data.user_item, masks.affiliation_users),
        kept(data.user_item.T.tocsr(), masks.affiliation_items),
        user_item.double(),
        config,
    )
    affiliations = kept(data.bundle_item, masks.pooling)
    a_bundles = torch.stack(
        [
            torch.stack([a_items[i] for i in range(data.n_items) if row[i]]).mean(0)
            if row.sum()
            else torch.zeros(a_items.shape[1], dtype=torch.float64)
            for row in affiliations
        ]
    )
    return (h_users, h_bundles), (a_users, a_bundles)


def oracle_loss(
    data: BundleData,
    config: CoHeatConfig,
    tables: dict[str, Tensor],
    temperature: float,
    batch: Triples,
    masks: Masks,
) -> dict[str, Tensor]:
    """Loss terms of one batch; `tables` are float64 leaves named users, bundles, items (and item_users)."""
    (h_users, h_bundles), (a_users, a_bundles) = two_views(data, config, tables, masks)

    def score(u: int, b: int) -> Tensor:
        weight = math.tanh(float(data.popularity[b]) / temperature)
        if config.coalescence == "constant":
            weight = 0.5
        return weight * h_users[u] @ h_bundles[b] + (1 - weight) * a_users[u] @ a_bundles[b]

    losses = [
        -torch.log(torch.sigmoid(score(int(u), int(p)) - score(int(u), int(n))))
        for u, p, n in zip(batch.users, batch.positives, batch.negatives, strict=True)
    ]
    terms = {"bpr": torch.stack(losses).mean()}
    if config.contrast_weight:
        hu, au = [h_users[u] for u in batch.users], [a_users[u] for u in batch.users]
        hb, ab = [h_bundles[b] for b in batch.positives], [a_bundles[b] for b in batch.positives]
        if config.average_contrast:
            user_part = alignment(hu, au) + (uniformity(hu) + uniformity(au)) / 2
            bundle_part = alignment(hb, ab) + (uniformity(hb) + uniformity(ab)) / 2
            contrast = (bundle_part + user_part) / 2
        else:
            contrast = alignment(hu, au) + alignment(hb, ab)
            contrast = contrast + uniformity(hu) + uniformity(au) + uniformity(hb) + uniformity(ab)
        terms["contrast"] = config.contrast_weight * contrast
    if config.weight_decay_as == "loss":
        squares = torch.stack([table.square().sum() for table in tables.values()]).sum()
        terms["decay"] = config.weight_decay * torch.sqrt(squares)
    return terms

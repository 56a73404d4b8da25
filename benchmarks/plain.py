"""CoHeat and CrossCBR the way research code is usually written: the yardstick of our claims about speed.

The mathematics are those of `coheat.models` with the published settings; only the manner differs:

- for every batch (of CoHeat; for every epoch of CrossCBR) scipy puts the square adjacency together, drops
  edges, counts degrees anew and normalises it, and the result becomes a torch COO tensor;
- propagation runs over all nodes, whatever the batch needs;
- uniformity takes `torch.pdist` of the whole batch;
- each negative costs one call of a Python function, inside a torch `Dataset`;
- evaluation reads each user's row as a dense vector;
- files are read line by line.

Nothing here is slowed down on purpose: numpy, scipy and torch do the work wherever such code would
let them. `tests/test_benchmarks.py` checks that it computes what our implementation computes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from coheat.config import Settings
from coheat.data.dataset import BundleData

Sparse = Any  # matrices of scipy in every format, as research code has them

Batch = Sequence[Tensor]  # users, positives, negatives: int64, each of the batch's length
Graphs = tuple[Tensor, Tensor, Tensor]  # users-bundles, users-items, bundles to items: normalised, sparse


@dataclass(frozen=True)
class PlainSettings:
    """What the plain version can be told; the names are those of CoHeat's own configuration."""

    embedding_size: int = 64
    n_layers: int = 1
    max_temperature: float = 1e4
    contrast_weight: float = 0.1
    contrast_temperature: float = 0.25
    learning_rate: float = 1e-3
    weight_decay: float = 1e-4
    user_item_dropout: float = 0.5
    user_bundle_dropout: float = 0.5
    bundle_item_dropout: float = 0.5

    @classmethod
    def of(cls, config: Settings) -> PlainSettings:
        """Those settings of one of our models that the plain version has too."""
        known = cls.__dataclass_fields__.keys() & type(config).model_fields.keys()
        return cls(**{name: getattr(config, name) for name in known})


# --- graphs -------------------------------------------------------------------------------------


def square(relation: Sparse) -> Sparse:
    """The adjacency over both kinds of nodes, (m + n, m + n), of a relation (m, n)."""
    return sp.bmat([[None, relation], [relation.T, None]], format="coo")


def drop_edges(matrix: Sparse, dropout: float, rng: np.random.Generator) -> Sparse:
    """Each entry stays with probability 1 - dropout; a square adjacency has one entry per direction."""
    if dropout == 0:
        return matrix.tocsr()
    coo = matrix.tocoo()
    kept = coo.data * (rng.random(coo.nnz) >= dropout)
    return sp.coo_matrix((kept, (coo.row, coo.col)), shape=coo.shape).tocsr()


def inverse_power(degrees: np.ndarray[Any, Any], power: float) -> Sparse:
    """Diagonal of degrees ** -power, with 0 for a degree of 0."""
    values = np.asarray(degrees, dtype=np.float32).ravel()
    inverse = np.zeros_like(values)
    np.power(values, -power, out=inverse, where=values > 0)
    return sp.diags(inverse)


def normalised(adjacency: Sparse) -> Sparse:
    """D^-1/2 A D^-1/2, with the degrees of the rows on the left and of the columns on the right."""
    rows = inverse_power(adjacency.sum(axis=1), 0.5)
    columns = inverse_power(adjacency.sum(axis=0), 0.5)
    return rows @ adjacency @ columns


def averaging(relation: Sparse) -> Sparse:
    """Each row divided by its sum, so that a product with it is a mean."""
    return inverse_power(relation.sum(axis=1), 1.0) @ relation


def to_tensor(matrix: Sparse) -> Tensor:
    coo = matrix.tocoo()
    indices = torch.from_numpy(np.vstack([coo.row, coo.col]).astype(np.int64))
    values = torch.from_numpy(coo.data.astype(np.float32))
    return torch.sparse_coo_tensor(indices, values, torch.Size(coo.shape), check_invariants=False)


# --- model --------------------------------------------------------------------------------------


def alignment(x: Tensor, y: Tensor) -> Tensor:
    return (x - y).pow(2).sum(dim=1).mean()


def uniformity(x: Tensor) -> Tensor:
    return torch.pdist(x).pow(2).mul(-2).exp().mean().log()


@dataclass(frozen=True)
class Views:
    """Users (U, d) and bundles (B, d) in the history view and in the affiliation view."""

    history_users: Tensor
    history_bundles: Tensor
    affiliation_users: Tensor
    affiliation_bundles: Tensor


class PlainCoHeat(nn.Module):
    """CoHeat with three tables: users (shared by both views), bundles and items."""

    def __init__(self, data: BundleData, settings: PlainSettings, seed: int = 0):
        super().__init__()
        self.settings = settings
        self.rng = np.random.default_rng(seed)
        self.temperature = settings.max_temperature
        self.sizes = (data.n_users, data.n_bundles, data.n_items)
        self.popularity = torch.from_numpy(data.popularity).float()
        self.user_bundle = sp.csr_matrix(data.user_bundle)
        self.user_item = sp.csr_matrix(data.user_item)
        self.bundle_item = sp.csr_matrix(data.bundle_item)

        generator = torch.Generator().manual_seed(seed)
        self.users, self.bundles, self.items = (
            nn.Parameter(torch.empty(count, settings.embedding_size)) for count in self.sizes
        )
        for table in (self.users, self.bundles, self.items):
            nn.init.xavier_normal_(table, generator=generator)

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        self.temperature = self.settings.max_temperature ** (epoch / epochs)

    def graphs(self, training: bool) -> Graphs:
        """Normalised graphs of users-bundles, users-items and bundles to items; dropped in training.

        One function from the relations to the graphs, called whenever new ones are wanted: for every batch.
        """
        user_bundle, user_item, bundle_item = (
            square(self.user_bundle),
            square(self.user_item),
            self.bundle_item,
        )
        if training:
            user_bundle = drop_edges(user_bundle, self.settings.user_bundle_dropout, self.rng)
            user_item = drop_edges(user_item, self.settings.user_item_dropout, self.rng)
            bundle_item = drop_edges(bundle_item, self.settings.bundle_item_dropout, self.rng)
        return (
            to_tensor(normalised(user_bundle.tocsr())),
            to_tensor(normalised(user_item.tocsr())),
            to_tensor(averaging(bundle_item)),
        )

    def propagate(self, graph: Tensor, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """Layer 0 plus each layer's row-normalised output, for the nodes of both sides."""
        features = torch.cat([left, right], dim=0)
        layers = [features]
        for _ in range(self.settings.n_layers):
            features = torch.sparse.mm(graph, features)
            layers.append(F.normalize(features, dim=1))
        total = torch.stack(layers, dim=1).sum(dim=1)
        first, second = torch.split(total, [len(left), len(right)])
        return first, second

    def views(self, graphs: Graphs) -> Views:
        user_bundle, user_item, bundle_item = graphs
        history_users, history_bundles = self.propagate(user_bundle, self.users, self.bundles)
        affiliation_users, items = self.propagate(user_item, self.users, self.items)
        return Views(history_users, history_bundles, affiliation_users, torch.sparse.mm(bundle_item, items))

    def history_weight(self) -> Tensor:
        """tanh(popularity / temperature), (B,)."""
        return torch.tanh(self.popularity / self.temperature)

    def weights(self) -> tuple[Tensor, Tensor]:
        """What the history view and the affiliation view of each bundle count in its score, (B,) each."""
        weight = self.history_weight()
        return weight, 1 - weight

    def contrast(self, history: Tensor, affiliation: Tensor) -> Tensor:
        """Alignment of the two views plus the mean of their uniformities; rows (n, d) each."""
        history, affiliation = F.normalize(history, dim=1), F.normalize(affiliation, dim=1)
        return alignment(history, affiliation) + (uniformity(history) + uniformity(affiliation)) / 2

    def loss(self, batch: Batch, graphs: Graphs) -> tuple[Tensor, Tensor]:
        """The ranking loss and the weighted contrast of the two views."""
        users, positives, negatives = batch
        views = self.views(graphs)
        of_history, of_affiliation = self.weights()
        history_users, affiliation_users = views.history_users[users], views.affiliation_users[users]

        def score(bundles: Tensor) -> Tensor:
            history = (history_users * views.history_bundles[bundles]).sum(dim=1)
            affiliation = (affiliation_users * views.affiliation_bundles[bundles]).sum(dim=1)
            return of_history[bundles] * history + of_affiliation[bundles] * affiliation

        ranking = -F.logsigmoid(score(positives) - score(negatives)).mean()
        bundle_part = self.contrast(views.history_bundles[positives], views.affiliation_bundles[positives])
        user_part = self.contrast(history_users, affiliation_users)
        return ranking, self.settings.contrast_weight * (bundle_part + user_part) / 2


class PlainCrossCBR(PlainCoHeat):
    """CrossCBR with the same three tables, and the views of Ember, which learns them in the same way."""

    drawn: Graphs | None = None

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        """Edges are dropped once, for all batches of the epoch."""
        super().begin_epoch(epoch, epochs)
        self.drawn = super().graphs(training=True)

    def graphs(self, training: bool) -> Graphs:
        return self.drawn if training and self.drawn else super().graphs(training)

    def weights(self) -> tuple[Tensor, Tensor]:
        ones = torch.ones_like(self.popularity)
        return ones, ones

    def contrast(self, history: Tensor, affiliation: Tensor) -> Tensor:
        """Which of the batch's rows (n, d) of one view belongs to each row of the other?"""
        history, affiliation = F.normalize(history, dim=1), F.normalize(affiliation, dim=1)
        cosines = affiliation @ history.T
        return F.cross_entropy(cosines / self.settings.contrast_temperature, torch.arange(len(history)))


MODELS: dict[str, type[PlainCoHeat]] = {
    "coheat": PlainCoHeat,
    "crosscbr": PlainCrossCBR,
    "ember": PlainCrossCBR,
}
"""What does the same work in an epoch, by our model's name."""


def scoring(views: Views, weight: Tensor) -> Callable[[Tensor], Tensor]:
    """A function from users (n,) to their scores of all bundles (n, B); `weight` (B,) is the history's."""

    def score(users: Tensor) -> Tensor:
        history = views.history_users[users] @ views.history_bundles.T
        affiliation = views.affiliation_users[users] @ views.affiliation_bundles.T
        return weight * history + (1 - weight) * affiliation

    return score


# --- training -----------------------------------------------------------------------------------


class TrainingPairs(Dataset[tuple[int, int, int]]):
    """One sample per interaction: user, bundle taken, and a bundle the user never took."""

    def __init__(self, user_bundle: Sparse, rng: np.random.Generator):
        self.rng = rng
        self.user_bundle = sp.csr_matrix(user_bundle)
        self.n_bundles = user_bundle.shape[1]
        self.pairs = np.column_stack(user_bundle.nonzero())

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> tuple[int, int, int]:
        user, positive = self.pairs[index]
        start, stop = self.user_bundle.indptr[user : user + 2]
        taken = self.user_bundle.indices[start:stop]
        negative = self.rng.integers(self.n_bundles)
        while negative in taken:
            negative = self.rng.integers(self.n_bundles)
        return int(user), int(positive), int(negative)


def training_loader(data: BundleData, batch_size: int = 2048, seed: int = 0) -> DataLoader[Any]:
    """Shuffled batches; the last incomplete one is dropped."""
    dataset = TrainingPairs(data.user_bundle, np.random.default_rng(seed))
    generator = torch.Generator().manual_seed(seed)
    return DataLoader(
        dataset,
        min(batch_size, len(dataset)),
        shuffle=True,
        drop_last=True,
        num_workers=0,
        generator=generator,
    )


def adam(model: PlainCoHeat) -> torch.optim.Optimizer:
    settings = model.settings
    return torch.optim.Adam(model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)


def train_step(model: PlainCoHeat, optimizer: torch.optim.Optimizer, batch: Batch) -> tuple[float, float]:
    """One step; returns the ranking and the contrast loss."""
    optimizer.zero_grad()
    ranking, contrasted = model.loss(batch, model.graphs(training=True))
    (ranking + contrasted).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return float(ranking.detach()), float(contrasted.detach())


# --- evaluation ---------------------------------------------------------------------------------


class EvaluationRows(Dataset[tuple[int, Tensor, Tensor]]):
    """One sample per user: the user, the bundles to be found and those to be masked, as dense rows."""

    def __init__(self, train: Sparse, held_out: Sparse):
        self.train = sp.csr_matrix(train)
        self.held_out = sp.csr_matrix(held_out)

    def __len__(self) -> int:
        return int(self.train.shape[0])

    def __getitem__(self, user: int) -> tuple[int, Tensor, Tensor]:
        truth = torch.from_numpy(self.held_out[user].toarray()).squeeze(0)
        mask = torch.from_numpy(self.train[user].toarray()).squeeze(0)
        return user, truth, mask


def evaluate(
    score: Callable[[Tensor], Tensor], train: Sparse, held_out: Sparse, k: int = 20, block: int = 2048
) -> dict[str, float]:
    """Recall and nDCG at k over the users with something to find; training bundles are masked."""
    recall_sum, ndcg_sum, n_users = 0.0, 0.0, 0
    discounts = 1 / torch.log2(torch.arange(2, k + 2, dtype=torch.float64))
    ideal = torch.cat([torch.zeros(1, dtype=torch.float64), discounts.cumsum(dim=0)])
    with torch.no_grad():
        for users, truth, mask in DataLoader(EvaluationRows(train, held_out), batch_size=block):
            scores = score(users) - 1e8 * mask
            top = torch.topk(scores, min(k, scores.shape[1]), dim=1).indices
            hits = torch.gather(truth, 1, top).double()
            positives = truth.sum(dim=1)
            has_some = positives > 0
            recall = hits.sum(dim=1) / positives
            gain = (hits * discounts[: hits.shape[1]]).sum(dim=1)
            ndcg = gain / ideal[positives.long().clamp(max=k)]
            recall_sum += float(recall[has_some].sum())
            ndcg_sum += float(ndcg[has_some].sum())
            n_users += int(has_some.sum())
    return {f"recall@{k}": recall_sum / n_users, f"ndcg@{k}": ndcg_sum / n_users}


# --- loading ------------------------------------------------------------------------------------


def read_pairs(path: Path) -> list[list[int]]:
    with path.open() as lines:
        return [[int(part) for part in line.strip().split("\t")] for line in lines]


def read_matrix(path: Path, shape: tuple[int, int]) -> Sparse:
    pairs = np.array(read_pairs(path), dtype=np.int32).reshape(-1, 2)
    values = np.ones(len(pairs), dtype=np.float32)
    return sp.coo_matrix((values, (pairs[:, 0], pairs[:, 1])), shape=shape).tocsr()


def load(directory: Path) -> dict[str, Sparse]:
    """The research text layout as scipy matrices: train, tune, test, user_item, bundle_item."""
    size_file = next(directory.glob("*_data_size.txt"))
    n_users, n_bundles, n_items = read_pairs(size_file)[0]
    matrices = {
        part: read_matrix(directory / f"user_bundle_{part}.txt", (n_users, n_bundles))
        for part in ("train", "tune", "test")
    }
    matrices["user_item"] = read_matrix(directory / "user_item.txt", (n_users, n_items))
    matrices["bundle_item"] = read_matrix(directory / "bundle_item.txt", (n_bundles, n_items))
    return matrices

"""InfoNCE between two views of the same nodes, with the nodes of a batch as anchors.

Shared by the models that contrast a batch with everybody (SGL, LightGCL).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from coheat.data.dataset import Indices
from coheat.graph import kernels
from coheat.losses import Partition, log_partition
from coheat.models.layers import pick

Candidates = Literal["all", "batch"]
Side = tuple[Tensor, Tensor, Indices]
"""Two views (n, d) of all nodes of one kind, and the nodes a batch has, each as often as it has them."""


def contrast(
    sides: list[Side], temperature: float, candidates: Candidates, limit: float = float("inf")
) -> Tensor:
    """Sum over sides of the mean over the batch's nodes v, with views x and y, of

        log(sum over w of exp(<x_v, y_w> / temperature)) - <x_v, y_v> / temperature.

    Candidates w are all nodes, or the distinct ones of the batch. The second part is cut off at +-`limit`.
    """
    partitions: list[Partition] = []
    own_products = []
    for first, second, nodes in sides:
        distinct, _, counts = kernels.distinct(nodes, len(first))
        weights = torch.from_numpy(counts).to(first.device, first.dtype)
        anchors, own = pick(first, distinct), pick(second, distinct)
        pool = second if candidates == "all" else own
        partitions.append((anchors, pool, weights, pool.new_ones(len(pool))))
        products = ((anchors * own).sum(1) / temperature).clamp(-limit, limit)
        own_products.append(products @ weights / weights.sum())
    return log_partition(partitions, temperature).sum() - torch.stack(own_products).sum()

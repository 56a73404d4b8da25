"""What a model is served with, as tensors, for comparing it with the model's own mathematics."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from coheat.data.dataset import Sparse
from coheat.models.base import Model
from coheat.served import Served


@dataclass(frozen=True)
class Vectors:
    """Users (n_users, d) and bundles (n_bundles, d) whose inner products are the scores."""

    users: Tensor
    bundles: Tensor
    served: Served

    def new_bundles(self, bundle_item: Sparse) -> Tensor:
        """Vectors of bundles that were not in training, as they score, from the items in each row."""
        items = [bundle_item[[row]].indices.astype(np.int64) for row in range(bundle_item.shape[0])]
        n = len(self.served.bundles)
        added = self.served.added(self.served.bundles, items)
        return torch.from_numpy(added.weighed.take(np.arange(n, n + len(items))))


def vectors_of(model: Model) -> Vectors:
    served = model.served()
    bundles = served.bundles.weighed.take(np.arange(len(served.bundles)))
    return Vectors(torch.from_numpy(served.users), torch.from_numpy(bundles), served)

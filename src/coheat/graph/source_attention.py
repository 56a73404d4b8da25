"""Attention of one reader, where nothing is learned: the logit of an edge is that of its source."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from coheat.graph import kernels
from coheat.graph.attention import torch_attend
from coheat.graph.bipartite import Propagation, array, by_kernels
from coheat.graph.parallel import run_ranges


def attend_by_source(values: Tensor, logits: Tensor, edges: Propagation) -> Tensor:
    """`attend` with a logit for each source (n_sources,) instead of each edge: one exponential a source."""
    if not by_kernels(values):
        return torch_attend(values, logits[torch.from_numpy(edges.sources).to(values.device)], edges)
    exponentials, weights = torch.exp(logits - logits.max()), np.empty(len(edges.sources), dtype=np.float32)
    arrays = edges.indptr, edges.sources, array(logits), array(exponentials), weights
    run_ranges(kernels.shared_softmax_rows, edges.row_ranges, *arrays)
    return Propagation(edges.indptr, edges.sources, weights, edges.n_sources).gather(array(values))

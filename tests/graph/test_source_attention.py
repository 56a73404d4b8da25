"""Attention by the logits of sources against attention by those of edges."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coheat.graph.attention import torch_attend
from coheat.graph.bipartite import Propagation
from coheat.graph.source_attention import attend_by_source


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["kernels", "torch"])
def test_an_edge_has_the_logit_of_its_source(dtype: torch.dtype) -> None:
    rng = np.random.default_rng(0)
    indptr = np.concatenate([[0], np.cumsum([0, 1, *rng.integers(0, 9, size=30)])])
    sources = rng.integers(0, 20, size=indptr[-1]).astype(np.int32)
    edges = Propagation(indptr, sources, np.ones(len(sources), dtype=np.float32), 20)
    values, logits = (torch.from_numpy(rng.normal(size=shape)).to(dtype) for shape in ((20, 4), (20,)))
    found = attend_by_source(values, logits, edges)
    expected = torch_attend(values, logits[torch.from_numpy(sources)], edges)
    assert torch.allclose(found, expected, atol=1e-5)
    assert not found[0].any()
    assert torch.allclose(found[1], values[int(sources[0])], atol=1e-5)

"""Batches that take work in which no parameter plays a part, such as choosing rows and edges of a graph."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from coheat.graph.prefetch import prefetched
from coheat.graph.propagation import Propagation
from coheat.models.base import Model


class PreparingModel(Model):
    """Base of the models that prepare each batch while the one before it is learned from."""

    def batches(self, batch_size: int) -> Iterable[Any]:
        """This epoch's batches, prepared."""
        return prefetched(self.prepare(batch) for batch in self.drawn(batch_size))

    def drawn(self, batch_size: int) -> Iterable[Any]:
        """This epoch's batches as they are drawn: the usual ones, unless a model says otherwise."""
        return super().batches(batch_size)

    def prepare(self, batch: Any) -> Any:
        """A batch with all that can be done for it ahead of its turn."""
        raise NotImplementedError


def for_gradients(propagation: Propagation) -> Propagation:
    """The same, transposed ahead, since the backward pass will need it."""
    _ = propagation.transposed
    return propagation

"""Models with nothing to learn by gradient: they go through the same training loop with empty epochs."""

from __future__ import annotations

from collections.abc import Iterator

from coheat.data.sampling import Triples
from coheat.models.base import Model


class Untrained(Model):
    """An epoch has no batches; it is there to be validated, like every other model's epoch."""

    learns = False

    def batches(self, batch_size: int) -> Iterator[Triples]:  # noqa: ARG002
        return iter(())

    def n_batches(self, batch_size: int) -> int:  # noqa: ARG002
        return 0

"""One seed in, named generators out; nothing in the project seeds anything globally.

Every random draw belongs to a name ("negatives", "dropout", ...) and, in training, to an epoch. Its
generator is a pure function of seed, name and counters, so a resumed run needs no saved generator
state: it asks for the same names and epochs and gets the same draws.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


class Randomness:
    """A seed from which named, independent generators are made.

    >>> a = Randomness(7).generator("negatives", 3)
    >>> b = Randomness(7).generator("negatives", 3)
    >>> int(a.integers(1000)) == int(b.integers(1000))
    True
    """

    def __init__(self, seed: int):
        if seed < 0:
            raise ValueError(f"a seed is a whole number from 0 up, not {seed}")
        self.seed = seed

    def _sequence(self, name: str, *counters: int) -> np.random.SeedSequence:
        return np.random.SeedSequence([self.seed, zlib.crc32(name.encode()), *counters])

    def generator(self, name: str, *counters: int) -> np.random.Generator:
        """A numpy generator of its own for this name (and, where given, these counters)."""
        return np.random.Generator(np.random.PCG64(self._sequence(name, *counters)))

    def torch_generator(self, name: str, *counters: int) -> torch.Generator:
        """The same idea as a torch generator on the CPU, for drawing initial parameters."""
        import torch  # here, because reading, splitting and serving data do without it

        state = self._sequence(name, *counters).generate_state(1, np.uint64)
        return torch.Generator().manual_seed(int(state[0] >> np.uint64(1)))

    def child(self, name: str) -> Randomness:
        """A Randomness of its own, for a part (say, a backbone) that draws names itself."""
        return Randomness(int(self._sequence(name).generate_state(1)[0]))

"""How sure the figures of a table are: a bootstrap over users, seeds and the splits of seeds.

A draw takes users anew, for all rows of the table the same ones, so that differences are paired; of every row
it takes seeds anew; and where seeds were judged on splits of their own it takes splits anew, again for all
rows the same. With one seed only users vary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coheat.evaluation.intervals import Doubles, holm, interval_of, p_value, resampled_means

SEED = 0
Samples = Mapping[str, Doubles]
"""A metric of every judged user, (n_seeds, n_users), by the fingerprint of the split they were judged on."""


@dataclass
class Resampled:
    """Draws of the means of rows, made once for each split."""

    samples: Mapping[int, Samples]
    _draws: dict[str, dict[int, Doubles]] = field(default_factory=dict)

    def mean(self, row: int, splits: Sequence[str]) -> float:
        return float(np.mean([self.samples[row][split].mean() for split in splits]))

    def draws(self, row: int, splits: Sequence[str]) -> Doubles:
        """(DRAWS,) means of a row over these splits."""
        on_each = np.stack([self._on(split)[row] for split in splits], axis=1)
        chosen = np.random.default_rng([SEED, 1]).integers(len(splits), size=on_each.shape)
        means: Doubles = np.take_along_axis(on_each, chosen, axis=1).mean(axis=1)
        return means

    def _on(self, split: str) -> dict[int, Doubles]:
        if split not in self._draws:
            rows = [row for row, found in self.samples.items() if split in found]
            values = [self.samples[row][split] for row in rows]
            means = resampled_means(np.concatenate(values), np.random.default_rng(SEED))
            ends = np.cumsum([len(one) for one in values])[:-1]
            parts = np.split(means, ends, axis=1)
            self._draws[split] = {row: _seeds_anew(row, part) for row, part in zip(rows, parts, strict=True)}
        return self._draws[split]


def _seeds_anew(row: int, means: Doubles) -> Doubles:
    """(DRAWS,) from (DRAWS, n_seeds): seeds drawn anew, each row's on their own."""
    chosen = np.random.default_rng([SEED, 2, row]).integers(means.shape[1], size=means.shape)
    found: Doubles = np.take_along_axis(means, chosen, axis=1).mean(axis=1)
    return found


def intervals(
    samples: Mapping[int, Samples], rivals: Mapping[int, Sequence[int]]
) -> dict[int, dict[str, Any]]:
    """For each row its interval, and its difference to the best of its `rivals`; p is Holm's over all rows.

    Rivals are those rows of `rivals` that were judged on a split with the row; without any there is no
    difference.
    """
    drawn = Resampled(samples)
    found: dict[int, dict[str, Any]] = {}
    p_values: dict[int, float] = {}
    for row, own in samples.items():
        interval = interval_of(drawn.mean(row, list(own)), drawn.draws(row, list(own)))
        found[row] = {"low": interval.low, "high": interval.high}
        others = {rival: [s for s in own if s in samples[rival]] for rival in rivals[row] if rival in samples}
        others = {rival: splits for rival, splits in others.items() if splits}
        if not others:
            continue
        best = max(others, key=lambda rival: drawn.mean(rival, others[rival]))
        splits = others[best]
        gaps = drawn.draws(row, splits) - drawn.draws(best, splits)
        gap = interval_of(drawn.mean(row, splits) - drawn.mean(best, splits), gaps)
        found[row] |= {"rival": best, "difference": [gap.mean, gap.low, gap.high]}
        p_values[row] = p_value(gaps)
    for row, p in zip(p_values, holm(list(p_values.values())), strict=True):
        found[row]["p"] = p
    return found


def rivals_among(rows: Mapping[int, Mapping[str, Any]]) -> dict[int, list[int]]:
    """With which others each of these measured rows is compared: those of other models; where yardsticks
    aside all rows are of one model (an ablation), all others."""
    methods = {row["model"] for row in rows.values() if row["family"] != "yardstick"}
    return {
        number: [
            other
            for other in rows
            if other != number and (len(methods) < 2 or rows[other]["model"] != row["model"])
        ]
        for number, row in rows.items()
    }


def row_name(row: Mapping[str, Any]) -> str:
    return str(row["name"]) if row["at"] is None else f"{row['name']} at {row['at']:g}"

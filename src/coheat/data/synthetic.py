"""Made-up worlds: small ones whose right answer is known, and realistic ones of any size."""

from __future__ import annotations

import numpy as np

from coheat.data.dataset import BundleData, Indices, Vocabulary, relation
from coheat.data.split import Split
from coheat.rng import Randomness


def planted_world(
    n_groups: int = 4,
    users_per_group: int = 12,
    items_per_group: int = 6,
    bundles_per_group: int = 6,
    cold_per_group: int = 2,
    seed: int = 0,
) -> Split:
    """A small world with a known answer: everybody wants exactly the bundles of their own group.

    Users of a group have two thirds of the group's items, bundles hold half of one group's items, and
    a user's bundles over all three parts are exactly those of the user's group. Per group,
    `cold_per_group` bundles have no training interactions (they are shared out to validation and
    test); of the others each user holds out one. So a perfect model ranks all bundles of the user's
    group first, cold ones included. Ids tell the group: "user-2-11" is user 11 of group 2. Their
    order is shuffled by `seed`, so that a model cannot win by order.
    """
    warm = bundles_per_group - cold_per_group
    if min(n_groups, users_per_group, items_per_group, cold_per_group + 1) < 1 or warm < 2:
        raise ValueError("a planted world needs a group, a user, an item and two warm bundles per group")
    rng = Randomness(seed).generator("planted world")
    sizes = {"user": users_per_group, "bundle": bundles_per_group, "item": items_per_group}
    vocabularies, places = {}, {}
    for kind, size in sizes.items():
        order = rng.permutation(n_groups * size)
        vocabularies[kind] = Vocabulary((f"{kind}-{n // size}-{n % size}" for n in order), kind)
        places[kind] = np.argsort(order).reshape(n_groups, size)

    def ring(rows: int, columns: int, width: int) -> tuple[Indices, Indices]:
        """Row r takes `width` neighbouring columns from r on: all are taken about equally often."""
        taken = (np.arange(rows)[:, None] + np.arange(width)) % columns
        return np.repeat(np.arange(rows), width), taken.ravel()

    def link(one: str, other: str, rows: Indices, columns: Indices) -> tuple[Indices, Indices]:
        """The same links within every group, as positions in the two vocabularies."""
        return places[one][:, rows].ravel(), places[other][:, columns].ravel()

    def shape(one: str, other: str) -> tuple[int, int]:
        return n_groups * sizes[one], n_groups * sizes[other]

    users, items = ring(users_per_group, items_per_group, -(-2 * items_per_group // 3))
    user_item = relation(*link("user", "item", users, items), shape("user", "item"))
    bundles, items = ring(bundles_per_group, items_per_group, -(-items_per_group // 2))
    bundle_item = relation(*link("bundle", "item", bundles, items), shape("bundle", "item"))

    # Bundles 0..warm-1 of a group are warm, the rest cold.
    users, bundles = ring(users_per_group, bundles_per_group, bundles_per_group)
    held_out = bundles == users % warm
    cold = bundles >= warm
    turn = np.where(cold, bundles - warm, users // warm)
    part = np.where(cold | held_out, np.where(turn % 2 == 0, 2, 1), 0)
    train, validation, test = (
        relation(*link("user", "bundle", users[part == p], bundles[part == p]), shape("user", "bundle"))
        for p in range(3)
    )
    data = BundleData(
        vocabularies["user"], vocabularies["bundle"], vocabularies["item"], train, user_item, bundle_item
    )
    return Split(data, validation, test, scenario="planted", seed=seed)

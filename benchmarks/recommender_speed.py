"""Serving from the library: batched lists against faiss-cpu's flat inner-product index, and new bundles.

Both sides get the same random vectors of width 128 (twice 64, as CoHeat has) and the sizes of the published
data, and answer the same users in turns within one process, with the same number of threads. faiss returns
arrays of positions. `recommend` looks up ids and leaves out what each user took; its rows are made when they
are looked at, so the time until each of them was read once, and until all stand in a list, is measured too.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from typing import Any

import numpy as np
from common import parser, write_json
from rich.console import Console
from service_common import tanh_curves

from coheat.artifact import Contents, Description
from coheat.ids import Vocabulary
from coheat.recommender import Recommender
from coheat.served import Block, Csr, Layers, Relations, Served

# Users, bundles, items, mean size of a bundle: Table 1 of the paper.
SIZES = {
    "youshu": (8_039, 4_771, 32_770, 37),
    "netease": (18_528, 22_864, 123_628, 78),
    "ifashion": (53_897, 27_694, 42_563, 4),
}
WIDTH = 64
K = 20
TAKEN = 20


def made_up(n_users: int, n_bundles: int, n_items: int, seed: int = 0) -> Recommender:
    """A two-view recommender of random vectors; every user took TAKEN bundles."""
    rng = np.random.default_rng(seed)

    def vectors(n: int, width: int) -> Any:
        return rng.standard_normal((n, width), dtype=np.float32)

    user_layers, bundle_layers, item_layers = (vectors(n, WIDTH)[None] for n in (n_users, n_bundles, n_items))
    indptr = np.arange(n_users + 1, dtype=np.int64) * TAKEN
    nothing = np.zeros(0, dtype=np.int64)
    relations = Relations(
        Csr(indptr, rng.integers(n_bundles, size=n_users * TAKEN), n_bundles),
        Csr(np.zeros(n_users + 1, dtype=np.int64), nothing, n_items),
        Csr(np.zeros(n_bundles + 1, dtype=np.int64), nothing, n_items),
    )
    rising, falling = tanh_curves(60.0)
    history = Block("history", "history", WIDTH, rising)
    items = Block("affiliation", "items", WIDTH, falling, vectors(n_items, WIDTH))
    served = Served.create(
        relations,
        [(block, vectors(n_users, WIDTH), vectors(n_bundles, WIDTH)) for block in (history, items)],
        layers=Layers(user_layers, bundle_layers, item_layers, normalise=True),
    )
    users = Vocabulary(map(str, range(n_users)), "user")
    bundles = Vocabulary(map(str, range(n_bundles)), "bundle")
    known_items = Vocabulary(map(str, range(n_items)), "item")
    made_up = Description("random", {}, {}, seed, "", "", "", 0, {}, 0.0, "made up")
    return Recommender(Contents(served, users, bundles, known_items, made_up))


def seconds(call: Any) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def measure_lists(recommender: Recommender, n_users: int, rounds: int) -> dict[str, float]:
    """Microseconds per user of both, in turns; and of ours for one user at a time."""
    import faiss

    vectors, bundles = (recommender.vectors()[kind][1] for kind in ("user", "bundle"))
    index = faiss.IndexFlatIP(bundles.shape[1])
    index.add(bundles)
    vectors = np.ascontiguousarray(vectors[:n_users])
    names = list(recommender.user_ids[:n_users])
    recommender.recommend(names[:64], K)
    index.search(vectors[:64], K)
    ours, read, kept, theirs = [], [], [], []
    for _ in range(rounds):
        ours.append(seconds(lambda: recommender.recommend(names, K)))
        theirs.append(seconds(lambda: index.search(vectors, K)))
        read.append(seconds(lambda: deque(recommender.recommend(names, K), maxlen=0)))
        kept.append(seconds(lambda: list(recommender.recommend(names, K))))
    alone = [seconds(lambda name=name: list(recommender.recommend([name], K))) for name in names[:200]]
    similar = [seconds(lambda name=name: recommender.similar_bundles(name, K)) for name in names[:50]]
    return {
        "ours_microseconds": statistics.median(ours) / n_users * 1e6,
        "rows_read_microseconds": statistics.median(read) / n_users * 1e6,
        "rows_kept_microseconds": statistics.median(kept) / n_users * 1e6,
        "faiss_microseconds": statistics.median(theirs) / n_users * 1e6,
        "ratio": statistics.median(theirs) / statistics.median(ours),
        "rows_read_ratio": statistics.median(theirs) / statistics.median(read),
        "rows_kept_ratio": statistics.median(theirs) / statistics.median(kept),
        "one_user_milliseconds": statistics.median(alone) * 1e3,
        "similar_milliseconds": statistics.median(similar) * 1e3,
    }


def measure_adding(recommender: Recommender, n_items: int, size: int, rounds: int) -> dict[str, float]:
    """Milliseconds to add 1,000 bundles at once, to add one, and to record one interaction."""
    rng = np.random.default_rng(1)
    many, one, recorded = [], [], []
    for turn in range(rounds):
        new = {
            f"new-{turn}-{n}": [str(i) for i in rng.choice(n_items, size, replace=False)] for n in range(1000)
        }
        many.append(seconds(lambda new=new: recommender.add_bundles(new)))
        single = {f"single-{turn}": ["0", "1", "2"]}
        one.append(seconds(lambda new=single: recommender.add_bundles(new)))
        recorded.append(seconds(lambda name=f"new-{turn}-0": recommender.record("0", name)))
    return {
        "add_1000_milliseconds": statistics.median(many) * 1e3,
        "add_1000_first_milliseconds": many[0] * 1e3,
        "add_1_milliseconds": statistics.median(one) * 1e3,
        "record_milliseconds": statistics.median(recorded) * 1e3,
    }


def main() -> None:
    example = "python benchmarks/recommender_speed.py --like netease"
    options = parser(__doc__, example, compares=False)
    options.add_argument(
        "--users", type=int, default=2048, metavar="N", help="users per turn (default: 2048)"
    )
    options.add_argument("--scale", type=float, default=1.0, help="all counts times this (default: 1)")
    chosen = options.parse_args()
    n_users, n_bundles, n_items = (max(round(n * chosen.scale), 100) for n in SIZES[chosen.like][:3])
    size = SIZES[chosen.like][3]
    recommender = made_up(n_users, n_bundles, n_items)
    found = {
        **measure_lists(recommender, min(chosen.users, n_users), chosen.rounds),
        **measure_adding(recommender, n_items, min(size, n_items), chosen.rounds),
    }
    console = Console()
    console.print(f"{n_users} users, {n_bundles} bundles, {n_items} items; lists of {K}", highlight=False)
    console.print(
        f"recommend {found['ours_microseconds']:.0f} us per user (each row read "
        f"{found['rows_read_microseconds']:.0f}, all kept {found['rows_kept_microseconds']:.0f} us), "
        f"faiss flat {found['faiss_microseconds']:.0f} us: "
        f"{found['ratio']:.2f}x ({found['rows_read_ratio']:.2f}x, {found['rows_kept_ratio']:.2f}x); "
        "one user alone "
        f"{found['one_user_milliseconds']:.2f} ms, similar bundles {found['similar_milliseconds']:.2f} ms"
    )
    console.print(
        f"add 1,000 bundles of {size} items {found['add_1000_milliseconds']:.0f} ms "
        f"(first time {found['add_1000_first_milliseconds']:.0f} ms), one bundle "
        f"{found['add_1_milliseconds']:.2f} ms, record {found['record_milliseconds']:.2f} ms"
    )
    write_json(chosen.json, "recommender_speed", {"like": chosen.like, **found})


if __name__ == "__main__":
    main()

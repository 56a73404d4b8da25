"""What a filtered list costs beside an unfiltered one: in the library, and over HTTP.

    python benchmarks/filter_costs.py
    python benchmarks/filter_costs.py --run runs/shop --where '{"category": {"in": ["GROCERY"]}}'

Without --run, a random model of 27,694 bundles (as many as iFashion has) with made-up prices, categories and
ends is asked. All kinds of lists take turns within one run; what counts is the fastest of each, since other
work on the machine slows single rounds and never speeds one up. In the library it is the processor's time.
"""

from __future__ import annotations

import argparse
import http.client
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from service_common import IFASHION, Size, serving, write_random_artifact

from coheat.artifact import open_artifact
from coheat.attributes import Attributes, column_of
from coheat.recommender import Recommender

K = 20
PLAIN = "no filter"
FIRST = "a price limit that was never asked for before"
Asked = dict[str, Any]


def made_up_shop(size: Size, place: Path) -> Recommender:
    """Prices from 0 to 100, ten categories, and three of ten bundles that have ended."""
    rng, n_bundles = np.random.default_rng(0), size.n_bundles
    write_random_artifact(place, size)
    about = Attributes(
        {
            "price": column_of((100 * rng.random(n_bundles)).tolist(), "number", "price"),
            "category": column_of([f"c{n}" for n in rng.integers(10, size=n_bundles)], "text", "category"),
            "ends": column_of(np.where(rng.random(n_bundles) < 0.3, 1e9, 4e9).tolist(), "time", "ends"),
        }
    )
    return Recommender(replace(open_artifact(place).contents(), bundle_attributes=about))


MADE_UP: dict[str, Asked] = {
    PLAIN: {"only_on_offer": False},
    "only what is on offer": {},
    "a category and a price (2%)": {"where": {"category": {"is": "c3"}, "price": {"at_most": 30}}},
    "three categories (21%)": {"where": {"category": {"in": ["c1", "c4", "c7"]}}},
    "a price (63%)": {"where": {"price": {"at_most": 90}}},
}


def of_run(where: Asked) -> dict[str, Asked]:
    return {PLAIN: {"only_on_offer": False}, "only what is on offer": {}, "--where": {"where": where}}


def measure(recommender: Recommender, kinds: dict[str, Asked], people: int, rounds: int) -> dict[str, float]:
    """Milliseconds of the processor for lists of so many users, by kind."""
    users = list(recommender.user_ids[:people])
    limits = iter(np.random.default_rng(1).uniform(80, 100, rounds).tolist())
    asked: dict[str, Callable[[], Asked]] = {name: lambda one=one: one for name, one in kinds.items()}  # type: ignore[misc]
    if recommender.bundle_columns.get("price") == "number":
        asked[FIRST] = lambda: {"where": {"price": {"at_most": next(limits)}}}
    least = dict.fromkeys(asked, np.inf)
    for _ in range(rounds):
        for name, question in asked.items():
            options = question()
            started = time.process_time()
            recommender.recommend(users, K, **options)
            least[name] = min(least[name], 1000 * (time.process_time() - started))
    return least


def measure_http(artifact: Path, state: Path, kinds: dict[str, Asked], rounds: int) -> dict[str, float]:
    """Milliseconds until a list is there, by kind, for one user after the other."""
    user = Recommender.load(artifact).user_ids[0]
    least = dict.fromkeys(kinds, np.inf)
    with serving(artifact, "--state", str(state)) as server:
        line = http.client.HTTPConnection("127.0.0.1", server.port)
        for _ in range(rounds):
            for name, options in kinds.items():
                body = json.dumps({"user_id": user, "k": K, **options})
                started = time.perf_counter()
                line.request("POST", "/v1/recommendations", body, {"Content-Type": "application/json"})
                answer = line.getresponse()
                found = answer.read()
                least[name] = min(least[name], 1000 * (time.perf_counter() - started))
                if answer.status != 200:
                    raise SystemExit(f"{name}: {found.decode()}")
    return least


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", type=Path, help="a trained run instead of a random model")
    parser.add_argument("--where", type=json.loads, default={}, help="the filter to ask it with, as JSON")
    parser.add_argument("--bundles", type=int, default=IFASHION.n_bundles, help="of the random model")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        kinds = MADE_UP if given.run is None else of_run(given.where)
        if given.run is None:
            recommender = made_up_shop(replace(IFASHION, n_bundles=given.bundles), place / "random")
        else:
            recommender = Recommender.load(given.run)
        recommender.save(place / "model")
        found = {
            "one user": measure(recommender, kinds, 1, given.rounds),
            "64 users": measure(recommender, kinds, 64, max(given.rounds // 4, 1)),
            "over HTTP": measure_http(place / "model", place / "state", kinds, given.rounds),
        }
    if given.json:
        print(json.dumps(found))
        return
    for title, times in found.items():
        print(title)
        for kind, least in times.items():
            print(f"  {kind:<48}{least:>9.2f} ms{least / times[PLAIN]:>7.2f}x")


if __name__ == "__main__":
    main()

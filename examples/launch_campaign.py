"""Before a bundle is launched: whom would it suit? Writes the best of them to a CSV file, for a mailing.

    python examples/launch_campaign.py recommender "Rainy weekend" tent "rain poncho" "moka pot"

`recommender` is what `Recommender.save` or `coheat train --scenario everything` wrote.
Needs: pip install coheat
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

from coheat import Recommender


def main() -> None:
    parser = argparse.ArgumentParser(description="Whom would a new bundle suit?")
    parser.add_argument("recommender", type=Path)
    parser.add_argument("bundle", help="the name of the new bundle")
    parser.add_argument("items", nargs="+", help="the items that it holds")
    parser.add_argument("--people", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path("mailing.csv"))
    options = parser.parse_args()

    recommender = Recommender.load(options.recommender)
    added = recommender.add_bundles({options.bundle: options.items})
    for unknown in added.unknown_items.values():
        print("not known to the model, and left out:", ", ".join(unknown))
    with options.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["user_id", "score", "rank_in_their_list"])
        for person in recommender.audience(options.bundle, k=options.people):
            found = recommender.recommend([person.user_id], k=20)
            ranks = [row.rank for row in found if row.bundle_id == options.bundle]
            writer.writerow([person.user_id, f"{person.score:.4f}", ranks[0] if ranks else ""])
    print(f"written: {options.out}")


if __name__ == "__main__":
    main()

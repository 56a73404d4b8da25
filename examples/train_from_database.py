"""Train a recommender from the tables of a database, and keep it.

    python examples/train_from_database.py shop.sqlite --out recommender

Change the three queries to fit your own tables. Frames of pandas or polars do as well.
Needs: pip install 'coheat[train]'
"""

from __future__ import annotations

import argparse
import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow as pa

from coheat import fit_recommender

QUERIES = {
    "user_bundle": "SELECT customer AS user_id, offer AS bundle_id, ordered_at AS timestamp FROM orders",
    "user_item": "SELECT DISTINCT customer AS user_id, product AS item_id FROM purchases",
    "bundle_item": "SELECT offer AS bundle_id, product AS item_id FROM offer_products",
}


def read(connection: sqlite3.Connection, query: str) -> pa.Table:
    cursor = connection.execute(query)
    names = [column[0] for column in cursor.description]
    return pa.table(dict(zip(names, zip(*cursor.fetchall(), strict=True), strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a recommender from the tables of a database.")
    parser.add_argument("database", type=Path)
    parser.add_argument("--out", type=Path, default=Path("recommender"))
    parser.add_argument("--epochs", type=int, help="fewer for a first look")
    options = parser.parse_args()
    with closing(sqlite3.connect(options.database)) as connection:
        tables = {name: read(connection, query) for name, query in QUERIES.items()}
    settings = {"epochs": options.epochs} if options.epochs else {}
    recommender = fit_recommender(**tables, **settings)
    recommender.save(options.out)
    someone = recommender.user_ids[0]
    print(f"kept in {options.out}; the list of {someone}:")
    for row in recommender.recommend([someone], k=5):
        print(f"{row.rank:>2}  {row.bundle_id}  {row.score:.2f}")


if __name__ == "__main__":
    main()

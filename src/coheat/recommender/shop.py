"""What a recommender holds: users, bundles and items as they are now, and what is said of them in columns."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import numpy as np

from coheat.artifact import Contents, Description
from coheat.attributes import Value
from coheat.ids import unknown
from coheat.recommender.answers import BundleInfo, SearchResult, UserInfo
from coheat.recommender.catalogue import Catalogue
from coheat.recommender.checks import check_columns, check_ids
from coheat.recommender.choosing import moment_of
from coheat.recommender.described import note_described
from coheat.recommender.searching import search
from coheat.recommender.taken import Taken
from coheat.served.ranking import Positions


class Shop:
    """The part of a `Recommender` that tells what is there and changes what is said of it."""

    def __init__(self, contents: Contents):
        """From a model in its served form and the ids behind its rows, as an artifact holds them."""
        self._contents = contents
        self._served, self._users, self._items = contents.served, contents.users, contents.items
        self._taken = Taken(self._served.relations.user_bundle, self._users)
        self._lock = threading.Lock()
        self._catalogue = Catalogue.of_training(contents)
        self._described: dict[str, dict[str, dict[str, Value]]] = {"bundle": {}, "item": {}}

    def __repr__(self) -> str:
        users, items = len(self._users), len(self._items)
        counts = f"{users:,} users, {self.n_bundles:,} bundles, {items:,} items"
        return f"Recommender({self.description.model}: {counts})"

    @property
    def description(self) -> Description:
        """What the model says about itself."""
        return self._contents.description

    @property
    def knobs(self) -> dict[str, float]:
        """What may be turned while serving, and how it stands."""
        return {name: knob.value for name, knob in self._served.knobs.items()}

    @property
    def user_ids(self) -> Sequence[str]:
        """Ids of all users of training, in the order of rows."""
        return self._users.ids

    @property
    def item_ids(self) -> Sequence[str]:
        return self._items.ids

    @property
    def bundle_ids(self) -> list[str]:
        """Ids of all bundles that can be recommended now, in the order of rows."""
        return self._catalogue.names()

    @property
    def n_bundles(self) -> int:
        """How many bundles can be recommended now."""
        return int(np.count_nonzero(self._catalogue.alive))

    @property
    def popularity(self) -> Positions:
        """How often each of `bundle_ids` was taken, in training and since."""
        return self._catalogue.bundles.taken[self._catalogue.alive]

    def has_bundle(self, bundle: str) -> bool:
        return self._catalogue.find(bundle) is not None

    def has_item(self, item: str) -> bool:
        return item in self._items

    def bundle(self, bundle: str) -> BundleInfo:
        """What is known of a bundle now."""
        catalogue = self._catalogue
        row = catalogue.row(bundle)
        return BundleInfo(
            bundle_id=bundle,
            item_ids=self._item_names(catalogue.items_of(row)),
            popularity=int(catalogue.bundles.taken[row]),
            history_weight=catalogue.history_weight(row),
            is_new=bool(catalogue.bundles.is_new[row]),
            is_added=row >= catalogue.n_trained,
            placed_by=None if (one := catalogue.strangers.get(row)) is None else one.placed_by,
        )

    def fields_of(self, bundle: str, fields: Sequence[str] | None = None) -> dict[str, Value]:
        """What the columns say of a bundle; all columns, or those that are named."""
        table = self._catalogue.described.bundles
        table.check_names(fields or ())
        return table.values(self._catalogue.row(bundle), fields)

    def item_fields(self, item: str, fields: Sequence[str] | None = None) -> dict[str, Value]:
        """What the columns say of an item; all columns, or those that are named."""
        table = self._catalogue.described.items
        table.check_names(fields or ())
        return table.values(self._item_row(item), fields)

    @property
    def bundle_columns(self) -> dict[str, str]:
        """The columns of bundles, and what each is taken for: text, number, truth or time."""
        return self._catalogue.described.bundles.kinds()

    @property
    def item_columns(self) -> dict[str, str]:
        """The columns of items, and what each is taken for."""
        return self._catalogue.described.items.kinds()

    def is_on_offer(self, bundle: str, now: str | float | None = None) -> bool:
        """Whether a bundle is listed as far as `available`, `launched` and `ends` decide it."""
        catalogue = self._catalogue
        moment, _ = moment_of(catalogue, now, self.description.data_until)
        return bool(catalogue.described.on_offer(len(catalogue), moment)[catalogue.row(bundle)])

    def search_bundles(self, text: str, limit: int = 20) -> SearchResult:
        """Bundles whose id or title holds this text; what is not on offer too. Takes a fraction of a second,
        however many there are."""
        catalogue = self._catalogue
        return search(catalogue.ids, catalogue.alive, catalogue.described.bundles.get("title"), text, limit)

    def search_items(self, text: str, limit: int = 20) -> SearchResult:
        """Items whose id or title holds this text."""
        everything = np.ones(len(self._items), dtype=np.bool_)
        return search(self._items.ids, everything, self._catalogue.described.items.get("title"), text, limit)

    def user(self, user: str) -> UserInfo:
        """What is known of a user now; of an unknown one only what was recorded."""
        catalogue = self._catalogue
        recorded = [
            name for name in tuple(self._taken.by_user.get(user, ())) if catalogue.find(name) is not None
        ]
        row = self._users.index.get(user)
        if row is None:
            return UserInfo(user, False, [], [], recorded)
        items = self._item_names(self._served.relations.user_item.row(row))
        bundles = [catalogue.ids[bundle] for bundle in self._served.relations.user_bundle.row(row)]
        return UserInfo(user, True, items, bundles, recorded)

    def history_weight(self, popularity: float) -> float | None:
        """How far history counts for a bundle taken this often; None where evidence does not decide it."""
        return self._served.history_weight(popularity, 0.0)

    # What is said of it.

    def describe_bundles(self, bundles: Mapping[str, Mapping[str, Value]]) -> None:
        """Set columns of bundles: {"summer": {"title": "Summer picnic", "available": False}}.

        None takes a value away. A column of another name than title, category, image, price, available,
        launched and ends is a text, number or truth as its first value is. What was recorded of a bundle
        stays, whatever is said of it. Where one value does not fit or an id is unknown, nothing is changed.
        """
        check_columns(bundles, "bundles")
        with self._lock:
            self._catalogue = self._catalogue.with_bundles_described(bundles)
            note_described(self._described["bundle"], bundles)

    def describe_items(self, items: Mapping[str, Mapping[str, Value]]) -> None:
        """Set columns of items, as `describe_bundles` does; bundles without a category or title of their own
        follow."""
        check_columns(items, "items")
        with self._lock:
            by_row = {self._item_row(item): values for item, values in items.items()}
            self._catalogue = self._catalogue.with_items_described(by_row)
            note_described(self._described["item"], items)

    def check_described(self, subject: str, name: str, columns: Mapping[str, Value]) -> None:
        """Raise where a value does not fit its column of bundles (or, of the subject "item", of items); of
        one that is still to be added, too."""
        catalogue = self._catalogue
        if subject == "bundle":
            row = catalogue.find(name)
            catalogue.described.bundles.changed({len(catalogue) if row is None else row: columns})
        else:
            catalogue.described.items.changed({self._items.index.get(name, len(self._items)): columns})

    def hide_bundles(self, bundles: Sequence[str]) -> None:
        """Take bundles off the lists until `show_bundles`: out of stock. Nothing that is known is lost."""
        names = check_ids(bundles, "bundles", "hide_bundles takes a list of bundle ids")
        self.describe_bundles({name: {"available": False} for name in names})

    def show_bundles(self, bundles: Sequence[str]) -> None:
        """List bundles again, as if they had never been hidden."""
        names = check_ids(bundles, "bundles", "show_bundles takes a list of bundle ids")
        self.describe_bundles({name: {"available": True} for name in names})

    def _item_row(self, item: str) -> int:
        row = self._items.index.get(item)
        if row is None:
            raise unknown(item, "item", self._items.ids)
        return row

    def _item_names(self, items: Positions) -> list[str]:
        return [self._items.ids[item] for item in items.tolist()]

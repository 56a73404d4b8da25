"""Table 1 and the skew, against counting by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coheat.data import BundleData, realistic_world
from coheat.data.stats import gini, plot_skew, sketch_skew, stats
from coheat.errors import DataError
from coheat.testing import small_data

SHOP = small_data(
    [(f"u{n}", "hit") for n in range(6)] + [("u0", "two"), ("u1", "two"), ("u0", "one")],
    [("u0", "x"), ("u1", "y")],
    [("hit", "x"), ("hit", "y"), ("two", "y"), ("none", "z")],
)


def test_table_1_by_hand() -> None:
    found = stats(SHOP)
    assert (found.users, found.bundles, found.items) == (6, 4, 3)
    assert (found.user_bundle, found.user_item, found.bundle_item) == (9, 2, 4)
    assert found.user_bundle_density == pytest.approx(100 * 9 / 24)
    assert found.user_item_density == pytest.approx(100 * 2 / 18)
    assert found.bundle_item_density == pytest.approx(100 * 4 / 12)
    assert found.average_bundle_size == 1.0
    assert found.bundles_without_interactions == 1
    assert found.top_10_percent_share == found.top_20_percent_share == pytest.approx(6 / 9)


def test_the_tenth_of_twenty_bundles_is_two() -> None:
    taken = [(f"u{n}", f"b{bundle:02}") for bundle in range(20) for n in range(20 - bundle)]
    found = stats(small_data(taken))
    assert found.top_10_percent_share == pytest.approx((20 + 19) / 210)
    assert found.top_20_percent_share == pytest.approx((20 + 19 + 18 + 17) / 210)


@given(st.lists(st.integers(0, 100), min_size=1, max_size=30))
def test_gini_equals_its_definition(values: list[int]) -> None:
    total = sum(values)
    slow = sum(abs(a - b) for a in values for b in values) / (2 * len(values) * total) if total else 0.0
    assert gini(np.array(values)) == pytest.approx(slow, abs=1e-12)


def test_data_without_anything_have_statistics_too() -> None:
    found = stats(small_data())
    assert found.gini == found.user_bundle_density == found.average_bundle_size == 0.0
    assert sketch_skew(small_data()) == "no interactions"


@pytest.mark.parametrize(("suffix", "begin"), [(".png", b"\x89PNG"), (".svg", b"<?xml")])
def test_the_picture_is_of_the_kind_its_name_says(suffix: str, begin: bytes, tmp_path: Path) -> None:
    plot_skew(SHOP, tmp_path / "new" / f"skew{suffix}", title="Shop")
    assert (tmp_path / "new" / f"skew{suffix}").read_bytes().startswith(begin)


def test_the_picture_shows_the_sorted_interactions() -> None:
    from matplotlib.figure import Figure

    from coheat.data.stats import draw_skew

    axes = Figure().add_subplot()
    draw_skew(axes, SHOP)
    curve = axes.lines[0]
    assert np.asarray(curve.get_xdata()).tolist() == [1, 2, 3, 4]
    assert np.asarray(curve.get_ydata()).tolist() == [6, 2, 1, 0.5]  # nothing stands at the foot of the axis
    assert axes.get_yscale() == "log"


def test_other_kinds_of_picture_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"written as \.png or \.svg"):
        plot_skew(SHOP, tmp_path / "skew.txt")


@pytest.mark.parametrize("data", [SHOP, realistic_world(200, 100, 100, 900, 400, 400)], ids=["shop", "large"])
def test_the_sketch_falls_from_left_to_right(data: BundleData) -> None:
    *rows, _axis, caption = sketch_skew(data, width=40, height=6).splitlines()
    blocks = [row.split("│")[1] for row in rows]
    heights = [sum(" ▁▂▃▄▅▆▇█".index(row[column]) for row in blocks) for column in range(len(blocks[0]))]
    assert heights == sorted(heights, reverse=True)
    assert heights[0] == 6 * 8
    assert len(heights) == min(40, data.n_bundles)
    assert f"{data.n_bundles} bundles" in caption

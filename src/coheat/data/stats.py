"""Statistics of a world: the paper's Table 1, and how unevenly bundles are taken (its Figure 1a)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from coheat.data.dataset import BundleData, Indices, Moments, Sparse, column_kinds
from coheat.errors import DataError


@dataclass(frozen=True)
class Stats:
    """Counts, densities in percent, and the skew of interactions over bundles."""

    users: int
    bundles: int
    items: int
    user_bundle: int
    user_item: int
    bundle_item: int
    user_bundle_density: float
    user_item_density: float
    bundle_item_density: float
    average_bundle_size: float
    bundles_without_interactions: int
    top_10_percent_share: float
    """Share of all interactions that falls on the 10% most taken bundles."""
    top_20_percent_share: float
    gini: float
    """0 when all bundles are taken equally often, near 1 when one has nearly everything."""
    first_interaction: str | None = None
    """When the earliest and the latest user-bundle interaction were (UTC), where times are known."""
    last_interaction: str | None = None
    user_item_dated: bool = False
    bundles_with_launch: int = 0
    bundles_with_end: int = 0
    showings: int = 0
    columns: dict[str, dict[str, str]] = field(default_factory=dict)
    """Of the tables `bundles` and `items`: their further columns, and what each is taken for."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def stats(data: BundleData) -> Stats:
    """Table 1 and the skew of the interactions of bundles."""
    popularity = np.sort(data.popularity)[::-1]
    return Stats(
        users=data.n_users,
        bundles=data.n_bundles,
        items=data.n_items,
        user_bundle=int(data.user_bundle.nnz),
        user_item=int(data.user_item.nnz),
        bundle_item=int(data.bundle_item.nnz),
        user_bundle_density=_density(data.user_bundle),
        user_item_density=_density(data.user_item),
        bundle_item_density=_density(data.bundle_item),
        average_bundle_size=data.bundle_item.nnz / max(data.n_bundles, 1),
        bundles_without_interactions=int((popularity == 0).sum()),
        top_10_percent_share=_top_share(popularity, 0.1),
        top_20_percent_share=_top_share(popularity, 0.2),
        gini=gini(popularity),
        first_interaction=_shown_moment(data.timestamps, np.min),
        last_interaction=_shown_moment(data.timestamps, np.max),
        user_item_dated=data.item_timestamps is not None,
        bundles_with_launch=_known(data.launched),
        bundles_with_end=_known(data.ends),
        showings=0 if data.shown is None else len(data.shown),
        columns=column_kinds(data),
    )


def _shown_moment(timestamps: Indices | None, which: Callable[[Indices], Any]) -> str | None:
    """The moment that `which` chooses, as people write it; None where none is known."""
    if timestamps is None or not len(timestamps):
        return None
    return str(np.datetime64(int(which(timestamps)), "s"))


def _known(moments: Moments | None) -> int:
    return 0 if moments is None else int((~np.isnan(moments)).sum())


def _density(matrix: Sparse) -> float:
    """Percent of all possible pairs that exist."""
    possible = matrix.shape[0] * matrix.shape[1]
    return float(100 * matrix.nnz / possible) if possible else 0.0


def _top_share(descending: Indices, fraction: float) -> float:
    total = int(descending.sum())
    top = int(np.ceil(fraction * len(descending)))
    return float(descending[:top].sum() / total) if total else 0.0


def gini(values: Indices) -> float:
    """Gini coefficient: sum_ij |x_i - x_j| / (2 n sum_i x_i), computed from the sorted values.

    >>> gini(np.array([5, 5, 5])), gini(np.array([0, 0, 0, 8]))
    (0.0, 0.75)
    """
    total = int(np.sum(values))
    if not total:
        return 0.0
    ordered = np.sort(values)
    ranks = np.arange(1, len(ordered) + 1)
    return float(np.sum((2 * ranks - len(ordered) - 1) * ordered) / (len(ordered) * total))


def plot_skew(data: BundleData, path: str | Path, title: str = "") -> None:
    """Draw interactions per bundle, most taken first, on a logarithmic scale; PNG or SVG by suffix."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    target = Path(path)
    if target.suffix.lower() not in (".png", ".svg"):
        raise DataError(f"{target}: pictures are written as .png or .svg")
    figure = Figure(figsize=(6, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    draw_skew(figure.add_subplot(), data, title)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(target, dpi=150)
    except OSError as error:
        raise DataError(f"{target}: the picture cannot be written: {error}") from None


def draw_skew(axes: Any, data: BundleData, title: str = "") -> None:
    """The same on axes that the caller owns."""
    popularity = np.sort(data.popularity)[::-1]
    found = stats(data)
    axes.fill_between(
        np.arange(1, len(popularity) + 1), np.maximum(popularity, 0.5), 0.5, step="mid", alpha=0.3
    )
    axes.plot(np.arange(1, len(popularity) + 1), np.maximum(popularity, 0.5), linewidth=1.5)
    axes.axvline(0.2 * len(popularity), color="gray", linestyle=":", linewidth=1)
    axes.annotate(
        f"20% of the bundles have\n{found.top_20_percent_share:.0%} of the interactions",
        (0.22, 0.8),
        xycoords="axes fraction",
    )
    axes.set(yscale="log", xlim=(1, max(len(popularity), 2)), title=title)
    axes.set_ylim(bottom=0.5)
    axes.set(xlabel="bundles, most taken first", ylabel="interactions (log scale)")


def sketch_skew(data: BundleData, width: int = 60, height: int = 8) -> str:
    """The same picture in letters, for a terminal: `height` lines of `width` columns plus an axis.

    Each column stands for an equal share of the bundles and is as high as the logarithm of their
    average number of interactions.
    """
    popularity = np.sort(data.popularity)[::-1]
    if not len(popularity) or not popularity[0]:
        return "no interactions"
    width = min(width, len(popularity))
    means = np.array([part.mean() for part in np.array_split(popularity, width)])
    heights = np.log1p(means) / np.log1p(means[0]) * height
    label = len(str(round(means[0])))
    lines = []
    for level in range(height, 0, -1):
        # Eighths of a block make the curve smooth.
        cells = np.clip(np.round((heights - level + 1) * 8), 0, 8).astype(int)
        left = (
            str(round(np.expm1(np.log1p(means[0]) * level / height)))
            if level in (height, height // 2)
            else ""
        )
        lines.append(f"{left:>{label}} │" + "".join(" ▁▂▃▄▅▆▇█"[cell] for cell in cells))
    axis = f"{0:>{label}} └" + "─" * width
    return "\n".join([*lines, axis, " " * (label + 2) + f"{len(popularity)} bundles, most taken first"])

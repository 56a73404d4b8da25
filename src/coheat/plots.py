"""Pictures of training and of results, as inline SVG that follows the page's colours, or as a PNG.

Every `draw_...` works on axes that the caller owns, so that a page, a notebook and a picture for a README
share them. Colours are those of a light page; `to_svg` replaces each by a CSS variable of the same name,
so one picture suits light and dark.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from coheat.errors import ConfigError, DataError
from coheat.storage import replacing_file

Record = Mapping[str, Any]
Draw = Callable[[Any], None]
Values = Mapping[str, Mapping[str, float]]
"""Numbers by group (along the axis) and series (one colour each)."""
Levels = Mapping[str, Mapping[str, Mapping[str, float]]]
"""What `warm_up` of an evaluation has, by series: metrics by takers kept, and of all other bundles."""
Trade = Mapping[str, Mapping[str, tuple[float, float]]]
"""Points by series (one colour each) and name."""

COLOURS = {
    "ink": "#1f2430",
    "muted": "#7a8194",
    "line": "#d5d9e2",
    "first": "#d9480f",
    "second": "#1971c2",
    "third": "#8a93a6",
    "fourth": "#2b8a3e",
}
SERIES = ("first", "second", "third", "fourth")
STROKES = (("-", "o"), ("--", "s"), (":", "^"), ("-.", "D"))
"""Line styles and markers, for more series than there are colours."""
PANEL = (5.2, 3.1)
OTHERS = "others"
"""The bundles that were not thinned, among the levels of a warm-up."""


def colours_of(names: Sequence[str]) -> dict[str, str]:
    """A colour for each series, always the same for the same order."""
    return {name: COLOURS[SERIES[n % len(SERIES)]] for n, name in enumerate(names)}


def strokes_of(names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Colour, line style and marker of each series, so that more of them than colours are told apart."""
    found = {}
    for n, (name, colour) in enumerate(colours_of(names).items()):
        line, marker = STROKES[n // len(SERIES) % len(STROKES)]
        found[name] = {"color": colour, "linestyle": line, "marker": marker}
    return found


@contextmanager
def _style() -> Iterator[None]:
    from cycler import cycler
    from matplotlib import rc_context

    settings = {
        "axes.edgecolor": COLOURS["line"],
        "axes.labelcolor": COLOURS["ink"],
        "axes.titlesize": 11,
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "axes.prop_cycle": cycler(color=[COLOURS[name] for name in SERIES]),
        "font.size": 9.5,
        "grid.color": COLOURS["line"],
        "legend.frameon": False,
        "text.color": COLOURS["ink"],
        "xtick.color": COLOURS["muted"],
        "ytick.color": COLOURS["muted"],
        "svg.fonttype": "none",  # letters stay letters: small, sharp, and in the page's own font
    }
    with rc_context(settings):
        yield


def _figure(draws: Sequence[Draw], size: tuple[float, float] = PANEL) -> Any:
    """One panel of `size` (inches) per draw, side by side."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(size[0] * len(draws), size[1]), layout="constrained")
    FigureCanvasAgg(figure)
    for place, draw in enumerate(draws, start=1):
        draw(figure.add_subplot(1, len(draws), place))
    return figure


def to_svg(draw: Draw, name: str, description: str, size: tuple[float, float] = PANEL) -> str:
    """One panel as SVG for an HTML page; `name`, unique on the page, keeps the ids of pictures apart."""
    target = io.StringIO()
    with _style():
        from matplotlib import rcParams

        rcParams["svg.hashsalt"] = name  # the same picture is the same text
        _figure([draw], size).savefig(target, format="svg", transparent=True, metadata={"Date": None})
    text = target.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text).replace("xlink:href", "href")
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'href="#|url\(#', lambda match: f"{match[0]}{name}-", text)
    text = re.sub(r"font: ([\d.]+)px[^;\"]*", r"font-size: \1px", text)
    for colour, value in COLOURS.items():
        text = text.replace(value, f"var(--{colour})")
    label = description.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    opening = re.compile(r'<svg width="[^"]*" height="[^"]*"')
    return opening.sub(f'<svg role="img" aria-label="{label}"', text, count=1)


def to_png(draws: Sequence[Draw], path: Path, size: tuple[float, float] = PANEL) -> None:
    """Panels side by side on white."""
    with _style(), replacing_file(path) as aside:
        _figure(draws, size).savefig(aside, format="png", dpi=110, facecolor="white")


def to_svg_file(draws: Sequence[Draw], path: Path, size: tuple[float, float] = PANEL) -> None:
    """The same as SVG, for a page that does not inline it; the same picture is the same file."""
    with _style(), replacing_file(path) as aside:
        from matplotlib import rcParams

        rcParams["svg.hashsalt"] = path.stem
        _figure(draws, size).savefig(aside, format="svg", facecolor="white", metadata={"Date": None})


def plot_warm_up(found: Levels, path: Path, metric: str, title: str) -> None:
    """`draw_warm_up` as a file, .png or .svg; where there are no levels, a ConfigError says what has them."""
    write = {".png": to_png, ".svg": to_svg_file}.get(path.suffix)
    if write is None:
        raise ConfigError(f"{path}: a picture is written as .png or .svg; give it one of these names")
    if not found or not all(found.values()):
        raise ConfigError(
            "--plot draws recall by the takers that bundles kept, which only the test part of the scenario "
            "warm-up has; split the data that way: coheat data split DIR --scenario warm-up --out OUT"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        size = PANEL if len(found) <= len(SERIES) else (PANEL[0], 4.4)  # names of many lines stand below
        write([partial(draw_warm_up, found=found, metric=metric, title=title)], path, size)
    except OSError as error:
        raise DataError(f"{path}: the picture cannot be written: {error}") from None


def draw_losses(axes: Any, history: Sequence[Record], title: str) -> None:
    """Each loss term's mean over the epochs; terms of different size get an axis each."""
    names = list(history[0]["terms"])
    epochs = [record["epoch"] for record in history]
    for number, (name, colour) in enumerate(colours_of(names).items()):
        place = axes if number == 0 else axes.twinx()
        place.plot(epochs, [record["terms"][name] for record in history], color=colour)
        place.set_ylabel(name, color=colour)
        place.spines["right"].set_visible(number > 0)
    axes.set(xlabel="epoch", xlim=(1, max(epochs[-1], 2)), title=title)


def draw_heating(axes: Any, history: Sequence[Record], best_epoch: int) -> None:
    """CoHeat's temperature (logarithmic) and the mean history weight of warm bundles."""
    epochs = [record["epoch"] for record in history]
    facts = [record["facts"] for record in history]
    weight, heat = COLOURS["first"], COLOURS["second"]
    axes.plot(epochs, [fact["history_weight"] for fact in facts], color=weight)
    axes.set_ylabel("mean history weight", color=weight)
    axes.set(
        xlabel="epoch",
        xlim=(1, max(epochs[-1], 2)),
        ylim=(0, 1),
        title=f"CoHeat heats; dotted: the chosen epoch, {best_epoch}",
    )
    other = axes.twinx()
    other.plot(epochs, [fact["temperature"] for fact in facts], color=heat, linestyle="--")
    other.set_yscale("log")
    other.set_ylabel("temperature", color=heat)
    other.spines["right"].set_visible(True)
    axes.axvline(best_epoch, color=COLOURS["muted"], linestyle=":", linewidth=1)


def draw_validation(
    axes: Any, histories: Mapping[str, Sequence[Record]], best: Mapping[str, int], metric: str, title: str
) -> None:
    """A validation metric over the epochs, one line per scenario, a dot at the epoch that was kept."""
    for name, colour in colours_of(list(histories)).items():
        points = [(r["epoch"], r["validation"][metric]) for r in histories[name] if "validation" in r]
        axes.plot(*zip(*points, strict=True), color=colour, label=name)
        axes.plot(*next(point for point in points if point[0] == best[name]), "o", color=colour)
    axes.set(xlabel="epoch", ylabel=metric, title=title)
    axes.set_ylim(bottom=0)
    axes.legend()


def draw_trade(axes: Any, values: Trade, labels: tuple[str, str], title: str) -> None:
    """What is gained on one side and lost on the other: a line with a name at every point, or one point."""
    for name, colour in colours_of(list(values)).items():
        points = values[name]
        axes.plot(
            *zip(*points.values(), strict=True), "o-", markersize=4, color=colour, label=name, clip_on=False
        )
        for text, place in points.items():
            axes.annotate(text, place, xytext=(5, 4), textcoords="offset points", fontsize=8, color=colour)
    axes.set(xlabel=labels[0], ylabel=labels[1], title=title)
    axes.margins(0.12)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8.5, loc="lower left")


def draw_warm_up(
    axes: Any, found: Levels, metric: str, title: str, colours_by: Sequence[str] | None = None
) -> None:
    """A metric by the takers that bundles kept, one line per series; all other bundles are dots apart.

    `colours_by` names all series of the page, where they should have the same colours in every picture.
    """
    first = next(iter(found.values()))
    kept = sorted((level for level in first if level != OTHERS), key=int)
    places = list(range(len(kept)))
    apart = len(kept) + 0.5
    dots: dict[str, Any] = {"markersize": 4, "clip_on": False}
    strokes = strokes_of(colours_by or list(found))
    for name, levels in found.items():
        stroke = strokes[name]
        axes.plot(places, [levels[level][metric] for level in kept], **stroke, **dots, label=name)
        axes.plot(apart, levels[OTHERS][metric], **stroke, **dots)
    axes.axvline(apart - 0.75, color=COLOURS["line"], linewidth=1)
    ticks = [*zip(places, kept, strict=True), (apart, OTHERS)]
    names = [f"{level}\n({first[level]['positives']:,.0f})" for _, level in ticks]
    axes.set_xticks([place for place, _ in ticks], names)
    axes.set(xlabel="takers that the bundle kept in training (held-out takers)", ylabel=metric, title=title)
    axes.set_ylim(bottom=0)
    axes.margins(y=0.1)
    if len(found) > len(SERIES):  # among so many lines there is no free place for their names
        axes.legend(fontsize=8.5, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.24))
    else:
        axes.legend(fontsize=8.5)


def draw_bars(axes: Any, values: Values, title: str, label: str = "") -> None:
    """Bars with their numbers, grouped along the axis, one colour per series."""
    groups = list(values)
    series = list(values[groups[0]])
    width = 0.8 / len(series)
    letters = min(7.5, 120 / (len(groups) * len(series)))  # or else the numbers of many bars run together
    for number, (name, colour) in enumerate(colours_of(series).items()):
        places = [g + (number - (len(series) - 1) / 2) * width for g in range(len(groups))]
        heights = [values[group][name] for group in groups]
        bars = axes.bar(places, heights, width * 0.92, color=colour, label=name)
        numbers = [f"{h:.3f}".lstrip("0") if h else "0" for h in heights]
        axes.bar_label(bars, numbers, fontsize=letters, padding=1)
    axes.set_xticks(range(len(groups)), groups)
    axes.tick_params(axis="x", length=0, labelcolor=COLOURS["ink"])
    axes.margins(y=0.2)
    axes.set(title=title, xlabel=label)
    axes.legend(ncols=len(series), loc="upper left", fontsize=8.5)

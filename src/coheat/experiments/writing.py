"""Documents of experiments on the disk: JSON, Markdown, pictures, and one HTML report of several."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from coheat import plots
from coheat.errors import ArtifactError
from coheat.experiments.figures import Picture, pictures
from coheat.experiments.pages import markdown, sheets
from coheat.experiments.results import FORMAT
from coheat.report import page, table
from coheat.storage import read_json, replacing_file, write_json

Document = dict[str, Any]
REPORT = "report.html"


def write_document(document: Document, out: Path) -> list[Path]:
    """NAME.json, NAME.md and the pictures as PNG and SVG; returns what was written."""
    out.mkdir(parents=True, exist_ok=True)
    name = document["experiment"]
    written = [out / f"{name}.json", out / f"{name}.md"]
    write_json(written[0], document)
    with replacing_file(written[1]) as aside:
        aside.write_text(markdown(document) + "\n", encoding="utf-8")
    for picture in pictures(document):
        places = [out / f"{picture.name}.{suffix}" for suffix in ("png", "svg")]
        plots.to_png(picture.panels, places[0], picture.size)
        plots.to_svg_file(picture.panels, places[1], picture.size)
        written += places
    return written


def read_document(directory: Path, name: str) -> Document:
    """What `write_document` wrote; something else at that place is an ArtifactError."""
    path = directory / f"{name}.json"
    document = read_json(path)
    if document.get("format") != FORMAT or document.get("experiment") != name:
        raise ArtifactError(
            f"{path}: not the results of {name} as this version of coheat reproduce writes them"
        )
    return document


def write_report(documents: Sequence[Document], out: Path) -> Path:
    """One HTML page with every table and picture; it needs no other file and no network."""
    parts = ["<h1>CoHeat: measured beside published</h1>", *_about(documents)]
    for document in documents:
        parts.append(f"<h2>{escape(document['title'])}</h2>")
        for sheet in sheets(document):
            marked = {} if sheet.best is None else {sheet.best: "best"}
            left = (0, 1) if sheet.heads[0] == "cold share" else (0,)
            parts.append(f"<p><b>{escape(sheet.title)}</b></p>")
            if sheet.rows:
                parts.append(table(sheet.heads, sheet.rows, left, classes=marked))
            parts.append("<ul>" + "".join(f"<li>{escape(r)}</li>" for r in sheet.remarks) + "</ul>")
        parts += [f'<p class="muted">{escape(note)}</p>' for note in document["notes"]]
        parts += [_figures(picture) for picture in pictures(document)]
    parts += _settings(documents)
    with replacing_file(out / REPORT) as aside:
        aside.write_text(page("coheat reproduce", parts), encoding="utf-8")
    return out / REPORT


def _about(documents: Sequence[Document]) -> list[str]:
    made = ", ".join(f"{name} {value}" for name, value in documents[0]["environment"].items())
    return [
        f'<p class="muted">{escape(made)}</p>',
        "<p>Means over seeds ± standard deviation on the test part; the epoch was chosen on validation. "
        "Paper: the published figure; difference: relative to it. Counting and popularity are yardsticks "
        "that learn nothing.</p>",
    ]


def _figures(picture: Picture) -> str:
    panels = "".join(
        f"<figure>{plots.to_svg(draw, f'{picture.name}-{number}', picture.caption, picture.size)}</figure>"
        for number, draw in enumerate(picture.panels)
    )
    return f'<div class="grid">{panels}</div><p class="muted">{escape(picture.caption)}</p>'


def _settings(documents: Sequence[Document]) -> list[str]:
    """Every model's settings, once for each way it was used."""
    seen: dict[tuple[str, str], Document] = {}
    for document in documents:
        for entry in document.get("tables", []):
            for row in entry["rows"]:
                if row["seeds"]:
                    values = ", ".join(f"{key}={value}" for key, value in row["settings"].items())
                    seen[(f"{entry['dataset']} {row['name']}", values)] = row
    if not seen:
        return []
    return ["<h2>Settings</h2>", table(("model", "settings"), list(seen), wide=(1,))]

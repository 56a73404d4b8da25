"""coheat export: vectors with ids for other systems, and a FAISS index."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import typer

from coheat.cli import app
from coheat.cli.output import print_json, say
from coheat.cli.serving import NEW_BUNDLES, RUN, opened


@app.command()
def export(
    run: Path = RUN,
    out: Path = typer.Option(..., metavar="DIR", help="A new directory to write to."),
    format: str = typer.Option("parquet", help="parquet, npy or safetensors."),
    index: str | None = typer.Option(
        None, help="Also a FAISS index of the bundles: flat (exact), ivf or hnsw."
    ),
    recall_bound: float = typer.Option(
        0.95, min=0, max=1, help="Refuse an index that finds fewer of the exact 20 best."
    ),
    dense_part: bool = typer.Option(
        False,
        "--dense-part",
        help="If a score is more than an inner product (ember), export that part, and measure what it finds.",
    ),
    new_bundles: list[str] = NEW_BUNDLES,
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Write the vectors of users, bundles and items; a score is the inner product of the first two.

    Examples:

        coheat export runs/youshu --out vectors

        coheat export runs/youshu --out vectors --format npy --index flat --json

        coheat export runs/shop --out vectors --dense-part
    """
    from coheat.export import export as write

    recommender, _ = opened(run, new_bundles, as_json)
    report = write(recommender, out, format, index, recall_bound, dense_part)  # type: ignore[arg-type]
    if as_json:
        print_json({"out": str(out), **asdict(report)})
        return
    counts = ", ".join(f"{count} {kind}s" for kind, count in report.counts.items())
    say(f"{counts}, vectors of width {report.width}: {', '.join(report.files)}")
    if report.recall is not None:
        say(f"the {report.index} index finds {report.recall:.1%} of the exact 20 best")
    if report.dense_recall is not None:
        say(f"these vectors are not the whole score: {report.left_out} is left out")
        for depth, share in report.dense_recall.items():
            say(f"  the best {depth:>3} by them hold {share:.1%} of the model's 20 best")

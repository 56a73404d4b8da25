"""Tables for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape


def html_table(rows: Iterable[Iterable[object]], head: Iterable[object] = ()) -> str:
    """Rows of cells as HTML; whatever stands in a cell is shown as it is written."""
    lines = [("th", head), *(("td", row) for row in rows)]
    cells = ("".join(f"<{tag}>{escape(str(cell))}</{tag}>" for cell in line) for tag, line in lines)
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in cells if line)}</table>"


def html_facts(facts: Mapping[str, object]) -> str:
    """Names and values; numbers of counts with commas, others with four digits."""
    shown = {int: "{:,}".format, float: "{:.4f}".format}
    return html_table((name, shown.get(type(value), str)(value)) for name, value in facts.items())

"""How commands speak: tables and sentences for people, one JSON document for scripts."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Collection, Iterable
from typing import Any

from rich.console import Console
from rich.table import Table


def visible(text: str) -> str:
    """A text with its control characters written out: an id must not move the cursor or change colours."""
    if text.isprintable():
        return text
    return "".join(one if one in "\n\t" or not _controls(one) else repr(one)[1:-1] for one in text)


def _controls(one: str) -> bool:
    return unicodedata.category(one) in ("Cc", "Cf", "Cs")


class PlainConsole(Console):
    """Prints what users named as it is: no pictures for :x:, no escape sequences."""

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*(visible(one) if isinstance(one, str) else one for one in objects), **options)


console = PlainConsole(emoji=False)
errors = PlainConsole(stderr=True, emoji=False)


def as_number(value: float | None) -> str:
    """With four decimals; a dash where there is nothing to measure."""
    return "-" if value is None else f"{value:.4f}"


def say(text: str, style: str | None = None) -> None:
    """Print a line as it is: what users named may hold brackets, and paths are not broken in two."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def headline(text: str) -> None:
    console.print(f"\n[bold]{text}[/]", highlight=False)


def table(columns: Iterable[str], left: Collection[str] = (), **looks: Any) -> Table:
    """A table without rows; its columns stand to the right, as numbers do, but for those named in `left`."""
    made = Table(title_justify="left", **looks)
    for name in columns:
        made.add_column(name, justify="left" if name in left else "right")
    return made


def print_json(document: Any) -> None:
    """Print one JSON document, and nothing else, on standard output."""
    print(json.dumps(document, ensure_ascii=False, indent=2, allow_nan=False))


def problem(message: str) -> None:
    """Say what went wrong on standard error, without wrapping or markup in the user's own text."""
    errors.print("[bold red]error:[/]", end=" ")
    errors.print(message, markup=False, highlight=False, soft_wrap=True)


def note(message: str) -> None:
    """Say something worth knowing on standard error, such as what was left out."""
    errors.print("[bold yellow]note:[/]", end=" ")
    errors.print(message, markup=False, highlight=False, soft_wrap=True)

"""How commands speak: tables and sentences for people, one JSON document for scripts."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console

console = Console()
errors = Console(stderr=True)


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

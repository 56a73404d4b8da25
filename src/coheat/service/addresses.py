"""Which addresses there are, with which methods and parameters: read off the OpenAPI document itself.

So what is refused, what `Allow` says and how a request is labelled cannot differ from what is documented.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any
from urllib.parse import parse_qsl

USUAL_BYTES = 200
OPERATIONS = ("/health/live", "/health/ready", "/openapi.json", "/metrics")
"""Answered beside the documented interface, all with GET."""


@dataclass(frozen=True)
class Address:
    """A template such as /v1/bundles/{bundle_id}; for each of its methods the names of query parameters."""

    template: str
    pattern: re.Pattern[str]
    methods: dict[str, frozenset[str]]

    @property
    def allow(self) -> str:
        """What the header `Allow` says."""
        names = {*self.methods, *(["HEAD"] if "GET" in self.methods else [])}
        return ", ".join(sorted(names))


class Addresses:
    """All addresses of an interface; the document is asked for when the first request comes."""

    def __init__(self, document: Callable[[], dict[str, Any]]):
        self.document = document

    @cached_property
    def all(self) -> list[Address]:
        paths = self.document()["paths"]
        documented = [_address(path, operations) for path, operations in paths.items()]
        return [*documented, *(_address(path, {"get": {}}) for path in OPERATIONS)]

    @cached_property
    def _by_beginning(self) -> dict[str, list[Address]]:
        found: dict[str, list[Address]] = {}
        for one in self.all:
            found.setdefault(_beginning(one.template), []).append(one)
        return found

    def find(self, path: str) -> Address | None:
        alike = self._by_beginning.get(_beginning(path), ())
        return next((one for one in alike if one.pattern.fullmatch(path)), None)


def _beginning(path: str) -> str:
    """The first two parts of a path, in which no template has anything to fill in."""
    return "/".join(path.split("/", 3)[:3])


def unknown_parameters(address: Address, method: str, query: bytes) -> list[str]:
    """Names in a query that mean nothing at this address; those who send them think that they do."""
    known = address.methods.get(method, frozenset())
    return sorted({name for name, _ in parameters(query)} - known)


def parameters(query: bytes) -> Sequence[tuple[str, str]]:
    return _usual(query) if len(query) <= USUAL_BYTES else _parsed(query)


def _parsed(query: bytes) -> Sequence[tuple[str, str]]:
    return tuple(parse_qsl(query.decode("latin-1"), keep_blank_values=True))


_usual = lru_cache(256)(_parsed)  # most ask for the same kind of list


def _address(template: str, operations: dict[str, Any]) -> Address:
    methods = {
        method.upper(): frozenset(
            one["name"] for one in operation.get("parameters", []) if one["in"] == "query"
        )
        for method, operation in operations.items()
    }
    parts = re.split(r"\{[^}]*\}", template)
    return Address(template, re.compile("[^/]+".join(map(re.escape, parts))), methods)

"""What is said of bundles and items beyond their ids: columns such as title, category, price or ends."""

from coheat.attributes.column import UNDERSTOOD, Column, Kind, Value, column_of, fitting, kind_of_value
from coheat.attributes.offer import on_offer
from coheat.attributes.table import Attributes
from coheat.attributes.where import OPERATORS, Where, matching

__all__ = [
    "OPERATORS",
    "UNDERSTOOD",
    "Attributes",
    "Column",
    "Kind",
    "Value",
    "Where",
    "column_of",
    "fitting",
    "kind_of_value",
    "matching",
    "on_offer",
]

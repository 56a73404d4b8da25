"""From files to a split: what a model is trained and judged on."""

from coheat.data.dataset import BundleData, Vocabulary, pairs, relation
from coheat.data.files import has_split, read_data, read_split
from coheat.data.problems import DataWarning
from coheat.data.split import Split
from coheat.data.synthetic import planted_world

__all__ = [
    "BundleData",
    "DataWarning",
    "Split",
    "Vocabulary",
    "has_split",
    "pairs",
    "planted_world",
    "read_data",
    "read_split",
    "relation",
]

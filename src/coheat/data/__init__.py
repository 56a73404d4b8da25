"""From files to a split: what a model is trained and judged on.

Three verbs live in the module of their name: `coheat.data.split.split`, `coheat.data.check.check` and
`coheat.data.stats.stats`.
"""

from coheat.data.check import CheckReport
from coheat.data.dataset import BundleData, Shown, pairs, relation
from coheat.data.files import has_split, read_data, read_split
from coheat.data.problems import DataWarning, Problem
from coheat.data.split import SCENARIOS, Split
from coheat.data.synthetic import LIKE, planted_world, realistic_world
from coheat.data.tables import from_frames
from coheat.data.writing import write_research, write_tables
from coheat.ids import Vocabulary

__all__ = [
    "LIKE",
    "SCENARIOS",
    "BundleData",
    "CheckReport",
    "DataWarning",
    "Problem",
    "Shown",
    "Split",
    "Vocabulary",
    "from_frames",
    "has_split",
    "pairs",
    "planted_world",
    "read_data",
    "read_split",
    "realistic_world",
    "relation",
    "write_research",
    "write_tables",
]

"""How good are the lists: ranking in bounded memory, metrics, and the paper's protocol over both."""

from coheat.evaluation.evaluate import POPULARITY_GROUPS, Candidates, Evaluation, evaluate, evaluate_shifted
from coheat.evaluation.intervals import Interval, bootstrap, difference
from coheat.evaluation.ranking import Scorer, top_bundles

__all__ = [
    "POPULARITY_GROUPS",
    "Candidates",
    "Evaluation",
    "Interval",
    "Scorer",
    "bootstrap",
    "difference",
    "evaluate",
    "evaluate_shifted",
    "top_bundles",
]

"""A trained model at work: numpy only, no torch. Notebooks, the command line and the service use it."""

from coheat.recommender.answers import (
    AddedBundles,
    BundleInfo,
    BundleShare,
    Explanation,
    FoundId,
    ItemShare,
    Recommendation,
    Recommendations,
    Recorded,
    SearchResult,
    SimilarBundle,
    UserInfo,
)
from coheat.recommender.core import Recommender
from coheat.recommender.rules import Boost, Rules

__all__ = [
    "AddedBundles",
    "Boost",
    "BundleInfo",
    "BundleShare",
    "Explanation",
    "FoundId",
    "ItemShare",
    "Recommendation",
    "Recommendations",
    "Recommender",
    "Recorded",
    "Rules",
    "SearchResult",
    "SimilarBundle",
    "UserInfo",
]

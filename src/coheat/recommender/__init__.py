"""A trained model at work: numpy only, no torch. Notebooks, the command line and the service use it."""

from coheat.recommender.answers import (
    AddedBundles,
    BundleInfo,
    Explanation,
    Recommendation,
    Recommendations,
    Recorded,
    Share,
    SimilarBundle,
    UserInfo,
    ViewShare,
)
from coheat.recommender.core import Recommender
from coheat.recommender.ids import Ids

__all__ = [
    "AddedBundles",
    "BundleInfo",
    "Explanation",
    "Ids",
    "Recommendation",
    "Recommendations",
    "Recommender",
    "Recorded",
    "Share",
    "SimilarBundle",
    "UserInfo",
    "ViewShare",
]

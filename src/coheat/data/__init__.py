"""From files to a split: what a model is trained and judged on."""

from coheat.data.dataset import BundleData, Vocabulary, pairs, relation

__all__ = ["BundleData", "Vocabulary", "pairs", "relation"]

"""From what a service recorded to the model that it serves next: collect, train, judge, publish."""

from coheat.retraining.collecting import Collected, collect
from coheat.retraining.retrain import Outcome, retrain

__all__ = ["Collected", "Outcome", "collect", "retrain"]

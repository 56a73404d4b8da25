"""What a trained model is outside of training: one object in numpy that scores, places and explains."""

from coheat.served.blocks import Block
from coheat.served.bundles import Bundles
from coheat.served.curves import Curve, Knob
from coheat.served.explain import Term
from coheat.served.fold_in import Layers
from coheat.served.form import People, Served
from coheat.served.overlap import Overlap
from coheat.served.own import OwnScores
from coheat.served.relations import Csr, Relations

__all__ = [
    "Block",
    "Bundles",
    "Csr",
    "Curve",
    "Knob",
    "Layers",
    "Overlap",
    "OwnScores",
    "People",
    "Relations",
    "Served",
    "Term",
]

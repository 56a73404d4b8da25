"""The models, by the name the command line uses. One line each; a new model adds one."""

from __future__ import annotations

from coheat.models.base import Model
from coheat.models.bgcn import BGCN
from coheat.models.bundlegt import BundleGT
from coheat.models.bundlenet import BundleNet
from coheat.models.cb2cf import CB2CF
from coheat.models.ccfcrec import CCFCRec
from coheat.models.clcrec import CLCRec
from coheat.models.coheat import CoHeat
from coheat.models.counting import Counting
from coheat.models.crosscbr import CrossCBR
from coheat.models.cvar import CVAR
from coheat.models.dam import DAM
from coheat.models.dropoutnet import DropoutNet
from coheat.models.ember import Ember
from coheat.models.epiccbr import EpicCBR
from coheat.models.gar_cf import GARCF
from coheat.models.gar_gnn import GARGNN
from coheat.models.heater import Heater
from coheat.models.lightgcl import LightGCL
from coheat.models.lightgcn import LightGCN
from coheat.models.mfbpr import MFBPR
from coheat.models.multicbr import MultiCBR
from coheat.models.popularity import Popularity
from coheat.models.sgl import SGL
from coheat.models.simgcl import SimGCL

MODELS: dict[str, type[Model]] = {
    "bgcn": BGCN,
    "bundlegt": BundleGT,
    "bundlenet": BundleNet,
    "cb2cf": CB2CF,
    "ccfcrec": CCFCRec,
    "clcrec": CLCRec,
    "coheat": CoHeat,
    "counting": Counting,
    "crosscbr": CrossCBR,
    "cvar": CVAR,
    "dam": DAM,
    "dropoutnet": DropoutNet,
    "ember": Ember,
    "epiccbr": EpicCBR,
    "gar-cf": GARCF,
    "gar-gnn": GARGNN,
    "heater": Heater,
    "lightgcl": LightGCL,
    "lightgcn": LightGCN,
    "mfbpr": MFBPR,
    "multicbr": MultiCBR,
    "popularity": Popularity,
    "sgl": SGL,
    "simgcl": SimGCL,
}

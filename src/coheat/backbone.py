"""Backbones: vectors that a model starts from, trained once and kept for the next model that wants the same.

`fit` trains the backbone of a model (`Model.backbone`) before the model's first epoch: for a fixed number of
epochs on the training interactions alone, with negatives among warm bundles only. No validation chooses its
epoch: in the cold scenario the held-out bundles are cold, and a backbone knows nothing of those.

What it learned is kept under the user's cache directory ($XDG_CACHE_HOME or ~/.cache, then coheat/backbones),
in a file named by a digest of everything that decides the numbers. COHEAT_CACHE=DIR keeps it in DIR instead,
COHEAT_CACHE=off nowhere. The cache may be deleted at any time, and a damaged file in it is trained again.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from coheat import __version__
from coheat.data.dataset import relation
from coheat.data.split import Split
from coheat.models import MODELS
from coheat.models.base import Model, PretrainedConfig
from coheat.storage import replacing_file

CACHE_VARIABLE = "COHEAT_CACHE"
PARTS = ("users", "bundles")
Tables = dict[str, Tensor]
"""The vectors of `users` (n_users, d) and `bundles` (n_bundles, d)."""


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a backbone's vectors; equal recipes give equal numbers."""

    backbone: str
    config: dict[str, Any]
    epochs: int
    batch_size: int
    seed: int
    fingerprint: str

    @staticmethod
    def of(model: Model) -> Recipe:
        """How the backbone of this model is trained."""
        assert model.backbone is not None
        settings = model.config
        assert isinstance(settings, PretrainedConfig)
        config = {
            "embedding_size": settings.embedding_size,
            "learning_rate": settings.backbone_learning_rate,
            "weight_decay": settings.backbone_weight_decay,
            "negatives": "warm",
        }
        return Recipe(
            backbone=model.backbone,
            config=config,
            epochs=settings.backbone_epochs,
            batch_size=settings.backbone_batch_size,
            seed=model.rng.child("backbone").seed,
            fingerprint=model.data.fingerprint,
        )

    @property
    def digest(self) -> str:
        document = json.dumps({"coheat": __version__, **asdict(self)}, sort_keys=True)
        return hashlib.sha256(document.encode()).hexdigest()


def untrained(model: Model) -> tuple[Model, Split]:
    """The backbone of a model, and what it may see: the training interactions and nothing held out."""
    recipe = Recipe.of(model)
    kind = MODELS[recipe.backbone]
    backbone = kind(model.data, kind.Config.create(recipe.config), model.rng.child("backbone"))
    nothing = relation([], [], model.data.user_bundle.shape)
    return backbone.to(model.pretrained_users.device), Split(model.data, nothing, nothing)


def tables(backbone: Model) -> Tables:
    """A trained backbone's vectors; zero for users and bundles without training interactions."""
    served, data = backbone.served(), backbone.data
    found = {}
    for name, counts, table in (
        ("users", np.diff(data.user_bundle.indptr), served.users),
        ("bundles", data.popularity, served.bundles.plain.base),
    ):
        found[name] = torch.from_numpy(table * (counts > 0)[:, None])
    return found


def cache_directory() -> Path | None:
    """Where backbones are kept; None where COHEAT_CACHE says off."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen == "off":
        return None
    if chosen:
        return Path(chosen) / "backbones"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "coheat" / "backbones"


def read(cache: Path | None, recipe: Recipe) -> Tables | None:
    """The vectors of this recipe; None where they are not kept, or the file is damaged."""
    path = cache / f"{recipe.digest}.safetensors" if cache else None
    if path is None or not path.is_file():
        return None
    try:
        with safe_open(path, "pt") as file:
            found = {name: file.get_tensor(name) for name in PARTS}
            stated = (file.metadata() or {}).get("sha256")
    except (SafetensorError, OSError):
        return None
    return found if stated == _checksum(found) else None


def keep(cache: Path | None, recipe: Recipe, found: Tables) -> None:
    """Keep the vectors for the next time; a cache that cannot be written only costs that."""
    if cache is None:
        return
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with replacing_file(cache / f"{recipe.digest}.safetensors") as aside:
            save_file(found, aside, {"sha256": _checksum(found)})
    except (OSError, SafetensorError) as error:
        warnings.warn(
            f"{cache}: the backbone cannot be kept there ({error}), so the next run trains it again; "
            f"say where with {CACHE_VARIABLE}=DIR, or {CACHE_VARIABLE}=off to keep none",
            stacklevel=2,
        )


def _checksum(found: Tables) -> str:
    digest = hashlib.sha256()
    for name in PARTS:
        digest.update(found[name].numpy().tobytes())
    return digest.hexdigest()

"""GAR-CF: `gar` with one pretrained vector for each user and bundle, and a recommender of two towers.

    real(b) = Q_b,   r(u, x) = <T_U(P_u), T_B(x)>,   T = linear(dropout(tanh(norm(linear(norm(.))))))
    distance(x, y) = mean |x - y| over the coordinates

norm is batch normalisation. Since r is an inner product, a trained model is two matrices.

Where we differ, besides what `gar` says: pretrained vectors are 64 wide as everywhere, the towers 200 as
published. `negative_weight` is 0.1 in the authors' last version and 0.9 in an earlier one; validation
chooses.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor, nn

from coheat.losses import dot_rows
from coheat.models.gar import GAR, Draws, GARConfig
from coheat.models.layers import dropout, linear
from coheat.models.towers import weights
from coheat.served import Served


class GARCFConfig(GARConfig):
    """Settings of GAR-CF; the defaults are the published ones."""

    tower_size: int = Field(200, ge=1, description="width of the recommender's towers")


class Tower(nn.Module):
    """T of the module's text; what the inner normalisation would take out again is left out before it."""

    def __init__(self, config: GARCFConfig, generator: torch.Generator, bias: bool):
        super().__init__()
        width, size, self.share = config.embedding_size, config.tower_size, config.recommender_dropout
        self.norm_in = nn.BatchNorm1d(width, affine=False)
        self.hidden = weights(width, size, generator)
        self.norm = nn.BatchNorm1d(size)
        self.output = (linear if bias else weights)(size, size, generator)

    def forward(self, x: Tensor, rng: Draws) -> Tensor:
        hidden = torch.tanh(self.norm(self.hidden(self.norm_in(x))))
        found: Tensor = self.output(dropout(hidden, self.share, rng))
        return found


class Towers(nn.Module):
    """The recommender r. The bundles' tower ends without a bias, which would be the same for all of them."""

    def __init__(self, config: GARCFConfig, generator: torch.Generator):
        super().__init__()
        self.users, self.bundles = Tower(config, generator, True), Tower(config, generator, False)

    def forward(
        self, users: Tensor, bundles: Tensor, user_at: Tensor, bundle_at: Tensor, rng: Draws
    ) -> Tensor:
        """r(users[user_at[j]], bundles[bundle_at[j]]) for every j."""
        return dot_rows(self.users(users, rng), self.bundles(bundles, rng), user_at, bundle_at)


class GARCF(GAR):
    """See the module's text. Parameters: those of the generator and of the towers."""

    Config = GARCFConfig
    config: GARCFConfig
    contract_settings = {  # noqa: RUF012
        "negative_weight": 0.9,
        "recommender_dropout": 0.1,
        "tower_size": 16,
        "content_size": 16,
    }

    def make_recommender(self, generator: torch.Generator) -> Towers:
        return Towers(self.config, generator)

    def inputs(self) -> tuple[Tensor, Tensor]:
        return self.pretrained_users, self.pretrained_bundles

    def distances(self, made: Tensor, real: Tensor) -> Tensor:
        return (made - real).abs().mean(1)

    @torch.no_grad()
    def served(self) -> Served:
        users, bundles = self.served_inputs()
        return self.one_block(self.recommender.users(users, None), self.recommender.bundles(bundles, None))

"""Mixture of experts: many MLPs in place of one, and a router that sends each token to a few of them.

Shazeer et al. (2017), "Outrageously Large Neural Networks"; the load-balancing loss is that of Switch Transformers
(Fedus et al., 2021, section 2.2). The model stores all experts (total parameters), and a token pays for the chosen
ones (active parameters). No expert has a capacity limit here, so no token is ever dropped.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from transformer_lib.config import TransformerConfig
from transformer_lib.mlp import make_mlp
from transformer_lib.model import Transformer
from transformer_lib.taps import Tapped
from transformer_lib.training import next_token_loss


@dataclass(frozen=True, kw_only=True)
class MoEConfig(TransformerConfig):
    """A TransformerConfig with n_experts MLPs per block, of which each token uses n_active; d_ff: width of one."""

    n_experts: int
    n_active: int

    def __post_init__(self):
        super().__post_init__()
        for name in ("n_experts", "n_active"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1; got {value!r}.")
        if self.n_active > self.n_experts:
            raise ValueError(f"a token cannot use n_active={self.n_active} of n_experts={self.n_experts} experts.")


class MixtureOfExperts(Tapped):
    """The weighted sum of the outputs of the n_active experts that the router likes best, for each token alone.

    The weight of an expert is its router probability; with several experts the chosen weights are scaled to sum to
    one. (With a single one they are not: its weight would be 1, and the router would get no gradient.)
    """

    TAPS = ("router", "chosen", "output")

    def __init__(self, cfg: MoEConfig):
        super().__init__()
        self.n_active = cfg.n_active
        self.router = nn.Linear(cfg.d_model, cfg.n_experts, bias=False)
        self.experts = nn.ModuleList(make_mlp(cfg) for _ in range(cfg.n_experts))
        self.balance: Tensor | None = None  # the load-balancing loss of the last forward pass

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, T, d_model); returns (B, T, d_model)."""
        probabilities, chosen, weights = self.route(x)  # (B, T, E), (B, T, k), (B, T, k)
        self.balance = balance_loss(probabilities, chosen)
        tokens, output = x.flatten(0, 1), torch.zeros_like(x).flatten(0, 1)  # (B · T, d_model)
        for index, expert in enumerate(self.experts):
            token, place = (chosen.flatten(0, 1) == index).nonzero(as_tuple=True)  # the tokens that chose this expert
            if len(token):
                update = expert(tokens[token][None])[0] * weights.flatten(0, 1)[token, place, None]  # (n, d_model)
                output = output.index_add(0, token, update.to(output.dtype))
        return self.tap("output", output.view_as(x))  # (B, T, d_model)

    def route(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Router probabilities (B, T, E); the chosen experts and their weights, (B, T, k) each, best first."""
        probabilities = self.tap("router", self.router(x).softmax(dim=-1))  # (B, T, E)
        chosen = self.tap("chosen", probabilities.topk(self.n_active, dim=-1).indices)  # (B, T, k)
        weights = probabilities.gather(-1, chosen)  # (B, T, k)
        if self.n_active > 1:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        return probabilities, chosen, weights


def expert_load(chosen: Tensor, n_experts: int) -> Tensor:
    """The share of all choices that fell on each expert: chosen (B, T, k) int64 -> (E,), which sums to one."""
    return torch.bincount(chosen.flatten(), minlength=n_experts) / chosen.numel()


def balance_loss(probabilities: Tensor, chosen: Tensor) -> Tensor:
    """E · Σ_i load_i · mean probability_i (Fedus et al., 2021, equation 4): a scalar.

    1 where both are uniform, up to E where all tokens go to one expert. Gradient flows through the probabilities alone.
    """
    n_experts = probabilities.shape[-1]
    return n_experts * (expert_load(chosen, n_experts) * probabilities.flatten(0, 1).mean(dim=0)).sum()


def dense_mixture(layer: MixtureOfExperts, x: Tensor) -> Tensor:
    """The same sum with every expert run on every token, most of them weighted by zero: what the layer saves."""
    probabilities, chosen, weights = layer.route(x)
    everywhere = torch.zeros_like(probabilities).scatter(-1, chosen, weights)  # (B, T, E)
    outputs = torch.stack([expert(x) for expert in layer.experts], dim=-1)  # (B, T, d_model, E)
    return (outputs * everywhere[:, :, None]).sum(dim=-1)  # (B, T, d_model)


class MoETransformer(Transformer):
    """A Transformer with a mixture of experts in place of the MLP of every block."""

    def __init__(self, cfg: MoEConfig):
        super().__init__(cfg)
        for block in self.blocks:
            block.mlp = MixtureOfExperts(cfg)
        self.initialize()

    def balance_loss(self) -> Tensor:
        """The blocks' mean load-balancing loss in the last forward pass, a scalar; read once, then forgotten.

        Padding is counted as tokens are. Raises RuntimeError if there was no forward pass since.
        """
        if self.blocks[0].mlp.balance is None:
            raise RuntimeError("the load-balancing loss belongs to one forward pass; call model(ids) first.")
        losses = torch.stack([block.mlp.balance for block in self.blocks])  # (L,)
        for block in self.blocks:
            block.mlp.balance = None  # or it would keep the pass's activations alive
        return losses.mean()

    def inactive_parameters(self) -> int:
        """Parameters that a token does not use: those of the experts that it does not choose."""
        per_expert = sum(weight.numel() for weight in self.blocks[0].mlp.experts[0].parameters())
        return self.cfg.n_layers * (self.cfg.n_experts - self.cfg.n_active) * per_expert


def moe_loss(model: MoETransformer, batch, weight: float = 0.01) -> Tensor:
    """The language model's loss plus `weight` times the load-balancing loss (0.01 in Fedus et al., 2021): a scalar."""
    return next_token_loss(model, batch) + weight * model.balance_loss()

"""A selective state-space model: a recurrence in place of attention, with a state that never grows.

Mamba (Gu and Dao, 2023), sections 3.1–3.4. Each of E channels carries N numbers of state. At every step the state
decays and something is written to it; what is read from it is the output:

    h_t = decay_t ⊙ h_{t-1} + write_t        y_t = Σ_n read_t ⊙ h_t        decay_t = exp(Δ_t A), write_t = Δ_t B_t x_t

*Selective*: Δ, B and read depend on the token, so the model decides what to remember. If they do not (S4; Gu et al.,
2021), the same recurrence is a convolution with one fixed kernel.

Mamba folds the MLP into this layer and stacks nothing else. Here it takes the place of attention in the block, which
keeps its MLP: one change at a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_lib.config import TransformerConfig
from transformer_lib.kv_cache import KVCache
from transformer_lib.model import Transformer
from transformer_lib.relatives.scan import causal_convolution, scan
from transformer_lib.taps import Tapped


@dataclass(frozen=True, kw_only=True)
class SSMConfig(TransformerConfig):
    """A TransformerConfig without heads and positions: order is what a recurrence is made of.

    d_inner: channels, E (None: 2 d_model). d_state: numbers of state per channel, N. conv_width: tokens that the short
    convolution before the recurrence sees. selective=False: Δ, B and the read-out are the same for all tokens.
    """

    n_heads: int = 1
    positions: str = "none"
    d_inner: int | None = None
    d_state: int = 16
    conv_width: int = 4
    selective: bool = True

    def __post_init__(self):
        super().__post_init__()
        for name in ("d_state", "conv_width", "channels"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1; got {value!r}.")
        if self.positions != "none" or not self.causal:
            raise ValueError("a state-space model reads from left to right: it needs positions='none', causal=True.")

    @property
    def channels(self) -> int:
        """Width of the recurrence, E."""
        return 2 * self.d_model if self.d_inner is None else self.d_inner


class StateCache(KVCache):
    """The state after the last token and the last inputs of the short convolution: as large after a million tokens.

    (It also notes which tokens were padding, as every cache here does; `nbytes` counts what the layers read.)
    """

    def allocate(self, cfg: SSMConfig, dtype, device) -> None:
        rows = (cfg.n_layers, self.batch_size)
        self.states = torch.zeros(*rows, cfg.channels, cfg.d_state, dtype=dtype, device=device)  # (L, B, E, N)
        self.pasts = torch.zeros(
            *rows, cfg.conv_width - 1, cfg.channels, dtype=dtype, device=device
        )  # (L, B, W - 1, E)

    @property
    def nbytes(self) -> int:
        """L · B · E · (N + W - 1) · bytes per number, whatever max_len is."""
        return self.states.nbytes + self.pasts.nbytes

    def reset(self) -> None:
        super().reset()
        self.states.zero_()
        self.pasts.zero_()


class SelectiveSSM(Tapped):
    """A short convolution, the recurrence, and a gate: what stands in the place of attention."""

    TAPS = ("step", "states", "output")

    def __init__(self, cfg: SSMConfig):
        super().__init__()
        width, self.d_state, self.selective = cfg.channels, cfg.d_state, cfg.selective
        self.rank = math.ceil(cfg.d_model / 16)  # Δ varies in few directions: a bottleneck of d_model / 16
        self.w_in = nn.Linear(cfg.d_model, 2 * width, bias=cfg.bias)
        self.kernel = nn.Parameter(torch.empty(width, cfg.conv_width))
        self.kernel_bias = nn.Parameter(torch.empty(width))
        self.log_a = nn.Parameter(torch.empty(width, cfg.d_state))  # A = −exp(log_a) < 0: every state decays
        self.step_bias = nn.Parameter(torch.empty(width))
        if cfg.selective:
            self.w_select = nn.Linear(width, self.rank + 2 * cfg.d_state, bias=False)
            self.w_step = nn.Linear(self.rank, width, bias=False)
        else:
            self.b = nn.Parameter(torch.empty(width, cfg.d_state))
            self.c = nn.Parameter(torch.empty(width, cfg.d_state))
        self.skip = nn.Parameter(torch.empty(width))
        self.w_o = nn.Linear(width, cfg.d_model, bias=cfg.bias)

    @torch.no_grad()
    def initialize(self) -> None:
        """A = −1 … −N in every channel, and steps from 0.001 to 0.1: memories from a few tokens to a thousand."""
        rates = torch.arange(1.0, self.d_state + 1, device=self.log_a.device)  # (N,)
        self.log_a.copy_(rates.log().expand_as(self.log_a))
        steps = torch.exp(torch.empty_like(self.step_bias).uniform_(math.log(0.001), math.log(0.1)))  # (E,)
        self.step_bias.copy_(steps + torch.log(-torch.expm1(-steps)))  # softplus of this is `steps`
        nn.init.uniform_(self.kernel, -(self.kernel.shape[1] ** -0.5), self.kernel.shape[1] ** -0.5)
        nn.init.zeros_(self.kernel_bias)
        nn.init.ones_(self.skip)
        if self.selective:
            nn.init.uniform_(self.w_step.weight, -(self.rank**-0.5), self.rank**-0.5)
        else:
            nn.init.ones_(self.b)
            nn.init.normal_(self.c)

    def forward(self, x: Tensor, *, rotation=None, mask=None, causal=True, cache=None, layer=0) -> Tensor:
        """x: (B, T, d_model); returns (B, T, d_model). The arguments are those of `MultiHeadAttention`.

        mask: only its padding is read. Padding stands at the ends of a row: it leaves no trace in the state.
        """
        keep = padding_of(mask, x.shape[1])  # (B, T, 1) or None
        inner, gate = self.w_in(x).chunk(2, dim=-1)  # (B, T, E) each
        inner = inner if keep is None else inner * keep
        inner = F.silu(self.convolve(inner, cache, layer))  # (B, T, E)
        step, b, c = self.parameters_at(inner)  # (B, T, E), (B, T, 1, N), (B, T, 1, N)
        step = self.tap("step", step if keep is None else step * keep)
        decay = torch.exp(step[..., None] * -self.log_a.exp())  # (B, T, E, N)
        write = (step * inner)[..., None] * b  # (B, T, E, N)
        states = self.tap("states", self.run(decay, write, cache, layer))  # (B, T, E, N)
        y = (states * c).sum(dim=-1) + self.skip * inner  # (B, T, E)
        return self.tap("output", self.w_o(y * F.silu(gate)))  # (B, T, d_model)

    def convolve(self, inner: Tensor, cache: StateCache | None, layer: int) -> Tensor:
        """(B, T, E) -> (B, T, E): each channel mixes its last few values."""
        past = None if cache is None else cache.pasts[layer].clone()  # (B, W - 1, E)
        if cache is not None:
            cache.pasts[layer] = torch.cat([past, inner.detach()], dim=1)[:, inner.shape[1] :]
        return causal_convolution(inner, self.kernel, past) + self.kernel_bias

    def parameters_at(self, inner: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Δ (B, T, E), B and read (B, T, 1, N) of every token; without selection one (E, N) each for all of them."""
        if not self.selective:
            return F.softplus(self.step_bias).expand_as(inner), self.b, self.c
        low, b, c = self.w_select(inner).split([self.rank, self.d_state, self.d_state], dim=-1)
        return F.softplus(self.w_step(low) + self.step_bias), b[:, :, None], c[:, :, None]

    def run(self, decay: Tensor, write: Tensor, cache: StateCache | None, layer: int) -> Tensor:
        """All states (B, T, E, N), from the cached one on; the last is kept."""
        state = torch.zeros_like(write[:, 0]) if cache is None else cache.states[layer].clone()  # (B, E, N)
        states = scan(decay, write, state)  # (B, T, E, N)
        if cache is not None:
            cache.states[layer] = states[:, -1].detach()
        return states


def padding_of(mask: Tensor | None, length: int) -> Tensor | None:
    """Which of the new tokens are real, (B, T, 1), from a mask (B, 1, T_q, T_k): the last query sees all of them."""
    if mask is None or mask.dim() < 4:
        return None
    return mask[:, 0, -1, -length:, None]  # (B, T, 1)


class SSMTransformer(Transformer):
    """A stack of the core's blocks with a recurrence in place of attention."""

    cache_kind = StateCache

    def __init__(self, cfg: SSMConfig):
        super().__init__(cfg)
        for block in self.blocks:
            block.attention = SelectiveSSM(cfg)
        self.initialize()

    def initialize(self, std: float = 0.02) -> None:
        super().initialize(std)
        for layer in self.modules():
            if isinstance(layer, SelectiveSSM):
                layer.initialize()

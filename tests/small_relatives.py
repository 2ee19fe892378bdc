"""Small relatives for the tests, in which no two sizes coincide."""

import torch

from transformer_lib.config import TransformerConfig
from transformer_lib.relatives.masked_encoder import MaskedTransformer
from transformer_lib.relatives.mla import MLAConfig, MLATransformer
from transformer_lib.relatives.moe import MoEConfig, MoETransformer
from transformer_lib.relatives.ssm import SSMConfig, SSMTransformer

SIZES = {"vocab_size": 29, "d_model": 24, "n_layers": 2, "d_ff": 40, "max_seq_len": 19}
MLA = MLAConfig(**SIZES, n_heads=6, head_dim=8, d_latent=10, d_rope=4)
MOE = MoEConfig(**SIZES, n_heads=6, n_kv_heads=2, head_dim=8, n_experts=5, n_active=2)
SSM = SSMConfig(**SIZES, d_inner=14, d_state=3, conv_width=4)
MASKED = TransformerConfig(**SIZES, n_heads=6, n_kv_heads=2, head_dim=8, causal=False)
CAUSAL = {"mla": (MLATransformer, MLA), "moe": (MoETransformer, MOE), "ssm": (SSMTransformer, SSM)}


def build(kind, cfg, seed: int = 0):
    """A model in which every number is random, biases and norms too."""
    model, generator = kind(cfg).eval(), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            neutral = 1.0 if "norm.weight" in name else 0.0
            weight.copy_(neutral + 0.3 * torch.randn(weight.shape, generator=generator))
    return model


def build_causal(name: str, **changes):
    kind, cfg = CAUSAL[name]
    return build(kind, cfg.replace(**changes))


def build_masked(**changes) -> MaskedTransformer:
    return build(MaskedTransformer, MASKED.replace(**changes))

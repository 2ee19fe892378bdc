"""The shape of a Transformer: one frozen dataclass, and the shapes of five known models.

Every default is the choice of Llama 2 (Touvron et al., 2023). Set the fields of `PRESETS["paper-base"]` to see
what "Attention Is All You Need" (Vaswani et al., 2017) chose instead.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from transformer_lib.values import is_number, shown

CHOICES = {
    "positions": ("rope", "sinusoidal", "learned", "alibi", "none"),
    "norm": ("rmsnorm", "layernorm"),
    "norm_position": ("pre", "post"),
    "activation": ("swiglu", "gelu", "relu"),
}
COUNTS = ("vocab_size", "d_model", "n_layers", "n_heads", "max_seq_len", "d_ff_multiple")
OPTIONAL_COUNTS = ("n_kv_heads", "head_dim", "d_ff")
# What is beyond is a slip, and would end in an overflow or never.
LARGEST, LARGEST_NUMBER, MOST_LAYERS = 2**31 - 1, 10**15, 10_000
FLAGS = ("bias", "tie_embeddings", "causal", "embedding_scale", "scale_scores", "residual")


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """Everything that decides a Transformer's shape and arithmetic.

    vocab_size: number of token ids, V.             d_model: width of the residual stream.
    n_layers: number of blocks, L.                  n_heads: query heads per block, H.
    n_kv_heads: key/value heads (None: n_heads; fewer is grouped-query attention; 1 is multi-query attention).
    head_dim: width of one head, d_k (None: d_model / n_heads).
    d_ff: hidden width of the MLP (None: 4 d_model, or two thirds of it for SwiGLU, rounded up to d_ff_multiple).
    max_seq_len: the longest sequence, in tokens.
    positions: "rope" | "sinusoidal" | "learned" | "alibi" | "none".
    norm: "rmsnorm" | "layernorm".
    norm_position: "pre" | "post".                           activation: "swiglu" | "gelu" | "relu".
    bias: biases in the linear layers.              tie_embeddings: the unembedding is the embedding table.
    causal: position t sees positions up to t.      rope_theta: base of the rotary frequencies.
    norm_eps: added inside the root of a norm.      dropout: share of numbers dropped while training.
    embedding_scale: multiply embeddings by √d_model (the 2017 paper, section 3.4).
    scale_scores, residual: False breaks the model on purpose, for lessons 03 and 06.
    n_encoder_layers: blocks of the encoder; 0 for every model but `EncoderDecoder`.
    rope_scaling: None, or Llama 3.1's four numbers (factor, low_freq_factor, high_freq_factor,
    original_max_seq_len): see `positions.stretch`.

    Raises ValueError, with the values, for a shape that cannot be.
    """

    vocab_size: int
    d_model: int
    n_layers: int
    n_heads: int
    n_kv_heads: int | None = None
    head_dim: int | None = None
    d_ff: int | None = None
    max_seq_len: int
    positions: str = "rope"
    norm: str = "rmsnorm"
    norm_position: str = "pre"
    activation: str = "swiglu"
    bias: bool = False
    tie_embeddings: bool = False
    causal: bool = True
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    dropout: float = 0.0
    d_ff_multiple: int = 1
    embedding_scale: bool = False
    scale_scores: bool = True
    residual: bool = True
    n_encoder_layers: int = 0
    rope_scaling: tuple[float, float, float, int] | None = None

    def __post_init__(self):
        self._check_types()
        self._check_rope_scaling()
        self._check_shape()

    @property
    def d_k(self) -> int:
        """Width of one head."""
        return self.head_dim or self.d_model // self.n_heads

    @property
    def kv_heads(self) -> int:
        """Number of key/value heads."""
        return self.n_kv_heads or self.n_heads

    @property
    def ff_width(self) -> int:
        """Hidden width of the MLP."""
        if self.d_ff is not None:
            return self.d_ff
        # SwiGLU has three matrices where the others have two: two thirds of the width keep the count (Shazeer, 2020).
        width = 8 * self.d_model // 3 if self.activation == "swiglu" else 4 * self.d_model
        return -(-width // self.d_ff_multiple) * self.d_ff_multiple

    def replace(self, **changes) -> TransformerConfig:
        """A copy with some fields changed, checked again."""
        known = {field.name for field in fields(self)}
        for name in changes:
            if name not in known:
                raise ValueError(f"TransformerConfig has no field {name!r}; its fields are {', '.join(sorted(known))}.")
        return replace(self, **changes)

    def _check_types(self):
        for name in (*COUNTS, *OPTIONAL_COUNTS, "n_encoder_layers"):
            value, least = getattr(self, name), 0 if name == "n_encoder_layers" else 1
            if value is None and name in OPTIONAL_COUNTS:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"{name} must be a whole number of at least {least}; got {shown(value)}.")
            most = MOST_LAYERS if name.endswith("_layers") else LARGEST
            if value > most:
                raise ValueError(f"{name} must be at most {most:,}; got {shown(value)}.")
        for name, allowed in CHOICES.items():
            value = getattr(self, name)
            if not isinstance(value, str) or value not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}; got {shown(value)}.")
        for name in FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be True or False; got {shown(getattr(self, name))}.")
        for name in ("rope_theta", "norm_eps", "dropout"):
            value = getattr(self, name)
            if not is_number(value, (int, float)) or not 0 <= value <= LARGEST_NUMBER:
                raise ValueError(f"{name} must be a finite number from 0 to {LARGEST_NUMBER:,}; got {shown(value)}.")
        if not self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1; got {self.dropout}.")
        if self.rope_theta == 0:
            raise ValueError("rope_theta must be above 0; got 0.")

    def _check_rope_scaling(self):
        if self.rope_scaling is None:
            return
        values = tuple(self.rope_scaling) if isinstance(self.rope_scaling, (tuple, list)) else ()
        if (
            len(values) != 4
            or not all(is_number(value, (int, float)) and value > 0 for value in values)
            or values[0] < 1
            or values[1] >= values[2]
        ):
            raise ValueError(
                "rope_scaling must be None or (factor, low_freq_factor, high_freq_factor, original_max_seq_len), with "
                f"a factor of at least 1 and low_freq_factor below high_freq_factor; got {shown(self.rope_scaling)}."
            )
        object.__setattr__(self, "rope_scaling", values)  # a list, as JSON has it, would make the config unhashable

    def _check_shape(self):
        if self.head_dim is None and self.d_model % self.n_heads:
            raise ValueError(
                f"d_model={self.d_model} cannot be split into n_heads={self.n_heads} heads of equal width; "
                f"choose a d_model that n_heads divides, or set head_dim."
            )
        if self.n_heads % self.kv_heads:
            raise ValueError(
                f"n_heads={self.n_heads} query heads cannot share n_kv_heads={self.n_kv_heads} key/value heads "
                f"equally; choose an n_kv_heads that divides n_heads."
            )
        if self.positions == "rope" and self.d_k % 2:
            raise ValueError(f"RoPE rotates pairs of numbers, so the head width must be even; got d_k={self.d_k}.")
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise ValueError(
                f"sinusoidal positions come in pairs, so d_model must be even; got d_model={self.d_model}."
            )


PRESETS = {
    # Vaswani et al. (2017), table 3, "base"; 37,000 shared byte-pair entries.
    "paper-base": TransformerConfig(
        vocab_size=37_000, d_model=512, n_layers=6, n_encoder_layers=6, n_heads=8, d_ff=2048, max_seq_len=1024,
        positions="sinusoidal", norm="layernorm", norm_position="post", activation="relu", bias=True,
        tie_embeddings=True, embedding_scale=True, dropout=0.1,
    ),
    # Radford et al. (2019).
    "gpt2-small": TransformerConfig(
        vocab_size=50_257, d_model=768, n_layers=12, n_heads=12, max_seq_len=1024,
        positions="learned", norm="layernorm", activation="gelu", bias=True, tie_embeddings=True,
    ),
    # Touvron et al. (2023), 7B.
    "llama2-7b": TransformerConfig(
        vocab_size=32_000, d_model=4096, n_layers=32, n_heads=32, max_seq_len=4096, d_ff_multiple=256,
    ),
    # Allal et al. (2025): the Llama architecture at 135 million parameters.
    "smollm2-135m": TransformerConfig(
        vocab_size=49_152, d_model=576, n_layers=30, n_heads=9, n_kv_heads=3, d_ff=1536, max_seq_len=8192,
        tie_embeddings=True, rope_theta=100_000.0,
    ),
    # The course's own model: see toy.py for how its shape was chosen.
    "toy": TransformerConfig(
        vocab_size=1024, d_model=64, n_layers=2, n_heads=4, head_dim=32, max_seq_len=256, tie_embeddings=True,
    ),
}  # fmt: skip

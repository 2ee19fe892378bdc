"""Small models for the tests, in which no two sizes coincide: a test that mixes two of them up must fail."""

import torch

from transformer_lib import EncoderDecoder, Transformer, TransformerConfig


def small(**changes) -> TransformerConfig:
    """V=29, d_model=24, H=6, H_kv=2, d_k=8 (so H · d_k = 48 ≠ d_model), d_ff=40, L=2."""
    fields = {
        "vocab_size": 29, "d_model": 24, "n_layers": 2, "n_heads": 6, "n_kv_heads": 2, "head_dim": 8, "d_ff": 40,
        "max_seq_len": 19,
    }  # fmt: skip
    return TransformerConfig(**(fields | changes))


def build(cfg: TransformerConfig, seed: int = 0):
    """A model in which every number is random, biases and norms too, and large enough to make attention uneven."""
    model = (EncoderDecoder if cfg.n_encoder_layers else Transformer)(cfg).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            neutral = 1.0 if "norm.weight" in name else 0.0
            weight.copy_(neutral + 0.3 * torch.randn(weight.shape, generator=generator))
    return model


def random_ids(*shape: int, vocab_size: int = 29, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, vocab_size, shape, generator=torch.Generator().manual_seed(seed))


def left_padding(lengths, width: int) -> torch.Tensor:
    """(B, T) bool: row b ends with lengths[b] real tokens."""
    return torch.arange(width) >= width - torch.tensor(lengths)[:, None]


class Letters:
    """A tokenizer: one token per character, 97 ids. Other characters share ids with these, controls included."""

    vocab_size = 97

    def encode(self, text: str) -> list[int]:
        return [ord(letter) % self.vocab_size for letter in text]

    def decode(self, ids) -> str:
        return "".join(chr(i + 97 if i < 26 else i) for i in ids)

    def pieces(self, text: str) -> list[str]:
        return list(text)

"""The Transformer, from first principles: the small library behind the notebooks."""

import os

# Read once, when torch is loaded: on a busy machine, threads that wait for each other give way instead of spinning.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

from transformer_lib.config import PRESETS, TransformerConfig
from transformer_lib.devices import pick_device
from transformer_lib.generation import generate
from transformer_lib.kv_cache import KVCache
from transformer_lib.model import EncoderDecoder, Transformer
from transformer_lib.recording import edit, record

__all__ = [
    "PRESETS",
    "EncoderDecoder",
    "KVCache",
    "Transformer",
    "TransformerConfig",
    "edit",
    "generate",
    "pick_device",
    "record",
]

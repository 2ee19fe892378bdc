"""The Transformer, from first principles: the small library behind the notebooks."""

import os
from importlib import import_module

# Read once, when torch is loaded: on a busy machine, threads that wait for each other give way instead of spinning.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

# Loaded when first used, so that `python -m transformer_lib --help` does not wait for torch.
HOMES = {
    "PRESETS": "config",
    "EncoderDecoder": "model",
    "KVCache": "kv_cache",
    "Transformer": "model",
    "TransformerConfig": "config",
    "edit": "recording",
    "generate": "generation",
    "pick_device": "devices",
    "record": "recording",
}
__all__ = list(HOMES)


def __getattr__(name: str):
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

"""Where a model runs, and with how many threads."""

from __future__ import annotations

import torch


def pick_device(name: str | None = None) -> torch.device:
    """The device to use: the one named, or a CUDA GPU where there is one, or the CPU.

    An explicit choice is honoured or refused with a sentence, never replaced. Apple's GPU ("mps") is used only when
    asked for, and after it has computed the same logits as the CPU on a small model.
    """
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise ValueError(f"{name!r} is not a device; use 'cpu', 'cuda', 'cuda:0' … or 'mps'.") from None
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            raise ValueError(f"device {name!r} was asked for, but torch sees {count} CUDA GPUs; use 'cpu'.")
    elif device.type == "mps":
        if not torch.backends.mps.is_available():
            raise ValueError("device 'mps' was asked for, but this machine or this torch has no Apple GPU; use 'cpu'.")
        check_against_cpu(device)
    elif device.type != "cpu":
        raise ValueError(f"device {name!r} is not supported; use 'cpu', 'cuda' or 'mps'.")
    return device


def check_against_cpu(device: torch.device, tolerance: float = 1e-3) -> None:
    """Raise RuntimeError unless a small model gives the same logits and gradients on `device` as on the CPU."""
    from transformer_lib.config import TransformerConfig
    from transformer_lib.model import Transformer

    cfg = TransformerConfig(vocab_size=50, d_model=48, n_layers=2, n_heads=4, n_kv_heads=2, max_seq_len=32)
    model, ids = Transformer(cfg), torch.randint(0, 50, (3, 17))
    model.initialize(std=0.2)
    results = []
    for place in (torch.device("cpu"), device):
        model.to(place).zero_grad()
        logits = model(ids.to(place))  # (3, 17, 50)
        logits.logsumexp(-1).mean().backward()
        results.append((logits.detach().cpu(), model.embedding.weight.grad.cpu()))
    worst = max(float((a - b).abs().max()) for a, b in zip(*results, strict=True))
    if not worst <= tolerance:
        raise RuntimeError(f"{device} computes other numbers than the CPU (difference {worst:.1e}); use the CPU.")

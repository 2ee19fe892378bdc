"""`python -m transformer_lib count llama2-7b n_layers=2`: the parameter table of a config, or what training takes."""

from __future__ import annotations

from dataclasses import fields

from transformer_lib.accounting import flops_per_sequence, gb, in_units, parameter_table, training_memory
from transformer_lib.bench.ceilings import square_rate
from transformer_lib.config import LARGEST, PRESETS, TransformerConfig
from transformer_lib.values import shown

MOST = {"tokens": 1e30, "flops": 1e30, "devices": LARGEST, "batch_size": LARGEST}


def run(options) -> int:
    if options.preset not in PRESETS:
        raise ValueError(f"There is no preset {shown(options.preset)}; choose one of {', '.join(PRESETS)}.")
    cfg = PRESETS[options.preset].replace(**dict(map(parse_change, options.changes)))
    print(training_page(cfg, options) if options.training else parameter_table(cfg))
    return 0


def training_page(cfg: TransformerConfig, options) -> str:
    """The arithmetic of training on sequences of full length, with a copy of the model on every device (DDP)."""
    for name, most in MOST.items():
        value = getattr(options, name)
        if value is not None and not 1 <= value <= most:
            raise ValueError(f"--{name.replace('_', '-')} must be from 1 to {most:,}; got {shown(value)}.")
    length, measured = cfg.max_seq_len, options.flops is None
    memory = training_memory(cfg, length, options.batch_size)
    per_token = 3 * flops_per_sequence(cfg, length).total / length  # the backward pass is worth two forward passes
    rate = square_rate() if measured else options.flops
    per_day = 86_400 * options.devices * rate / per_token
    where = "measured here, with large float32 products: a ceiling" if measured else "as given"
    lines = [
        ("sequences", f"{length:,} tokens, {options.batch_size} per device and step"),
        ("FLOPs per token", f"{flops(per_token)}: three forward passes, attention's own included"),
        ("FLOPs in all", f"{options.tokens * per_token:.2e} for {options.tokens:.3g} tokens"),
        ("memory per device", f"{gb(memory.total)}, in float32 with Adam; every device holds the whole model:"),
        ("", f"weights {gb(memory.weights)}, gradients {gb(memory.gradients)}, Adam's moments {gb(memory.moments)},"),
        ("", f"activations of {options.batch_size * length:,} tokens {gb(memory.activations)}"),
        ("one device", f"{flops(rate)} per second ({where})"),
        ("tokens per day", f"{per_day:,.0f} on {options.devices:,} device{'s' * (options.devices > 1)}"),
        ("days in all", f"{options.tokens / per_day:,.1f}"),
    ]
    return "\n".join(f"{name:<20}{text}" for name, text in lines)


def flops(number: float) -> str:
    return in_units(number, 1000, ("FLOPs", "kFLOPs", "MFLOPs", "GFLOPs", "TFLOPs", "PFLOPs"))


def parse_change(text: str) -> tuple[str, object]:
    """ "n_layers=2" -> ("n_layers", 2)."""
    name, sign, value = text.partition("=")
    kinds = {field.name: field.type for field in fields(TransformerConfig)}
    if not sign or name not in kinds:
        raise ValueError(f"{shown(text)} is no FIELD=VALUE; the fields are {', '.join(kinds)}.")
    words = {"true": True, "false": False}
    if "None" in kinds[name]:  # positions="none" is a word like any other
        words["none"] = None
    if value.lower() in words:
        return name, words[value.lower()]
    for kind in (int, float):
        try:
            return name, kind(value.replace(",", ""))
        except ValueError:
            continue
    return name, value

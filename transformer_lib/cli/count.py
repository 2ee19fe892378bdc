"""`python -m transformer_lib count llama2-7b n_layers=2`: the parameter table of a config."""

from __future__ import annotations

from dataclasses import fields

from transformer_lib.accounting import parameter_table
from transformer_lib.config import PRESETS, TransformerConfig


def run(options) -> int:
    if options.preset not in PRESETS:
        raise ValueError(f"There is no preset {options.preset!r}; choose one of {', '.join(PRESETS)}.")
    cfg = PRESETS[options.preset].replace(**dict(map(parse_change, options.changes)))
    print(parameter_table(cfg))
    return 0


def parse_change(text: str) -> tuple[str, object]:
    """ "n_layers=2" -> ("n_layers", 2)."""
    name, sign, value = text.partition("=")
    kinds = {field.name: field.type for field in fields(TransformerConfig)}
    if not sign or name not in kinds:
        raise ValueError(f"{text!r} is no FIELD=VALUE; the fields are {', '.join(kinds)}.")
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

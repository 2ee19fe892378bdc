"""`python -m transformer_lib count llama2-7b n_layers=2`: the parameter table of a config."""

from __future__ import annotations

from dataclasses import fields

from transformer_lib.accounting import count_parameters, weight_bytes
from transformer_lib.config import PRESETS, TransformerConfig


def run(options) -> int:
    if options.preset not in PRESETS:
        raise ValueError(f"There is no preset {options.preset!r}; choose one of {', '.join(PRESETS)}.")
    cfg = PRESETS[options.preset].replace(**dict(map(parse_change, options.changes)))
    print(table(cfg))
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


def table(cfg: TransformerConfig) -> str:
    """One line per tensor; blocks of the same shape, all but the first, are left out and counted."""
    count = count_parameters(cfg)
    rows = [(f"{row.part}.{row.tensor}" if row.part else row.tensor, row.shape, row.count) for row in count.rows]
    names = [name for name, _, _ in rows]
    wide = max(map(len, names))
    lines = [f"{'tensor':<{wide}}  {'shape':>16}  {'parameters':>14}"]
    left_out: dict[str, int] = {}
    for name, shape, number in rows:
        stack, _, rest = name.partition("blocks.")
        if rest and not rest.startswith("0."):
            left_out[stack] = left_out.get(stack, 0) + number
            continue
        lines.append(f"{name:<{wide}}  {' × '.join(map('{:,}'.format, shape)):>16}  {number:>14,}")
    for stack, number in left_out.items():
        layers = cfg.n_encoder_layers if stack else cfg.n_layers
        text = f"{stack}blocks.1 to {layers - 1}, alike"
        lines.append(f"{text:<{wide}}  {'':>16}  {number:>14,}")
    size = weight_bytes(cfg, bytes_per_number=2)
    lines += [f"{'total':<{wide}}  {'':>16}  {count.total:>14,}"]
    lines += ["", f"In 16-bit numbers: {size:,} bytes = {size / 2**30:.2f} GiB = {size / 1e9:.2f} GB."]
    return "\n".join(lines)

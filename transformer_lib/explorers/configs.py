"""The config explorer of notebook 09: two configs side by side, and what each field of them costs."""

import ipywidgets as widgets

from transformer_lib.accounting import count_parameters, gb, gib, in_units
from transformer_lib.config import CHOICES, FLAGS, PRESETS, TransformerConfig
from transformer_lib.explorers.base import HtmlExplorer
from transformer_lib.explorers.drawing import Drawing
from transformer_lib.plots.parameters import (
    MEMORY_COLOURS,
    PART_COLOURS,
    flop_parts,
    ink,
    memory_parts,
    parameter_parts,
)
from transformer_lib.plots.style import COLOURS

KEPT = "B as it is now"
PANEL, LEFT, WIDE = 116, 136, 456  # pixels: a pair of bars is so high, and a bar begins there and is so long
UNSET = "unset"  # a slider cannot hold None
COUNTS = ("FLOPs", "kFLOPs", "MFLOPs", "GFLOPs", "TFLOPs", "PFLOPs")
# What a slider offers; the values of the presets are added.
NUMBERS = {
    "vocab_size": (256, 8_192, 65_536, 128_256, 262_144),
    "d_model": (32, 64, 128, 256, 512, 1_024, 2_048, 4_096, 8_192, 16_384),
    "n_layers": (1, 2, 4, 8, 16, 24, 48, 64, 80, 128),
    "n_encoder_layers": (0, 2, 6, 12, 24),
    "n_heads": (1, 2, 4, 6, 8, 16, 32, 64, 128),
    "n_kv_heads": (None, 1, 2, 4, 8, 16),
    "head_dim": (None, 16, 32, 64, 128, 256),
    "d_ff": (None, 128, 512, 2_048, 8_192, 14_336, 28_672),
    "d_ff_multiple": (1, 64, 256, 1_024),
    "max_seq_len": (256, 512, 2_048, 16_384, 32_768, 131_072),
    "rope_theta": (10_000.0, 500_000.0),
    "rope_scaling": (None, (8.0, 1.0, 4.0, 8192)),
    "norm_eps": (1e-6, 1e-5),
    "dropout": (0.0, 0.1, 0.2),
}
FIELDS = (*NUMBERS, *CHOICES, *FLAGS)
DEFAULTS = {"n_kv_heads": "n_heads", "head_dim": "d / H", "d_ff": "from d", "rope_scaling": "none"}


def said(name: str, value) -> str:
    """A field's value in words."""
    if value is None:
        return DEFAULTS[name]
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return f"factor {value[0]:g}"
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 1 else f"{value:g}"
    return f"{value:,}" if isinstance(value, int) else value


def fields_of(cfg: TransformerConfig) -> dict:
    """The value of every field."""
    return {name: getattr(cfg, name) for name in FIELDS}


def set_fields(values: dict) -> dict:
    """The fields' values of what the controls show."""
    return {name: None if value == UNSET else value for name, value in values.items()}


def name_of(values: dict) -> str | None:
    """The preset that has these values of all fields, if any."""
    return next((name for name, cfg in PRESETS.items() if fields_of(cfg) == values), None)


def field_controls(start: dict) -> dict:
    """One control per field of the config."""
    made = {}
    for name, offered in NUMBERS.items():
        known = {getattr(cfg, name) for cfg in PRESETS.values()} | set(offered)
        options = sorted(known, key=lambda value: (value is not None, value))
        pairs = [(said(name, value), UNSET if value is None else value) for value in options]
        made[name] = widgets.SelectionSlider(
            options=pairs, value=pairs[options.index(start[name])][1], description=name
        )
    for name, options in CHOICES.items():
        made[name] = widgets.ToggleButtons(options=options, value=start[name], description=name)
    for name in FLAGS:
        made[name] = widgets.Checkbox(start[name], description=name)
    return made


class ConfigComparison(HtmlExplorer):
    """Config A is a preset (or a kept B); the fields below belong to B, and a preset for B sets them all."""

    def __init__(self, a: str, b: str):
        self.kept, self.busy = fields_of(PRESETS[b]), False
        places = [(f"{n:,}", n) for n in (1, 128, 1_024, 4_096, 8_192, 25_204, 32_768, 131_072)]
        controls = {
            "a": widgets.ToggleButtons(options=[*PRESETS, KEPT], value=a, description="A"),
            "b": widgets.ToggleButtons(options=list(PRESETS), value=b, description="B"),
            "equal": widgets.Checkbox(True, description="all bars of equal length"),
            "tokens": widgets.SelectionSlider(options=places, value=1_024, description="tokens"),
            "batch": widgets.IntSlider(1, 1, 64, description="sequences in a batch"),
            **field_controls(self.kept),
        }
        super().__init__(
            self.compare, controls, title="Two configs: numbers, arithmetic, memory", name="compare_configs"
        )
        for name in NUMBERS:
            controls[name].layout.width = "21em"

    def fields(self) -> dict:
        """B's value of every field."""
        return set_fields({name: self.controls[name].value for name in FIELDS})

    def _follow(self, change=None) -> None:
        """A preset for B moves many controls: draw once, when all have moved."""
        if self.busy:
            return
        self.busy = True
        try:
            moved = change["owner"] if change else None
            if moved is self.controls["a"] and moved.value == KEPT:
                self.kept = self.fields()
            if moved is self.controls["b"] and moved.value:
                for name, value in fields_of(PRESETS[moved.value]).items():
                    self.controls[name].value = UNSET if value is None else value
            self.controls["b"].value = name_of(self.fields())
            super()._follow(change)
        finally:
            self.busy = False

    def compare(self, a, b, equal, tokens, batch, **fields) -> tuple[Drawing, str]:
        """The picture and its summary; fields: B's value of every field."""
        sides = {"A": self.kept if a == KEPT else fields_of(PRESETS[a]), "B": set_fields(fields)}
        names = {side: name_of(values) or "your own" for side, values in sides.items()}
        configs, refused = {}, {}
        for side, values in sides.items():
            try:
                configs[side] = TransformerConfig(**values)
            except ValueError as error:
                configs[side], refused[side] = None, str(error)
        labels = {side: f"{side}  {names[side]}" for side in sides}
        drawing, totals = comparison_drawing(configs, labels, sides, refused, equal, tokens, batch)
        return drawing, " ".join(
            f"{side} {names[side]}: " + (f"not possible. {refused[side]}" if side in refused else f"{totals[side]}.")
            for side in sides
        )


def compare_configs(a: str = "llama2-7b", b: str = "gpt2-small") -> ConfigComparison:
    """Two configs side by side: where the numbers sit, what one token costs, what training needs."""
    return ConfigComparison(a, b)


def comparison_drawing(configs, labels, sides, refused, equal, tokens, batch) -> tuple[Drawing, dict]:
    """Three pairs of bars and the table of fields; and each side's totals in words.

    configs: {side: config, or None where it cannot be}; labels: {side: words}; sides: {side: values of all fields}.
    """
    valid = {side: cfg for side, cfg in configs.items() if cfg is not None}
    long = f"{tokens:,} token" + ("s" if tokens > 1 else "")
    panels = (
        ("Parameters", {s: parameter_parts(c) for s, c in valid.items()}, PART_COLOURS, lambda n: (f"{n:,}", "")),
        (f"FLOPs of the forward pass of token number {tokens:,}",
         {s: flop_parts(c, tokens) for s, c in valid.items()}, PART_COLOURS, lambda n: (in_units(n, 1000, COUNTS), "")),
        (f"Memory to train in 32 bits with Adam, {batch} × {long}",
         {s: memory_parts(c, tokens, batch) for s, c in valid.items()}, MEMORY_COLOURS, lambda n: (gb(n), gib(n))),
    )  # fmt: skip
    drawing = Drawing(800, 3 * PANEL + 20 * (len(FIELDS) // 2) + 44)
    for i, (heading, rows, colours, words) in enumerate(panels):
        bar_pair(drawing, 4 + PANEL * i, heading, rows, labels, colours, words, equal)
    for i, side in enumerate(labels):
        if side in refused:
            cut = refused[side][:70] + ("…" if len(refused[side]) > 70 else "")
            drawing.text(LEFT, 43 + 30 * i, f"✗ {cut}", anchor="start", colour=COLOURS["red"])
    short = " and ".join(side for side, cfg in valid.items() if cfg.max_seq_len < tokens)
    if short:
        drawing.text(794, PANEL + 100, f"too long for {short}", anchor="end", colour=COLOURS["red"])
    field_table(drawing, 3 * PANEL + 18, sides)
    totals = {}
    for side, cfg in valid.items():
        flops, memory = sum(panels[1][1][side].values()), sum(panels[2][1][side].values())
        totals[side] = (
            f"{count_parameters(cfg).total:,} parameters, {in_units(flops, 1000, COUNTS)} for token {tokens:,}, "
            f"{gb(memory)} to train"
        )
    return drawing, totals


def bar_pair(drawing, top, heading, rows, labels, colours, words, equal) -> None:
    """A bar for each side, cut into parts, with its total at the right and a legend below."""
    drawing.text(6, top + 12, heading, anchor="start", bold=True)
    sums = {side: sum(parts.values()) for side, parts in rows.items()}
    if len(sums) == 2:
        drawing.text(794, top + 12, f"B is {times(sums['B'] / sums['A'])} A", anchor="end")
    for i, (side, label) in enumerate(labels.items()):
        y = top + 26 + 30 * i
        drawing.text(6, y + 13, label, anchor="start")
        if side not in rows:
            continue
        x, scale = LEFT, WIDE / (sums[side] if equal else max(sums.values()))
        for part, size in rows[side].items():
            if size:
                share, w = size / sums[side], size * scale
                drawing.rect(x, y, w, 26, fill=colours[part], stroke="#FFFFFF" if w > 2 else "none",
                             hover=f"{label}: {part} {words(size)[0]} ({share:.1%})")  # fmt: skip
                if w > 40:
                    drawing.text(x + w / 2, y + 13, f"{share:.0%}", colour=ink(colours[part]))
                x += w
        first, second = words(sums[side])
        drawing.text(794, y + 13, f"{first} = {second}" if second else first, anchor="end", bold=not second)
    x = LEFT
    for part in [part for part in colours if any(parts.get(part) for parts in rows.values())]:
        drawing.rect(x, top + 89, 13, 13, fill=colours[part])
        drawing.text(x + 18, top + 96, part, anchor="start")
        x += 38 + 8.4 * len(part)


def times(ratio: float) -> str:
    """A ratio in three digits: "0.018 ×", "1.3 ×", "54 ×"."""
    if abs(ratio - 1) < 5e-4:
        return "as large as" if ratio == 1 else f"{ratio:.6f} ×"
    return f"{ratio:,.0f} ×" if ratio >= 100 else f"{ratio:.3g} ×" if ratio >= 1e-3 else f"{ratio:.1e} ×"


def field_table(drawing, top, sides) -> None:
    """Every field in two columns; where B differs from A its value stands out."""
    half = len(FIELDS) // 2
    for column in (0, 1):
        x = 6 + 400 * column
        drawing.text(x, top, "field", anchor="start", bold=True)
        drawing.text(x + 146, top, "A", anchor="start", bold=True)
        drawing.text(x + 264, top, "B", anchor="start", bold=True)
        for i, name in enumerate(FIELDS[half * column : half * (column + 1)]):
            y = top + 22 + 20 * i
            a, b = sides["A"][name], sides["B"][name]
            if a != b:
                drawing.rect(x - 4, y - 10, 394, 20, fill="#FFF1CC")
            drawing.text(x, y, name, anchor="start")
            drawing.text(x + 146, y, said(name, a), anchor="start")
            drawing.text(x + 264, y, said(name, b), anchor="start", bold=a != b)

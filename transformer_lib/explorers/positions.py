"""Explorers of notebook 01 on position: the frequencies of sinusoids, and RoPE as clocks."""

import math

import ipywidgets as widgets
import torch

from transformer_lib.explorers.base import Explorer
from transformer_lib.plots.positions_panels import RopeClock, SinusoidLab
from transformer_lib.positions import rotate, rotation

N_POSITIONS, D_MODEL, D_K = 128, 64, 8


def waves(positions, d_model: int, base: float) -> torch.Tensor:
    """`positions.sinusoids` with any base in the place of 10,000. Returns (T, d_model)."""
    cos, sin = rotation(positions, d_model, base)  # (T, d_model / 2) each: the same angles as RoPE's
    return torch.stack([sin, cos], dim=-1).flatten(-2)  # (T, d_model)


def sinusoid_lab() -> Explorer:
    """The table of sinusoids for any base: one pair of columns as waves, one row against all others."""

    def build(fig):
        lab = SinusoidLab(fig, N_POSITIONS, D_MODEL)

        def update(position, pair, base):
            table = waves(torch.arange(N_POSITIONS), D_MODEL, base)  # (T, d_model)
            lab.set(table.numpy(), position, pair)
            angle = base ** (-2 * pair / D_MODEL)
            other = position + 8 if position + 8 < N_POSITIONS else position - 8
            return (
                f"Pair {pair} turns {angle:.2g} radians per position: once around in {2 * math.pi / angle:,.1f} "
                f"positions. Row {position} · row {other} = {float(table[position] @ table[other]):.2f}, "
                f"row 0 · row 8 = {float(table[0] @ table[8]):.2f}."
            )

        return update

    controls = {
        "position": widgets.IntSlider(20, 0, N_POSITIONS - 1, description="position"),
        "pair": widgets.IntSlider(6, 0, D_MODEL // 2 - 1, description="pair"),
        "base": widgets.FloatLogSlider(1e4, base=10, min=1, max=6, step=0.5, description="base", readout_format=",.0f"),
    }
    title = "Fast waves tell neighbours apart, slow ones tell far places apart"
    return Explorer(build, controls, title=title, name="sinusoid_lab", figsize=(8, 4.6))


def placed(vector: torch.Tensor, position: int, base: float) -> torch.Tensor:
    """One query or key (d_k,) turned for its position by the library's RoPE, as (d_k / 2, 2): one row per pair."""
    cos, sin = rotation(torch.tensor([position]), len(vector), base)  # (1, d_k / 2)
    return rotate(vector[None], cos, sin)[0].view(2, -1).T  # (d_k / 2, 2): pair i is (i, i + d_k / 2)


def rope_clock() -> Explorer:
    """A query at position m and a key at position n as hands on clocks: the score follows m − n alone."""
    generator = torch.Generator().manual_seed(4)
    start = torch.cat([torch.ones(D_K // 2), torch.zeros(D_K // 2)])  # every hand points right, length 1
    turns = 2 * math.pi * torch.rand(D_K // 2, generator=generator)
    keys = {"same as the query": start, "another": torch.cat([turns.cos(), turns.sin()])}

    def build(fig):
        picture = RopeClock(fig, D_K // 2)
        distances = torch.from_numpy(picture.distances)

        def update(m, n, both, key, base):
            q, k = placed(start, m + both, base), placed(keys[key], n + both, base)  # (4, 2) each
            old_q, old_k = placed(start, m, base), placed(keys[key], n, base)
            cos, sin = rotation(distances, D_K, base)  # (N, 4)
            scores = rotate(start.expand(len(distances), -1), cos, sin) @ keys[key]  # (N,): the key at position 0
            degrees = [math.degrees(base ** (-2 * i / D_K)) for i in range(D_K // 2)]
            picture.set(q.numpy(), k.numpy(), old_q.numpy(), old_k.numpy(), degrees, scores.numpy(), m - n)
            return (
                f"Query at {m + both}, key at {n + both}: distance {m - n}, score {float((q * k).sum()):.3f}. "
                f"At {m} and {n} it is {float((old_q * old_k).sum()):.3f}."
            )

        return update

    controls = {
        "m": widgets.IntSlider(9, 0, 120, description="position m of the query"),
        "n": widgets.IntSlider(6, 0, 120, description="position n of the key"),
        "both": widgets.IntSlider(0, 0, 500, description="move both by"),
        "key": widgets.ToggleButtons(options=list(keys), description="key"),
        "base": widgets.FloatLogSlider(1e4, base=10, min=1, max=6, step=0.5, description="base", readout_format=",.0f"),
    }
    title = "Both hands turn (query blue, key orange); the angle between stays"
    return Explorer(build, controls, title=title, name="rope_clock", figsize=(8, 5.4))

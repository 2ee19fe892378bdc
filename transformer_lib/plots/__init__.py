"""Pictures of the course: pure functions that return a matplotlib `Figure`, one module per lesson, in one style."""

from transformer_lib.plots.blockmap import block_map
from transformer_lib.plots.style import (
    COLOURS,
    CYCLE,
    DIVERGING,
    SEQUENTIAL,
    Picture,
    new_figure,
    projector,
    show,
)
from transformer_lib.plots.tokens import Heat, heat, readable, token_ticks

__all__ = [
    "COLOURS",
    "CYCLE",
    "DIVERGING",
    "SEQUENTIAL",
    "Heat",
    "Picture",
    "block_map",
    "heat",
    "new_figure",
    "projector",
    "readable",
    "show",
    "token_ticks",
]

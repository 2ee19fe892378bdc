"""Named intermediates: every layer says what it computes, and nobody pays for it unless somebody listens.

A layer calls `x = self.tap("name", x)`. Without a listener this returns `x` at once. `recording.py` attaches listeners,
which read the tensor or replace it. The layers know nothing of who listens.
"""

from __future__ import annotations

from torch import Tensor, nn


class Tapped(nn.Module):
    """A module whose intermediates have names. `TAPS` lists them, in the order in which they are computed."""

    TAPS: tuple[str, ...] = ()
    listener = None  # a function (name, tensor) -> tensor, set on the instance while somebody listens

    def tap(self, name: str, value: Tensor) -> Tensor:
        """Offer `value` to the listener under `name`; returns it, or what the listener put in its place."""
        return value if self.listener is None else self.listener(name, value)

    def taps(self) -> tuple[str, ...]:
        """The names that this instance really offers."""
        return self.TAPS

"""Explorers of notebook 07 that need no model: one family of curves, and one gated neuron on a plane.

The two that look into the toy stand in `explorers/neurons.py`.
"""

import math

import ipywidgets as widgets
import torch
import torch.nn.functional as F

from transformer_lib.explorers.base import Explorer
from transformer_lib.plots.style import COLOURS
from transformer_lib.plots.tokens import heat

REACH = 2.0  # the plane's half width
KINDS = ("ReLU", "GELU", "SwiGLU")


def swish(x: torch.Tensor, beta: float) -> torch.Tensor:
    """x · σ(βx), the family that holds SiLU (β = 1; Ramachandran et al., 2017)."""
    return x * torch.sigmoid(beta * x)


def activation_family() -> Explorer:
    """Bend x · σ(βx) from a straight line to ReLU."""
    grid = torch.linspace(-4, 4, 321, dtype=torch.float64)

    def build(fig):
        left, right = fig.subplots(1, 2, width_ratios=(1.25, 1))
        left.plot(grid, F.relu(grid), color=COLOURS["grey"], lw=1.4, ls="--", label="ReLU")
        left.plot(grid, F.gelu(grid), color=COLOURS["orange"], lw=1.4, ls="-.", label="GELU")
        (curve,) = left.plot(grid, grid, color=COLOURS["blue"], lw=2.6, label="x · σ(βx)")
        (tangent,) = left.plot([], [], color=COLOURS["red"], lw=1.4, label="slope at x")
        (point,) = left.plot([], [], "o", color=COLOURS["red"], ms=8)
        left.set(xlim=(-4, 4), ylim=(-1.2, 4), xlabel="x", ylabel="φ(x)", title="the curve")
        left.legend(loc="upper left")
        (gate,) = right.plot(grid, grid, color=COLOURS["blue"], lw=2.6)
        (open_,) = right.plot([], [], "o", color=COLOURS["red"], ms=8)
        right.set(xlim=(-4, 4), ylim=(-0.04, 1.04), xlabel="x", ylabel="σ(βx)", title="how far the gate is open")

        def update(beta, x):
            at = torch.tensor(x, dtype=torch.float64, requires_grad=True)
            value = swish(at, beta)
            (slope,) = torch.autograd.grad(value, at)
            height, slope, share = float(value.detach()), float(slope), 1 / (1 + math.exp(-beta * x))
            line = swish(grid, beta)
            curve.set_ydata(line)
            tangent.set_data([x - 1, x + 1], [height - slope, height + slope])
            point.set_data([x], [height])
            gate.set_ydata(torch.sigmoid(beta * grid))
            open_.set_data([x], [share])
            relu, gelu = (float((line - f(grid)).abs().max()) for f in (F.relu, F.gelu))
            return (
                f"β = {beta:.2f}, x = {x:.1f}: the gate is {share:.2f} open, φ = {height:.2f}, slope {slope:.2f}. "
                f"Largest distance to ReLU {relu:.2f}, to GELU {gelu:.2f}."
            ).replace("-", "−")

        return update

    controls = {
        "beta": widgets.FloatLogSlider(1.0, min=-1, max=1.7, step=0.02, readout_format=".2f", description="β"),
        "x": widgets.FloatSlider(-1.0, min=-4, max=4, step=0.1, description="x"),
    }
    title = "A gate that x opens for itself: from half open everywhere to ReLU"
    return Explorer(build, controls, title=title, name="activation_family", figsize=(8, 3.6))


def direction(degrees: float) -> torch.Tensor:
    """(2,): the unit vector at this angle from the first axis, anticlockwise."""
    angle = torch.deg2rad(torch.tensor(float(degrees), dtype=torch.float64))
    return torch.stack((angle.cos(), angle.sin()))


def neuron(kind: str, gate: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """The activation of one hidden neuron whose two projections of the input are `gate` and `value`, any shape."""
    if kind == "ReLU":
        return F.relu(gate)
    return F.gelu(gate) if kind == "GELU" else F.silu(gate) * value


def gate() -> Explorer:
    """One hidden neuron over a plane of inputs: what its gate lets through."""
    axis = torch.linspace(-REACH, REACH, 81, dtype=torch.float64)
    x, y = torch.meshgrid(axis, axis, indexing="xy")
    plane = torch.stack((x, y), dim=-1)  # (81, 81, 2)

    def build(fig):
        left, right = fig.subplots(1, 2, width_ratios=(1.15, 1))
        drawn = heat(left, torch.zeros(81, 81), xlabel="x₁", ylabel="x₂", limits=(-6, 6), diverging=True,
                     numbers=False, title="activation h at every input", colorbar="")  # fmt: skip
        drawn.image.set_extent((-REACH, REACH, -REACH, REACH))
        left.set(aspect="equal", xticks=range(-2, 3), yticks=range(-2, 3), xlim=(-2, 2), ylim=(-2, 2))
        arrows = [left.plot([], [], "-", lw=3, color=COLOURS[c])[0] for c in ("black", "green")]
        heads = [left.text(0, 0, w, color=COLOURS[c], weight="bold", ha="center", va="center")
                 for w, c in (("w₁", "black"), ("w₃", "green"))]  # fmt: skip
        styles = ((-2.0, "blue", ":"), (0.5, "sky", "--"), (2.0, "red", "-"))
        lines = [right.plot([], [], ls, color=COLOURS[c], label=f"w₁·x = {g:g}".replace("-", "−"))[0]
                 for g, c, ls in styles]  # fmt: skip
        right.set(xlim=(-2, 2), ylim=(-4, 4), xlabel="w₃·x", ylabel="h", title="the gate w₁·x sets the slope")
        right.axhline(0, color="#BBBBBB", lw=1, zorder=0)
        right.legend(loc="upper left")

        def update(kind, gate_angle, value_angle, strength):
            w_1, w_3 = strength * direction(gate_angle), direction(value_angle)
            h = neuron(kind, plane @ w_1, plane @ w_3)  # (81, 81)
            drawn.set(h.flip(0).numpy())  # the first row of an image is its top
            for arrow, head, w, shown in zip(
                arrows, heads, (w_1 / strength, w_3), (True, kind == "SwiGLU"), strict=True
            ):
                end = (1.3 * w).tolist()
                arrow.set_data([0, end[0] if shown else 0], [0, end[1] if shown else 0])
                head.set(position=(1.25 * end[0], 1.25 * end[1]), visible=shown)
            for line, (g, _, _) in zip(lines, styles, strict=True):
                line.set_data(axis, neuron(kind, torch.full_like(axis, g), axis))
            quiet = float((h.abs() < 0.1).double().mean())
            negative = float((h < -0.1).double().mean())
            return (
                f"{kind}: nearly silent (|h| < 0.1) on {quiet:.0%} of the square, negative on {negative:.0%}; "
                f"from {float(h.min()):.2f} to {float(h.max()):.2f}."
            ).replace("-", "−")

        return update

    controls = {
        "kind": widgets.ToggleButtons(options=KINDS, value="SwiGLU", description="neuron"),
        "gate_angle": widgets.IntSlider(30, -180, 180, 5, description="turn w₁, the gate (°)"),
        "value_angle": widgets.IntSlider(120, -180, 180, 5, description="turn w₃ (°)"),
        "strength": widgets.FloatSlider(2.0, min=0.5, max=6, step=0.5, description="length of w₁"),
    }
    title = "One neuron: where it is open, and what it lets through"
    return Explorer(build, controls, title=title, name="gate", figsize=(8, 3.9))

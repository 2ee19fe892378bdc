"""Look inside a forward pass: `record` reads every named intermediate, `edit` changes one.

    with record(model) as seen:
        model(ids)
    seen["blocks.0.attention.weights"]                        # (B, H, T_q, T_k)

    with edit(model, {"blocks.0.attention.heads": zero_head(2)}):
        model(ids)                                            # as if head 2 of block 0 wrote nothing

While either is active, attention runs in the open (`attention.scaled_dot_product_attention`), not fused.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from contextlib import contextmanager

from torch import Tensor, nn

from transformer_lib.taps import Tapped

Edit = Callable[[Tensor], Tensor]


def tap_names(model: nn.Module) -> list[str]:
    """Every name that `record` fills and `edit` takes, for this model."""
    return [join(path, name) for path, layer in tapped_layers(model) for name in layer.taps()]


class Recording(dict):
    """The tensors of the last forward pass, by name. A wrong name is answered with the nearest right ones."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.names = tap_names(model)

    def __missing__(self, name: str):
        if name in self.names:
            raise KeyError(f"{name!r} is not recorded yet: run the model inside `with record(model)`.")
        raise KeyError(unknown_name(name, self.names))


@contextmanager
def record(model: nn.Module, grad: bool = False):
    """Yields a dict that every forward pass of `model` inside the block fills: name -> tensor.

    Copies are detached, and a second forward overwrites the first. With grad=True the live tensors are kept instead,
    and after a backward pass each has its `.grad`.
    """
    seen = Recording(model)

    def read(name: str, value: Tensor) -> Tensor:
        if grad and value.requires_grad:
            value.retain_grad()
        seen[name] = value if grad else value.detach().clone()
        return value

    with listening(model, read, first=False):
        yield seen


@contextmanager
def edit(model: nn.Module, changes: dict[str, Edit]):
    """Inside the block, every tensor named in `changes` is replaced by what its function returns.

    A function gets a copy of the tensor and returns one of the same shape; everything downstream sees the new one, and
    so does `record`. Raises KeyError for an unknown name, ValueError for another shape.
    """
    names = tap_names(model)
    for name in changes:
        if name not in names:
            raise KeyError(unknown_name(name, names))

    def change(name: str, value: Tensor) -> Tensor:
        if name not in changes:
            return value
        new = changes[name](value.clone())  # in-place changes are allowed: the original may be a view of the KV cache
        if not isinstance(new, Tensor) or new.shape != value.shape:
            got = tuple(new.shape) if isinstance(new, Tensor) else type(new).__name__
            raise ValueError(f"the edit of {name!r} must return a tensor of shape {tuple(value.shape)}; got {got}.")
        return new

    with listening(model, change, first=True):
        yield


def zero(value: Tensor) -> Tensor:
    """An edit: nothing is written."""
    return value * 0


def zero_head(*heads: int) -> Edit:
    """An edit of "….heads", (B, T, H, d_k): these heads write nothing."""

    def change(value: Tensor) -> Tensor:
        value[:, :, list(heads)] = 0
        return value

    return change


@contextmanager
def listening(model: nn.Module, listener: Callable[[str, Tensor], Tensor], first: bool):
    """Attach `listener` to every layer, under full names, and take it away at the end, whatever happened inside."""
    layers = tapped_layers(model)
    before = [layer.listener for _, layer in layers]
    for (path, layer), earlier in zip(layers, before, strict=True):
        layer.listener = chain(path, listener, earlier, first)
    try:
        yield
    finally:
        for (_, layer), earlier in zip(layers, before, strict=True):
            layer.listener = earlier


def chain(path: str, listener, earlier, first: bool):
    """One listener out of two: edits come first, so that a recording shows what the model really used."""

    def both(name: str, value: Tensor) -> Tensor:
        if earlier is not None and not first:
            value = earlier(name, value)
        value = listener(join(path, name), value)
        return earlier(name, value) if earlier is not None and first else value

    return both


def tapped_layers(model: nn.Module) -> list[tuple[str, Tapped]]:
    return [(path, layer) for path, layer in model.named_modules() if isinstance(layer, Tapped)]


def join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def unknown_name(name: str, names: list[str]) -> str:
    near = difflib.get_close_matches(name, names, n=3) or names[:3]
    return f"no tensor is called {name!r}; near it: {', '.join(near)}; tap_names(model) lists all {len(names)}."

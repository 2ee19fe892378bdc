"""In one sentence, how a learner's result differs from the right one."""

import numbers

import numpy as np
import torch


def difference(got, expected, tolerance: float) -> str | None:
    """None if the two are equal within the tolerance (absolute and relative), else a sentence that says how not."""
    if isinstance(expected, Exception):
        return f"the right answer raises {type(expected).__name__}"
    if _is_array(expected):
        return _array_difference(got, expected, tolerance)
    if isinstance(expected, str | bool | bytes) or expected is None:
        return None if got == expected else f"expected {expected!r}, got {_short(got)}"
    if isinstance(expected, numbers.Number):
        return _number_difference(got, expected, tolerance)
    if isinstance(expected, dict):
        if not isinstance(got, dict) or set(got) != set(expected):
            return f"expected a dictionary with the keys {sorted(map(str, expected))}, got {_short(got)}"
        return _first(difference(got[key], expected[key], tolerance) for key in expected)
    if isinstance(expected, list | tuple):
        return _sequence_difference(got, expected, tolerance)
    return None if got == expected else f"expected {_short(expected)}, got {_short(got)}"


def _is_array(value) -> bool:
    return isinstance(value, torch.Tensor | np.ndarray)


def _first(sentences) -> str | None:
    return next((sentence for sentence in sentences if sentence), None)


def _short(value) -> str:
    if _is_array(value):
        return f"an array of shape {tuple(value.shape)}"
    return _cut(" ".join(repr(value).split()))


def _cut(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}…"


def _numpy(value) -> np.ndarray:
    value = value.detach().cpu() if isinstance(value, torch.Tensor) else value
    if isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16:
        value = value.float()
    return np.asarray(value)


def _array_difference(got, expected, tolerance: float) -> str | None:
    theirs, expected = got, _numpy(expected)
    try:
        got = _numpy(got)
    except (ValueError, TypeError, RuntimeError):
        got = None
    if got is None or got.dtype.kind not in "biuf":
        return f"expected an array of shape {tuple(expected.shape)}, got {_short(theirs)}"
    if got.shape != expected.shape:
        return f"expected the shape {tuple(expected.shape)}, got {tuple(got.shape)}"
    if (expected.dtype == bool) != (got.dtype == bool):
        return f"expected numbers of type {expected.dtype}, got {got.dtype}"
    got, expected = got.astype(float), expected.astype(float)
    if np.isnan(got).any() and not np.isnan(expected).any():
        return "the result contains nan (not a number): somewhere 0/0 or inf − inf is computed"
    if np.allclose(got, expected, rtol=tolerance, atol=tolerance, equal_nan=True):
        return None
    with np.errstate(invalid="ignore"):
        gap = np.nan_to_num(np.abs(got - expected), nan=0.0, posinf=np.inf)
    place = tuple(int(i) for i in np.unravel_index(gap.argmax(), gap.shape))
    at = f" at index {list(place)}" if place else ""
    return f"the shape is right, but the numbers differ: {got[place]:.5g} instead of {expected[place]:.5g}{at}"


def _number_difference(got, expected, tolerance: float) -> str | None:
    if _is_array(got) and got.ndim == 0:
        got = got.item()
    if isinstance(got, bool) or not isinstance(got, numbers.Number):
        return f"expected one number, got {_short(got)}"
    if isinstance(expected, numbers.Integral):
        return None if got == expected else f"expected {expected:,}, got {_cut(f'{got:,}')}"
    close = np.isclose(got, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
    return None if close else f"expected {expected:.5g}, got {got:.5g}"


def _sequence_difference(got, expected, tolerance: float) -> str | None:
    if not isinstance(got, list | tuple | np.ndarray | torch.Tensor):
        return f"expected {len(expected)} values, got {_short(got)}"
    if len(got) != len(expected):
        return f"expected {len(expected)} values, got {len(got)}"
    pairs = enumerate(zip(got, expected, strict=True))
    found = ((k, difference(mine, right, tolerance)) for k, (mine, right) in pairs)
    return _first(f"value number {k + 1}: {sentence}" for k, sentence in found if sentence)

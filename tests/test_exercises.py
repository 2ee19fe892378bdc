"""Exercises: each accepts its solution, names each known mistake, and says something useful about everything else."""

import dataclasses
import pathlib
import re

import nbformat
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import softmax as imported_softmax

from transformer_lib.lessons import check, exercises
from transformer_lib.lessons.exercises import Exercise, registry

ROOT = pathlib.Path(__file__).resolve().parents[1]
EXERCISES = list(registry().values())
MISTAKES = [(e, sentence) for e in EXERCISES for sentence in e.mistakes]


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda e: e.name)
def test_the_reference_is_right(exercise):
    assert exercise.judge(exercise.reference).status == "right"
    assert len(exercise.mistakes) >= 2, "an exercise names at least two typical mistakes"


@pytest.mark.parametrize(("exercise", "sentence"), MISTAKES, ids=lambda x: getattr(x, "name", x)[:40])
def test_each_known_mistake_is_named(exercise, sentence):
    verdict = exercise.judge(exercise.mistakes[sentence])
    assert (verdict.status, verdict.message) == ("wrong", sentence)


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda e: e.name)
def test_sizes_of_a_case_never_coincide(exercise):
    for case in exercise.arguments():
        arrays = [a for a in case if isinstance(a, torch.Tensor | np.ndarray)]
        for shape in (tuple(a.shape) for a in arrays if a.dtype != torch.bool):  # a mask of pairs is square by nature
            assert len(set(shape)) == len(shape), f"{exercise.name}: a mix-up of axes would go unseen in shape {shape}"


def test_every_exercise_is_used_by_a_notebook_with_its_solution():
    """Each checker is called by a solution cell, which `nbval` runs; each call has a checker."""
    solved = set()
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        for cell in nbformat.read(path, as_version=4).cells:
            if "solution" in cell.metadata.get("tags", []):
                solved |= set(re.findall(r"\bcheck\.(\w+)\(", cell.source))
    assert solved == set(registry())


# Calls that a task does not allow: the numbers are right, and the checker says who made them.


def _jacobian_by_backward(a):
    s = a.log().clamp(min=-1e9).clone().requires_grad_()
    rows = []
    for i in range(len(a)):
        s.grad = None
        torch.softmax(s, dim=0)[i].backward()
        rows.append(s.grad.clone())
    return torch.stack(rows)


def _jacobian_by_grad(a):
    s = a.log().clamp(min=-1e9).clone().requires_grad_()
    weights = torch.softmax(s, dim=0)
    return torch.stack([torch.autograd.grad(w, s, retain_graph=True)[0] for w in weights])


def _jacobian_by(derivative):
    return lambda a: derivative(lambda s: torch.softmax(s, dim=0), a.log().clamp(min=-1e9))


def _gradient_by_backward(q, keys, g):
    q = q.clone().requires_grad_()
    (torch.softmax(keys @ q / len(q) ** 0.5, dim=0) * g).sum().backward()
    return q.grad


FORBIDDEN_CALLS = [
    ("softmax", lambda s: torch.softmax(s, dim=-1)),
    ("softmax", lambda s: s.softmax(-1)),
    ("softmax", lambda s: F.softmax(s, dim=-1)),
    ("softmax", lambda s: torch.nn.Softmax(dim=-1)(s)),
    ("softmax", lambda s: torch.special.softmax(s, -1)),
    ("softmax", lambda s: s.log_softmax(-1).exp()),
    ("softmax", lambda s: imported_softmax(s, dim=-1)),
    ("softmax_jacobian", _jacobian_by_backward),
    ("softmax_jacobian", _jacobian_by_grad),
    ("softmax_jacobian", _jacobian_by(torch.autograd.functional.jacobian)),
    ("softmax_jacobian", _jacobian_by(lambda f, s: torch.func.jacrev(f)(s))),
    ("softmax_jacobian", _jacobian_by(lambda f, s: torch.func.jacfwd(f)(s))),
    ("gradient_at_query", _gradient_by_backward),
    ("rms_norm", lambda x, weight, eps: F.rms_norm(x, weight.shape, weight, eps)),
    ("layer_norm", lambda x, weight, bias, eps: F.layer_norm(x, weight.shape, weight, bias, eps)),
    ("layer_norm", lambda x, weight, bias, eps: torch.layer_norm(x, weight.shape, weight, bias, eps)),
    (
        "layer_norm",
        lambda x, weight, bias, eps: (
            torch.nn.LayerNorm(len(weight), eps, elementwise_affine=False, dtype=x.dtype)(x) * weight + bias
        ),
    ),
    ("silu", F.silu),
    ("silu", torch.nn.SiLU()),
]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch.func.jacfwd's own
@pytest.mark.parametrize(("name", "attempt"), FORBIDDEN_CALLS)
def test_a_forbidden_call_is_named(name, attempt):
    exercise = registry()[name]
    verdict = exercise.judge(attempt)
    assert verdict.status == "wrong" and verdict.message in exercise.forbidden
    assert exercise.judge(exercise.reference).status == "right", "and only while the learner's function runs"


def test_every_forbidden_call_has_such_a_test():
    assert {e.name for e in EXERCISES if e.forbidden} == {name for name, _ in FORBIDDEN_CALLS}


# What a learner may hand in: every exercise answers with one line, and goes on working.


def _change_everything(*arguments):
    for argument in arguments:
        if isinstance(argument, torch.Tensor | np.ndarray):
            argument[...] = 0
        elif isinstance(argument, list | dict):
            argument.clear()
    return arguments[0] if arguments else 0


def _raises(error):
    def attempt(*arguments):
        raise error

    return attempt


class _Hostile:
    """Every question about it raises."""

    def __getattr__(self, name):
        raise RuntimeError(name)

    def __len__(self):
        raise RuntimeError("len")

    def __repr__(self):
        raise RuntimeError("repr")


HANDED_IN = {
    "raises": _raises(ValueError("two\nlines")),
    "raises without words": _raises(KeyError()),
    "recursion": _raises(RecursionError("maximum recursion depth exceeded")),
    "no memory": _raises(MemoryError()),
    "exit": _raises(SystemExit(3)),
    "stops a loop": _raises(StopIteration()),
    "None": lambda *arguments: print(end=""),
    "changes its arguments": _change_everything,
    "text": lambda *arguments: "a\x00" * 1000,
    "itself": lambda *arguments: HANDED_IN,
    "nan": lambda *arguments: float("nan"),
    "empty": lambda *arguments: torch.zeros(0),
    "complex": lambda *arguments: np.ones(3, complex),
    "objects": lambda *arguments: np.array([None, "x"], dtype=object),
    "bool": lambda *arguments: True,
    "a large number": lambda *arguments: 10**400,
    "a generator": lambda *arguments: (x for x in arguments),
    "a type": lambda *arguments: torch.Tensor,
    "on the meta device": lambda *arguments: torch.zeros(3, device="meta"),
    "hostile": lambda *arguments: _Hostile(),
    "wants no arguments": lambda: 0,
    "wants names": lambda *, x: x,
    "no function": 7,
    "a class": torch.nn.Linear,
    "a module": torch.nn.Linear(2, 3),
}


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda e: e.name)
def test_whatever_is_handed_in_gets_one_line(exercise):
    before = exercise.arguments()
    for what, attempt in HANDED_IN.items():
        verdict = exercise.judge(attempt)
        assert verdict.status == "wrong", what
        assert verdict.message.strip() and "\n" not in verdict.message and len(verdict.message) < 400, (what, verdict)
    assert not exercises._changed(tuple(before), tuple(exercise.arguments())), "its cases are as they were"
    assert exercise.judge(exercise.reference).status == "right"


# The mechanism itself, on one exercise.


def _cases(rng):
    for t, d in ((3, 5), (2, 7)):
        yield torch.randn(t, d), float(rng.integers(2, 9))


def _halve(x, scale):
    return x / scale


SCALE = Exercise("scale", _halve, _cases, {"this multiplies instead of dividing": lambda x, s: x * s})


def _stub(x, scale):
    """Not written yet."""


def _raise_not_implemented(x, scale):
    raise NotImplementedError


def _forgets_return(x, scale):
    y = x / scale
    del y


def _in_place(x, scale):
    return x.div_(scale)


def _endless(x, scale):
    while True:
        pass


def _fails(x, scale):
    return x @ x


def _fails_later(x, scale):
    return x / scale if x.shape == (3, 5) else x.view(3, 5)


SAID = [
    (None, "open", "not tried yet"),
    (..., "open", "not tried yet"),
    (_stub, "open", "not tried yet"),
    (_raise_not_implemented, "open", "not tried yet"),
    (_halve, "right", "right"),
    (lambda x, s: x.numpy() / s, "right", "right"),
    (lambda x, s: x * s, "wrong", "this multiplies instead of dividing"),
    (lambda x, s: x.T / s, "wrong", r"expected the shape \(3, 5\), got \(5, 3\)"),
    (lambda x, s: x / s + 1, "wrong", "the shape is right, but the numbers differ: .* at index"),
    (lambda x, s: x / 0 * 0, "wrong", "contains nan"),
    (lambda x, s: "text", "wrong", r"expected an array of shape \(3, 5\), got 'text'"),
    (lambda x, s: [[1], [2, 3]], "wrong", "expected an array"),
    (_forgets_return, "wrong", "it returns None: end it with `return"),
    (_in_place, "wrong", "it changes its argument number 1 in place"),
    (
        _fails,
        "wrong",
        r"it stops with RuntimeError: .*, in the line `return x @ x` \(with inputs of shape \(3, 5\)\)",
    ),
    (_fails_later, "wrong", r"it stops with RuntimeError: .* \(with inputs of shape \(2, 7\)\)"),
    (lambda x: x, "wrong", "it stops with TypeError: .*takes 1 positional argument"),
    (torch.ones(2), "wrong", "pass the function itself"),
]


@pytest.mark.parametrize(("attempt", "status", "message"), SAID)
def test_verdicts(attempt, status, message):
    verdict = SCALE.judge(attempt)
    assert verdict.status == status
    assert re.match(message, verdict.message) or re.search(message, verdict.message)


def test_a_sign_must_show_in_every_case():
    """For mistakes that no function repeats: here, a sign that is random."""
    signed = dataclasses.replace(
        SCALE, signs={"only the sign is wrong": lambda y, x, s: torch.equal(y.abs(), abs(x / s))}
    )
    coins = iter((1, -1) * 9)
    assert signed.judge(lambda x, s: next(coins) * x / s).message == "only the sign is wrong"
    assert "the numbers differ" in signed.judge(lambda x, s: x / s if len(x) == 3 else x + s).message
    assert signed.judge(_halve).status == "right"


def test_a_loop_without_end_is_stopped(monkeypatch):
    monkeypatch.setattr(exercises, "SECONDS", 1)
    assert SCALE.judge(_endless).message == "it did not end within 1 seconds; look for a loop that never stops"


def test_judging_leaves_the_learner_s_random_numbers_alone():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    SCALE.judge(_halve)
    assert torch.equal(torch.rand(2), expected)


def test_an_unknown_name_lists_the_exercises():
    with pytest.raises(AttributeError, match="there is no exercise 'nonsense'; the exercises are"):
        check.nonsense(_halve)


def test_the_verdict_is_displayed(monkeypatch, capsys):
    monkeypatch.setattr(exercises, "registry", lambda: {"scale": SCALE})
    check.scale(_halve)
    check.scale(_stub)
    check.scale()
    assert capsys.readouterr().out == "✓ scale: right\n○ scale: not tried yet\n○ scale: not tried yet\n"

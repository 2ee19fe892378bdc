"""Exercises of notebook 05: the causal mask, the masked softmax, what n layers can reach, and a test for leaks."""

import math

import torch

from transformer_lib.attention import causal_mask
from transformer_lib.explorers.mask import layers_needed
from transformer_lib.lessons.exercises import Exercise

VOCABULARY = 11


def size_cases(rng):
    yield from ((4, 4), (2, 5), (1, 7), (3, 8), (6, 6))


def masked_cases(rng):
    """Scores and masks; large scores hide in the future, and the last case has a row that may see nothing."""
    for t_q, t_k, factor in ((2, 4, 1.0), (3, 6, 5.0), (5, 7, 200.0)):
        yield factor * torch.randn(t_q, t_k, dtype=torch.float64), causal_mask(t_q, t_k)
    scores = torch.tensor([[-20_000.0, 4.0], [2.0, -1.0], [1.0, 3.0]], dtype=torch.float64)
    yield scores, torch.tensor([[True, False], [True, True], [False, False]])


def masked_softmax(scores, mask):
    weights = torch.softmax(scores.masked_fill(~mask, -math.inf), dim=-1)
    return weights.masked_fill(~mask, 0.0)


def after_softmax(scores, mask):
    return torch.softmax(scores, dim=-1) * mask


def renormalised(scores, mask):
    kept = after_softmax(scores, mask)
    return kept / kept.sum(dim=-1, keepdim=True)


def reach_cases(rng):
    window = causal_mask(7).triu(-2)
    only_before = causal_mask(5).tril(-1)  # nobody sees itself: the residual stream keeps it
    holes = torch.tensor(rng.random((6, 6)) < 0.25)
    yield from ((window, 1), (window, 3), (only_before, 2), (only_before, 4), (holes, 2), (holes, 3))


def reach(mask, n_layers, stay=True):
    step = (mask | torch.eye(len(mask), dtype=torch.bool) if stay else mask).double()  # (T, T)
    return torch.matrix_power(step, n_layers) > 0


def library_reach(mask, n_layers):
    return layers_needed(mask, n_layers) <= n_layers


def averaging(hidden):
    """A little model whose position i averages the tokens that hidden(T) does not hide: (T,) -> (T, V)."""

    def model(ids):
        one_hot = torch.nn.functional.one_hot(ids, VOCABULARY).double()  # (T, V)
        seen = (~hidden(len(ids))).double()  # (T, T)
        return seen @ one_hot / seen.sum(dim=1, keepdim=True)  # (T, V)

    return model


def leak_cases(rng):
    """Models that see: the past; everything; one step ahead; the last token from the first; the third from
    the second; the far past alone; the third from the first."""

    def future(t, shift=1):
        return torch.ones(t, t, dtype=torch.bool).triu(shift)

    def first_sees_last(t):
        hidden = future(t)
        hidden[0, -1] = False
        return hidden

    def second_sees_third(t):
        hidden = future(t)
        hidden[1, 2] = False
        return hidden

    def first_sees_third(t):
        hidden = future(t)
        hidden[0, 2] = False
        return hidden

    def far(t):
        return future(t) | torch.ones(t, t, dtype=torch.bool).tril(-3)

    everything = lambda t: torch.zeros(t, t, dtype=torch.bool)  # noqa: E731
    one_ahead = lambda t: future(t, 2)  # noqa: E731
    models = (future, everything, one_ahead, first_sees_last, second_sees_third, far, first_sees_third)
    for n, hidden in enumerate(models):
        yield averaging(hidden), torch.tensor(rng.integers(0, VOCABULARY, 6 + n % 3)), VOCABULARY


def moves(model, ids, at, vocab_size):
    other = ids.clone()
    other[at] = (other[at] + 1) % vocab_size
    return (model(other) != model(ids)).any(dim=-1)  # (T,) bool


def leaks(model, ids, vocab_size):
    return any(bool(moves(model, ids, at, vocab_size)[:at].any()) for at in range(1, len(ids)))


EXERCISES = [
    Exercise(
        "causal_mask",
        reference=causal_mask,
        cases=size_cases,
        mistakes={
            "aligned at the top left: with fewer queries than keys, the queries are the last ones": lambda t_q, t_k: (
                torch.ones(t_q, t_k, dtype=torch.bool).tril()
            ),
            "a position may also see itself: its own token is known when the next one is predicted": lambda t_q, t_k: (
                causal_mask(t_q, t_k).tril(t_k - t_q - 1)
            ),
            "this is the upper triangle: row = query, column = key, and earlier keys stay": lambda t_q, t_k: torch.ones(
                t_q, t_k, dtype=torch.bool
            ).triu(t_k - t_q),
            "True and False are swapped: in this course True = may be seen": lambda t_q, t_k: ~causal_mask(t_q, t_k),
        },
        praise="With one query and many keys, everything is visible: that is decoding (notebook 10).",
    ),
    Exercise(
        "masked_softmax",
        reference=masked_softmax,
        cases=masked_cases,
        mistakes={
            "masked after the softmax: rows no longer sum to one, and hidden scores still count": after_softmax,
            "masked after the softmax and divided again: 0 / 0 where a hidden score dwarfs the others": renormalised,
            "masked after the softmax and divided again: one large hidden score leaves nothing to divide": (
                lambda scores, mask: renormalised(scores, mask).nan_to_num(0.0)
            ),
            "a row that may see nothing becomes an even average with −1e9: it must be zeros": lambda scores, mask: (
                torch.softmax(scores.masked_fill(~mask, -1e9), dim=-1)
            ),
            "hidden scores are 0, and e^0 = 1: use −∞": lambda scores, mask: torch.softmax(scores * mask, dim=-1),
            "hidden scores are −1e4: a row of very low scores still sees what is hidden": lambda scores, mask: (
                torch.softmax(scores.masked_fill(~mask, -1e4), dim=-1)
            ),
            "a row that may see nothing is nan: e^−∞ / 0; make it zeros": lambda scores, mask: torch.softmax(
                scores.masked_fill(~mask, -math.inf), dim=-1
            ),
            "the softmax runs along the columns": lambda scores, mask: torch.softmax(
                scores.masked_fill(~mask, -math.inf), dim=-2
            ),
            "the mask is upside down: True = may be seen": lambda scores, mask: masked_softmax(scores, ~mask),
        },
        praise="This is the library's `attention_weights` without the dot product.",
    ),
    Exercise(
        "reach",
        reference=library_reach,
        cases=reach_cases,
        mistakes={
            "the residual stream is missing: a position keeps what it has, even if the mask hides it from itself": (
                lambda mask, n_layers: reach(mask, n_layers, stay=False)
            ),
            "this is one layer; each further one lets positions read readers": lambda mask, n_layers: reach(mask, 1),
            "one layer too many": lambda mask, n_layers: reach(mask, n_layers + 1),
            "one layer too few": lambda mask, n_layers: reach(mask, n_layers - 1),
            "transposed: row = the position that hears, column = the one that is heard of": lambda mask, n_layers: (
                reach(mask, n_layers).T
            ),
            "this counts the paths; the question is only whether there is one": lambda mask, n_layers: (
                torch.matrix_power((mask | torch.eye(len(mask), dtype=torch.bool)).double(), n_layers)
            ),
        },
        praise="One wrong entry of the mask spreads in the same way.",
    ),
    Exercise(
        "leaks",
        reference=leaks,
        cases=leak_cases,
        mistakes={
            "the changed position and those after it may move: compare only the positions before it": (
                lambda model, ids, vocab_size: any(
                    bool(moves(model, ids, at, vocab_size).any()) for at in range(1, len(ids))
                )
            ),
            "only the last token is changed: a model that looks ahead elsewhere passes": (
                lambda model, ids, vocab_size: bool(moves(model, ids, len(ids) - 1, vocab_size)[:-1].any())
            ),
            "only the token right after each position is changed: a look further ahead passes": (
                lambda model, ids, vocab_size: any(
                    bool(moves(model, ids, at, vocab_size)[at - 1]) for at in range(1, len(ids))
                )
            ),
            "the last token is never changed: the positions before it may see it": lambda model, ids, vocab_size: any(
                bool(moves(model, ids, at, vocab_size)[:at].any()) for at in range(1, len(ids) - 1)
            ),
            "only the first position is compared: a leak into a later one passes": lambda model, ids, vocab_size: any(
                bool(moves(model, ids, at, vocab_size)[0]) for at in range(1, len(ids))
            ),
            "True and False are swapped: True = the model looks ahead": lambda model, ids, vocab_size: (
                not leaks(model, ids, vocab_size)
            ),
        },
        praise="Ten lines that belong in the tests of every language model.",
    ),
]

"""Notebook 05: masks reach as far as gradients do, the painter and the sentence tell the truth, −1e4 is caught."""

import re

import numpy as np
import pytest
import torch
from small import Letters

from transformer_lib import Transformer, TransformerConfig, record
from transformer_lib.attention import causal_mask
from transformer_lib.explorers.mask import (
    LONGEST,
    MOST_LAYERS,
    RULES,
    WAYS,
    WORDS,
    changes,
    flipped_pairs,
    layers_needed,
    look_ahead,
    mask_painter,
    rule_mask,
)
from transformer_lib.explorers.mask_bugs import CHECKS, break_the_mask
from transformer_lib.lessons import bugs
from transformer_lib.lessons.exercises import registry
from transformer_lib.plots import mask as plots
from transformer_lib.plots.style import pixels
from transformer_lib.relatives.masked_encoder import MaskedTransformer, fill_blank


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    made = Transformer(TransformerConfig(vocab_size=97, d_model=24, n_layers=2, n_heads=3, max_seq_len=256))
    made.initialize(std=0.2)
    return made.eval()


@pytest.fixture
def sentence(model):
    return look_ahead(model, Letters(), "a fox, a hen")


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("n_layers", [1, 3])
def test_reach_is_where_a_real_model_has_gradients(rule, n_layers):
    mask = rule_mask(rule, 9, 3)
    mask[4, 7] = ~mask[4, 7]

    class Masked(Transformer):
        def visible(self, t_q, t_k, causal, keep, device):
            return mask, False

    torch.manual_seed(n_layers)
    cfg = TransformerConfig(vocab_size=31, d_model=16, n_layers=n_layers, n_heads=2, max_seq_len=12)
    deep = Masked(cfg).double()
    with record(deep, grad=True) as seen:
        deep(torch.randint(31, (1, 9)))
    x, out = seen["embedding"], seen[f"blocks.{n_layers - 1}.stream"]
    rows = [torch.autograd.grad(out[0, i].sum(), x, retain_graph=True)[0][0].abs().sum(-1) for i in range(9)]
    assert torch.equal(torch.stack(rows) > 0, layers_needed(mask, 5) <= n_layers)


def test_rules_by_hand():
    assert rule_mask("none", 3, 2).all()
    assert rule_mask("causal", 3, 1).int().tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert rule_mask("sliding window", 4, 2).int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    assert rule_mask("prefix", 3, 2).int().tolist() == [[1, 1, 0], [1, 1, 0], [1, 1, 1]]
    assert layers_needed(rule_mask("sliding window", 4, 2), 2).tolist()[3] == [3, 2, 1, 0]


@pytest.mark.parametrize(
    ("typed", "pairs", "note"),
    [
        ("", [], ""),
        ("2→6, 4->8", [(2, 6), (4, 8)], ""),
        ("2>6 2>6", [(2, 6)], ""),
        ("1→9", [], "0 to 8"),
        ("hello", [], "write pairs"),
        ("12345→6", [], "write pairs"),
    ],
)
def test_typed_pairs(typed, pairs, note):
    found, told = flipped_pairs(typed, 9)
    assert found == pairs and (note in told) and bool(note) == bool(told)


def test_painter_counts_and_reaches_as_its_mask_does():
    shown = mask_painter()
    shown.controls["rule"].value, shown.controls["padding"].value = "causal", 2
    shown.controls["flips"].value, shown.controls["query"].value = "2→6", 3
    mask = causal_mask(9) & (torch.arange(9) < 7)
    mask[2, 6] = True
    step = (mask | torch.eye(9, dtype=torch.bool)).double()
    heard = torch.linalg.matrix_power(step, 2) > 0
    future = int((heard[:7, :7] & ~causal_mask(7)).any(dim=1).sum())
    expected = [int(mask.sum()), 81, 2, 3, int(heard[3].sum()), 9, future, 7]
    assert [int(n) for n in re.findall(r"\d+", shown.summary)] == expected
    hovers = re.findall(r"<title>(.*?)</title>", shown.picture.value)
    assert sum(" sees " in hover for hover in hovers) == int(mask.sum())
    assert sum("from its future" in hover for hover in hovers) == int((heard[:7, :7] & ~causal_mask(7)).sum())


def test_painter_says_when_nobody_hears_of_the_future():
    shown = mask_painter()
    for rule in ("causal", "sliding window"):
        shown.controls["rule"].value, shown.controls["layers"].value = rule, MOST_LAYERS
        assert "nobody hears of the future" in shown.summary
    shown.controls["rule"].value = "none"
    assert f"{len(WORDS) - 1} of {len(WORDS)} real tokens hear of their future" in shown.summary


def test_every_control_moves_picture_and_summary(model, sentence):
    typed = {"flips": "1>5", "sentence": "Kim and", "instead": "q", "check": "= torch", "on": True}
    lab = break_the_mask(model, Letters(), "a fox, a hen", bugs.mask_with_minus_1e4)
    for shown in (mask_painter(), sentence, lab):
        for name, control in shown.controls.items():
            before, picture, summary = control.value, shown.picture.value, shown.summary
            others = [option for option in getattr(control, "options", ()) if option != before]
            moved = others[0] if others else typed.get(name, getattr(control, "min", None))
            control.value = moved if moved != before else control.max
            assert shown.error.value == "" and shown.picture.value != picture, name
            assert shown.summary != summary, name
            control.value = before
            assert shown.summary == summary, name


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("at", [1, 6, 11])
def test_only_the_right_mask_keeps_the_past(model, way, at):
    ids = torch.tensor([Letters().encode("a fox, a hen")])
    moved = changes(model, ids, at, int(ids[0, at] + 1) % 97, way)
    assert (moved[at:] > 0).all()
    assert bool((moved[:at] == 0).all()) == (way == WAYS[0])


def test_sentence_tells_what_moved(model, sentence):
    assert "stay bit for bit" in sentence.summary
    sentence.controls["way"].value = WAYS[1]
    ids = torch.tensor([Letters().encode("a fox, a hen")])
    new = next(i for i in Letters().encode(" dog") if i != ids[0, 5])
    largest = float(changes(model, ids, 5, new, WAYS[1])[:5].max())
    assert f"move by up to {largest:.2g}:" in sentence.summary
    assert len(re.findall("moves by up to", sentence.picture.value)) == LONGEST


@pytest.mark.parametrize("text", ["", " ", "a", "x" * 900, "<b>&\x07\n\t", "שלום 🙂", "$x_1$ and $"])
def test_sentence_survives_awkward_text(sentence, text):
    for box in ("sentence", "instead"):
        sentence.controls[box].value = text
        assert sentence.error.value == ""
    assert sentence._pixels().shape[1] == 1600


def test_minus_1e4_is_seen_by_one_check_alone(model):
    ids = torch.tensor([Letters().encode("a fox, a hen")])
    with torch.no_grad():
        assert all(passes(model, ids)[0] for passes in CHECKS.values())
        with bugs.mask_with_minus_1e4(model):
            failing = [name for name, passes in CHECKS.items() if not passes(model, ids)[0]]
    assert failing == ["another last token, large scores"]


def test_minus_1e4_changes_the_fused_path_too(model):
    """Hand-made scores of ±30,000: with the bug, position 0 reads the future; without, nothing moves."""
    attention = model.blocks[0].attention
    q, k = torch.full((1, 3, 2, 8), 300.0), torch.full((1, 3, 2, 8), -300.0)
    k[:, :, 1] = 300.0  # the later key scores far above the visible one
    v = torch.randn(1, 3, 2, 8)
    right = attention.attend(q, k, v, None, True)
    assert torch.equal(right[:, :, 0], v[:, :, 0])
    with bugs.mask_with_minus_1e4():
        wrong = attention.attend(q, k, v, None, True)
    assert torch.equal(wrong[:, :, 0], v[:, :, 1])
    assert torch.equal(attention.attend(q, k, v, None, True), right)


def test_pictures_show_what_they_are_given():
    stairs = plots.stairs(WORDS).axes[0]
    assert len(stairs.texts) == sum(range(2, len(WORDS) + 1))
    weights = np.tril(np.full((3, 3), 0.25))
    ways = plots.ways_to_mask(dict.fromkeys("abcd", weights), list("xy$"))
    assert [text.get_text() for text in ways.axes[0].texts][-4:-1] == ["0.25", "0.50", "0.75"]
    needed = layers_needed(causal_mask(4).triu(-1), 2)
    reach = plots.reach(causal_mask(4).triu(-1), needed, (needed <= 2).float() + 0.0, 2)
    assert len(reach.axes[1].texts) == int((needed <= 2).sum())
    noticed = plots.who_notices(["a", "$b$", "c"], 1, {"x": [0.0, 2.0, 1.0], "y": [0.3, 2.0, 1.0]})
    assert [len(ax.texts) for ax in noticed.axes] == [1, 0]
    losses = {"−∞": [2.8] * 30, "−1e4": [2.6] * 30}
    wall = plots.wall([1, 10], {"−∞": [0, 0], "−1e4": [0, 3]}, losses, 2.77)
    off = {"causal mask": [3.0, 2.0], "mask left off": [3.0, 0.1]}
    trained = plots.with_and_without(off, {name: (pair[0], pair[1]) for name, pair in off.items()}, 0.4)
    masks = plots.four_masks({"causal": causal_mask(4), "✗ two": causal_mask(2, 4)})
    assert [label.get_text() for label in masks.axes[1].get_yticklabels()] == ["2", "3"]
    blanks = plots.blanks("a $", {"both": [0.1, 0.2, 0.3], "left": [0.1, 0.1, 0.1]}, {"both": 0.5, "left": 0.25})
    for fig in (ways, reach, noticed, wall, trained, masks, blanks):
        assert pixels(fig).std() > 0


def test_the_learners_functions_make_a_causal_attention():
    """Notebook 08 builds a block with them."""
    q, k, v = (torch.randn(2, 3, 5, 8, dtype=torch.float64) for _ in range(3))
    scores, mask = q @ k.transpose(-2, -1) / 8**0.5, registry()["causal_mask"].reference(5, 5)
    mixed = registry()["masked_softmax"].reference(scores, mask) @ v
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(mixed, expected)


def some_leak(positions, rows):
    """A test for leaks that changes some positions and compares some rows before each."""

    def attempt(model, ids, vocab_size):
        before = model(ids)
        for at in range(1, len(ids))[positions]:
            other = ids.clone()
            other[at] = (ids[at] + 1) % vocab_size
            if not torch.equal(model(other)[:at][rows], before[:at][rows]):
                return True
        return False

    return attempt


ALL = slice(None)
SLIPS = [
    ("leaks", some_leak(slice(-1), ALL), "the last token is never changed"),
    ("leaks", some_leak(ALL, slice(-1, None)), "only the token right after each position"),
    ("leaks", some_leak(ALL, slice(1)), "only the first position is compared"),
    ("leaks", some_leak(slice(-1, None), ALL), "only the last token is changed"),
    ("masked_softmax", lambda s, m: s.masked_fill(~m, -1e9).softmax(-1), "an even average"),
    ("masked_softmax", lambda s, m: s.masked_fill(~m, torch.finfo(s.dtype).min).softmax(-1), "an even average"),
    (
        "masked_softmax",
        lambda s, m: torch.nan_to_num(s.softmax(-1) * m / (s.softmax(-1) * m).sum(-1, keepdim=True)),
        "one large hidden score",
    ),
]


@pytest.mark.parametrize(("name", "slip", "said"), SLIPS)
def test_the_usual_slips_are_named(name, slip, said):
    verdict = registry()[name].judge(slip)
    assert verdict.status == "wrong" and said in verdict.message
    assert registry()["leaks"].judge(some_leak(ALL, ALL)).status == "right"


def test_a_blank_does_not_see_the_token_that_it_hides():
    torch.manual_seed(0)
    cfg = TransformerConfig(vocab_size=12, d_model=16, n_layers=2, n_heads=2, max_seq_len=9, causal=False)
    encoder = MaskedTransformer(cfg).eval()
    ids, at = torch.randint(11, (3, 7)), torch.tensor([0, 6, 3])
    filled = fill_blank(encoder, ids, at)
    assert filled.shape == (3, 11) and torch.allclose(filled.sum(dim=1), torch.ones(3))
    other = ids.clone()
    other[torch.arange(3), at] = (ids[torch.arange(3), at] + 1) % 11
    assert torch.equal(fill_blank(encoder, other, at), filled)
    assert not torch.equal(fill_blank(encoder, ids.roll(1, 1), at), filled)

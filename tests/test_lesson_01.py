"""Notebook 01: merges, tokens and positions are drawn as they are computed; its explorers follow every control."""

import math
import re
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from transformer_lib import Transformer, TransformerConfig
from transformer_lib.bpe import apply_merges, count_pairs, learn_merges, merge_pair, split_words
from transformer_lib.corpus import story_text
from transformer_lib.explorers.positions import placed, rope_clock, sinusoid_lab, waves
from transformer_lib.explorers.tokens import merge_steps, similar_rows, typed_tokens
from transformer_lib.lessons.exercises import registry
from transformer_lib.plots import tokens_lesson as plots
from transformer_lib.plots.style import pixels
from transformer_lib.positions import rotate, rotation, sinusoids
from transformer_lib.tokenizer import Tokenizer

AWKWARD = ["", " ", "a", "x" * 900, "<b>&\x07\n\t", "שלום 🙂", "$x_1$ and $"]


@pytest.fixture(scope="module")
def vocabularies():
    text = story_text(50_000)
    return {size: Tokenizer.train(text, size) for size in (350, 600)}


@pytest.fixture(scope="module")
def rows(vocabularies):
    torch.manual_seed(0)
    cfg = TransformerConfig(vocab_size=600, d_model=24, n_layers=1, n_heads=3, max_seq_len=64)
    return similar_rows(Transformer(cfg), Transformer(cfg), vocabularies[600])


@pytest.fixture
def everything(vocabularies, rows):
    return [merge_steps(), typed_tokens(vocabularies, "A fox 🦊 in 2024"), rows, sinusoid_lab(), rope_clock()]


def hovers(explorer):
    return re.findall(r"<title>(.*?)</title>", explorer.picture.value, flags=re.DOTALL)


# --- Byte-pair encoding ---


@given(st.text(alphabet="ab ,1_é\n🦊", max_size=40), st.integers(0, 12))
def test_no_letter_is_lost_and_no_piece_crosses_a_word(text, n_merges):
    pieces = apply_merges(text, [pair for pair, _ in learn_merges(text, n_merges)])
    assert "".join(pieces) == text.replace(" ", "▁") == "".join(split_words(text))
    ends = set(np.cumsum([len(word) for word in split_words(text)]).tolist())
    assert ends <= set(np.cumsum([len(piece) for piece in pieces]).tolist())


def joined_from_the_end(pieces, pair):
    pieces, k = list(pieces), len(pieces) - 2
    while k >= 0:
        if tuple(pieces[k : k + 2]) == pair:
            pieces[k : k + 2] = ["".join(pair)]
            k -= 1
        k -= 1
    return pieces


def of_a_set(pieces):
    pairs = list(pairwise(pieces))
    return max(set(pairs), key=pairs.count)


def last_of_equals(pieces):
    pairs = list(pairwise(pieces))
    return max(reversed(pairs), key=pairs.count)


SLIPS = [
    ("merge", joined_from_the_end, "from right to left"),
    ("merge", lambda pieces, pair: " ".join(pieces).replace(" ".join(pair), "".join(pair)).split(), "joining the text"),
    ("most_frequent_pair", last_of_equals, "of equally frequent pairs"),
    ("most_frequent_pair", lambda pieces: Counter(pairwise(pieces)).most_common(1)[0], "the pair with its count"),
    ("most_frequent_pair", lambda pieces: "".join(Counter(pairwise(pieces)).most_common()[0][0]), "the pair is joined"),
]


@pytest.mark.parametrize(("name", "slip", "said"), SLIPS)
def test_the_usual_slips_are_named(name, slip, said):
    verdict = registry()[name].judge(slip)
    assert verdict.status == "wrong" and said in verdict.message


def test_a_pair_out_of_a_set_is_right_only_by_chance():
    """The order of a set of strings changes from run to run."""
    assert re.match("right|of equally frequent pairs", registry()["most_frequent_pair"].judge(of_a_set).message)


def test_a_piece_is_merged_once():
    assert merge_pair("aaaa", ("a", "a")) == ("aa", "aa")
    assert merge_pair("aaa", ("a", "a")) == ("aa", "a")
    assert merge_pair(["ab", "a", "b"], ("a", "b")) == ("ab", "ab")


def test_each_merge_is_the_most_frequent_pair_of_the_moment():
    text = "the fox, the ox, the box"
    done = []
    for pair, count in learn_merges(text, 99):
        words = Counter()
        for word in split_words(text):
            pieces = tuple(word)
            for earlier in done:
                pieces = merge_pair(pieces, earlier)
            words[pieces] += 1
        assert count == count_pairs(words)[pair] == max(count_pairs(words).values())
        done.append(pair)
    assert apply_merges(text, done) == split_words(text)


def test_first_merges_are_those_of_sentencepiece(vocabularies):
    learnt = ["".join(pair).replace("▁", " ") for pair, _ in learn_merges(story_text(50_000), 12)]
    assert learnt == [vocabularies[600].decode([i]) for i in range(260, 272)]


# --- Explorers ---


def test_every_control_moves_the_picture(everything):
    for shown in everything:
        for name, control in shown.controls.items():
            before, picture, summary = control.value, shown.picture.value, shown.summary
            options = [option for option in getattr(control, "options", ()) if option != before]
            control.value = options[0] if options else " ball!" if isinstance(before, str) else control.max
            assert shown.error.value == "" and shown.picture.value != picture, (shown.name, name)
            control.value = before
            assert shown.summary == summary, (shown.name, name)


@pytest.mark.parametrize("text", AWKWARD)
def test_typed_text_may_be_anything(everything, text):
    for shown in everything[:3]:
        next(iter(shown.controls.values())).value = text
        assert shown.error.value == ""
        assert shown._pixels().shape[1] == 1600


def test_merge_steps_shows_the_pieces_and_the_next_pair():
    shown = merge_steps("banana banana")
    shown.controls["merges"].value = 0
    assert shown.summary.startswith("After 0 merges: 13 pieces; next: a + n, 4 times.")
    shown.controls["merges"].value = 1
    assert shown.summary.startswith("After 1 merges: 9 pieces; next: b + an, 2 times.")
    assert sum(hover.startswith("an:") for hover in hovers(shown)) == 4
    shown.controls["merges"].value = 30
    assert "no pair is left" in shown.summary and "after 5 merges" in shown.summary


def test_typed_tokens_shows_each_id_and_says_which_byte_belongs_to_what(vocabularies):
    shown = typed_tokens(vocabularies, "the 🦊")
    ids = vocabularies[600].encode("the 🦊")
    assert [int(hover.split()[1][:-1]) for hover in hovers(shown)] == ids
    assert sum("U+1F98A" in hover for hover in hovers(shown)) == 4
    assert f"{len(ids)} tokens, 4 of them single bytes" in shown.summary
    assert "decoding gives the text back" in shown.summary


def test_similar_rows_are_nearest_by_cosine(rows, vocabularies):
    i = vocabularies[600].encode(" the")[0]
    rows.controls["word"].value, rows.controls["rows"].value = " the", 12
    assert f"({i})" in rows.summary
    shown = [float(value) for value in re.findall(r"cosine (-?\d\.\d+)", rows.picture.value)]
    assert len(shown) == 24 and shown[:12] == sorted(shown[:12], reverse=True)


def test_waves_with_the_papers_base_are_the_librarys():
    torch.testing.assert_close(waves(torch.arange(60), 16, 1e4), sinusoids(torch.arange(60), 16), atol=1e-5, rtol=0)


def test_sinusoid_products_depend_on_the_distance():
    shown = sinusoid_lab()
    for position, base in ((3, 1e4), (90, 1e2)):
        shown.controls["position"].value, shown.controls["base"].value = position, base
        here, first = re.findall(r"= (-?[\d.]+)[.,]", shown.summary)
        assert float(here) == pytest.approx(float(first), abs=0.011)


@pytest.mark.parametrize(("m", "n", "both"), [(0, 0, 0), (9, 6, 500), (120, 3, 77), (2, 100, 5)])
def test_rope_clock_score_follows_the_distance_alone(m, n, both):
    shown = rope_clock()
    for name, value in {"m": m, "n": n, "both": both}.items():
        shown.controls[name].value = value
    moved = float(re.search(r"score (-?\d+\.\d+)", shown.summary)[1])
    still = float(re.search(r"it is (-?\d+\.\d+)", shown.summary)[1])
    expected = sum(math.cos((m - n) * 10 ** (-i)) for i in range(4))  # q and k alike: θ = 1, 0.1, 0.01, 0.001
    assert moved == pytest.approx(expected, abs=0.002) and still == pytest.approx(expected, abs=0.002)


def test_rope_clock_hands_are_the_librarys_rotation():
    q = torch.randn(8)
    hands = placed(q, 5, 1e4)  # (4, 2)
    assert torch.allclose(hands.norm(dim=1), torch.stack([q[:4], q[4:]]).norm(dim=0))
    whole = rotate(q[None], *rotation(torch.tensor([5]), 8))[0]
    assert torch.equal(hands[:, 0], whole[:4]) and torch.equal(hands[:, 1], whole[4:])


# --- Pictures ---


def test_pictures_draw_what_they_are_given(vocabularies):
    torch.manual_seed(1)
    table = torch.randn(30, 6)
    figures = [
        plots.vocabulary_sizes((10, 20), (1.0, 2.0), {10: ["$a", "▁b"], 20: ["$a▁b"]}),
        plots.look_up(table, [4, 9, 4], ["$x", "▁y", "\n"]),
        plots.shuffled(table[:4], 2 * table[:4], [2, 1, 0, 3], list("abcd")),
        plots.sinusoid_rotation(sinusoids(torch.arange(30), 8), 3, 4, [0, 2], [4.0, 0.04]),
        plots.two_positions({"one": torch.eye(20), "two": torch.ones(20, 20)}),
    ]
    for fig in figures:
        assert pixels(fig).std() > 0
    assert np.allclose(figures[1].axes[1].images[0].get_array(), table[[4, 9, 4]])
    assert np.allclose(figures[2].axes[3].images[0].get_array(), 2 * table[[2, 1, 0, 3]])


def test_row_gradients_counts_the_rows_that_move():
    separate, shared = np.zeros(50), np.ones(50)
    separate[[3, 7]] = 2.0
    fig = plots.row_gradients(separate, shared, [3, 7])
    titles = [ax.get_title(loc="left") for ax in fig.axes]
    assert "2 of 50 rows" in titles[0] and "50 of 50 rows" in titles[1]

"""The little language: one right answer and one right alignment per sentence, and measures that can tell."""

import pytest
import torch
from torch.testing import assert_close

from transformer_lib import translation
from transformer_lib.translation import (
    END,
    ID,
    START,
    TARGET_WORDS,
    VOCABULARY,
    accuracy,
    alignment_scores,
    chance_alignment,
    decode,
    draw_pairs,
    encode,
    new_translator,
    translate,
    translate_back,
    translate_with,
    translation_batches,
    translation_loss,
)


def test_word_order_words_and_agreement():
    pair = translate("today the small old cat sees a red ball")
    assert pair.target == ("sa", "mira", "veta", "pita", "no", "balo", "rudo", "hodi", "tolata")
    assert " ".join(pair.source[i] for i in pair.alignment) == "the cat old small a ball red today sees"


def test_every_source_word_is_translated_exactly_once():
    for pair in draw_pairs(300, seed=3):
        assert sorted(pair.alignment) == list(range(len(pair.source))) and len(pair.target) == len(pair.source)


def test_every_translation_reads_back_to_its_own_source():
    for pair in draw_pairs(300, seed=5):
        assert translate_back(" ".join(pair.target)) == pair


@pytest.mark.parametrize(
    ("sentence", "message"),
    [
        ("so mira no balo tolata", "'so' should be 'sa'"),
        ("sa mira no balo tolato", "'tolato' should be 'tolata'"),
        ("mira sa no balo tolata", "word 1 should be one of the determiners"),
        ("sa mira no balo", "word 5 should be one of the verbs .* got the end"),
        ("sa mira no balo tolata hodi", "should end before word 6, 'hodi'"),
        ("sa mira no ? tolata", r"word 4 should be one of the nouns .* got '\?'"),
        ("", "got the end"),
    ],
)
def test_what_is_no_sentence_of_the_language_is_refused(sentence, message):
    with pytest.raises(ValueError, match=message):
        translate_back(sentence)


def test_the_ending_of_every_word_is_that_of_its_noun():
    for pair in draw_pairs(300, seed=4):
        where = dict(zip(pair.alignment, pair.target, strict=True))  # place in the source -> its translation
        nouns = [i for i, word in enumerate(pair.source) if word in translation.NOUNS]
        verb = next(i for i, word in enumerate(pair.source) if word in translation.VERBS)
        assert where[verb][-1] == where[nouns[0]][-1] and pair.target[-1] == where[verb]
        for i, word in enumerate(pair.source):
            if word in translation.ADJECTIVES | translation.DETERMINERS:
                assert where[i][-1] == where[min(noun for noun in nouns if noun > i)][-1]


def test_no_two_meanings_share_a_word_and_ids_are_words():
    assert len(set(VOCABULARY)) == len(VOCABULARY) == translation.MODEL.vocab_size
    assert all(VOCABULARY[ID[word]] == word for word in TARGET_WORDS)


def test_held_out_sentences_are_never_trained_on_and_seeds_repeat():
    training = {pair.source for pair in draw_pairs(4000, seed=0)}
    held_out = {pair.source for pair in draw_pairs(500, seed=0, held_out=True)}
    assert not training & held_out and len(held_out) > 490
    assert draw_pairs(20, seed=7) == draw_pairs(20, seed=7) != draw_pairs(20, seed=8)


@pytest.mark.parametrize(
    ("sentence", "complaint"),
    [
        ("", "word 1 should be one of the determiners"),
        ("the small", "noun.* the end"),
        ("the cat the dog", "word 3 should be one of the verbs .* 'the'"),
        ("the cat sees a unicorn", "'unicorn'"),
        ("the cat sees a dog today", "should end before word 6, 'today'"),
    ],
)
def test_any_other_sentence_is_refused_by_naming_the_word(sentence, complaint):
    with pytest.raises(ValueError, match=complaint):
        translate(sentence)


def test_batches_are_padded_on_the_right_and_decode_gives_the_words_back():
    pairs = draw_pairs(7, seed=2)
    batch = encode(pairs)
    for row, pair in enumerate(pairs):
        assert batch.source_mask[row].sum() == len(pair.source) + 1
        assert batch.target[row, 0] == START and decode(batch.target[row]) == " ".join(pair.target)
        assert batch.target[row, len(pair.target) + 1] == END
        assert batch.alignment[row, : len(pair.target)].tolist() == list(pair.alignment)
        assert bool((batch.alignment[row, len(pair.target) :] == -1).all())


def test_a_step_always_gets_the_same_batch():
    batches = []
    for _ in range(2):
        torch.manual_seed(5)
        batches.append(translation_batches(0, translation.TRAINING))
    assert all(torch.equal(one, other) for one, other in zip(*batches, strict=True))


@torch.no_grad()
def test_padding_changes_neither_loss_nor_translation():
    pairs, model = sorted(draw_pairs(9, seed=6), key=lambda pair: len(pair.source)), new_translator().eval()
    batch = encode(pairs)
    words = [len(pair.target) + 1 for pair in pairs]
    alone = [float(translation_loss(model, encode([pair]))) for pair in pairs]
    expected = sum(loss * n for loss, n in zip(alone, words, strict=True)) / sum(words)
    assert_close(float(translation_loss(model, batch)), expected, rtol=1e-5, atol=1e-5)
    shortest = encode(pairs[:1])
    together = translate_with(model, batch.source, batch.source_mask)
    assert decode(together[0]) == decode(translate_with(model, shortest.source, shortest.source_mask)[0])


def test_the_loss_is_smoothed_only_while_training():
    model, batch = new_translator(), encode(draw_pairs(5))
    smoothed, plain = float(translation_loss(model.train(), batch)), float(translation_loss(model.eval(), batch))
    assert abs(smoothed - plain) > 1e-3  # dropout is 0 in this model


def test_a_perfect_alignment_scores_one_and_an_even_one_chance(monkeypatch):
    pairs = draw_pairs(9, seed=6)
    batch = encode(pairs)
    right = torch.nn.functional.one_hot(batch.alignment.clamp(min=0), batch.source.shape[1]).float()
    even = batch.source_mask[:, None].float().expand_as(right) / batch.source_mask.sum(1)[:, None, None]
    weights = torch.stack([right, even, right, even], dim=1)  # (B, H, T, S)
    model = new_translator().eval()

    class Seen:
        def __enter__(self):
            return {f"blocks.{i}.cross_attention.weights": weights for i in range(2)}

        def __exit__(self, *error):
            return False

    monkeypatch.setattr(translation, "record", lambda model: Seen())
    scores = alignment_scores(model, pairs)
    chance = chance_alignment(pairs)
    assert_close(scores, torch.tensor([[1, chance, 1, chance]] * 2), rtol=1e-5, atol=1e-6)


def test_an_untrained_model_translates_nothing_and_aligns_at_chance():
    pairs, model = draw_pairs(40, seed=1, held_out=True), new_translator().eval()
    assert accuracy(model, pairs) == 0.0
    assert abs(float(alignment_scores(model, pairs).mean()) - chance_alignment(pairs)) < 0.02

"""Faults excluded: a story with two derivations (its probability would be wrong), marks that miss, a sample that
repeats itself, train and test text that overlap, files that give a traceback instead of a sentence."""

import codecs
import itertools
import math
import random
import re
from collections import Counter

import pytest
import torch

from transformer_lib import grammar
from transformer_lib.corpus import (
    fresh_stories,
    information,
    pydoc_text,
    read_text,
    repeated_sequences,
    stories,
    story_text,
)
from transformer_lib.story_plots import PLOTS, SHAPES
from transformer_lib.storyteller import Mismatch, Reader, Teller, compile_sentence, derivations


@pytest.fixture(scope="module")
def sample():
    return stories(n_stories=2_500, seed=7)


def test_every_story_has_exactly_one_derivation_which_gives_its_choices_back(sample):
    for story in sample:
        assert list(derivations(story.text)) == [story]


@pytest.mark.long
def test_twenty_thousand_stories_have_one_derivation_each():
    for story in stories(n_stories=20_000, seed=11):
        assert list(derivations(story.text)) == [story]


class Counted(Teller):
    """Makes given choices, then always the first; notes how many options each choice had."""

    def __init__(self, choices=()):
        super().__init__()
        self.given, self.counts = choices, []

    def choose(self, options, form="", ahead=0):
        self.counts.append(len(options))
        self.information += math.log(len(options))
        self.choices.append(self.given[len(self.choices)] if len(self.choices) < len(self.given) else 0)
        return self.choices[-1]


def test_information_is_minus_the_log_of_the_product_of_the_choices_probabilities(sample):
    for story in sample[:200]:
        teller = Counted(story.choices)
        assert teller.tell() == story
        assert all(choice < count for choice, count in zip(story.choices, teller.counts))
        assert story.information == pytest.approx(sum(math.log(count) for count in teller.counts), rel=1e-12)


def test_choices_are_drawn_uniformly(sample):
    """The shape of a story, its first choice: two options; four standard deviations."""
    counts = Counter(story.choices[0] for story in sample)
    assert sorted(counts) == [0, 1]
    expected, spread = len(sample) / 2, math.sqrt(len(sample) / 4)
    assert all(abs(count - expected) < 4 * spread for count in counts.values())


def test_a_changed_story_has_no_derivation(sample):
    for story in sample[:50]:
        words = story.text.split(" ")
        assert not list(derivations(" ".join(words[:-1])))
        assert not list(derivations(story.text + " The end."))
        assert not list(
            derivations(story.text.replace(" was ", " were ").replace(" had ", " has ").replace(".", "", 1))
        )
    assert not list(derivations(""))


def test_information_of_a_text_is_the_sum_over_its_stories():
    told = stories(n_bytes=20_000, seed=3)
    text = story_text(n_bytes=20_000, seed=3)
    assert text == "".join(story.text + "\n" for story in told)
    assert information(text) == pytest.approx(sum(story.information for story in told), rel=1e-12)
    with pytest.raises(ValueError, match=r"Line 2 is not a story of the grammar .*'No story"):
        information(told[0].text + "\nNo story.\n")


def test_same_seed_same_stories_other_seed_others():
    assert stories(n_stories=20, seed=5) == stories(n_stories=20, seed=5)
    assert stories(n_stories=30, seed=5)[:20] == stories(n_stories=20, seed=5)
    assert stories(n_stories=20, seed=5) != stories(n_stories=20, seed=6)
    assert fresh_stories(5) == fresh_stories(5) != fresh_stories(5, seed=1)


def test_size_asked_for_is_the_size_given():
    for n_bytes in (1, 1_000, 50_000):
        text = story_text(n_bytes)
        assert n_bytes <= len(text.encode()) < n_bytes + 2_000
    with pytest.raises(ValueError, match="either how many"):
        stories()
    with pytest.raises(ValueError, match="either how many"):
        stories(n_stories=1, n_bytes=1)


def test_two_megabytes_do_not_repeat_themselves_and_hold_no_fresh_story():
    text = story_text(2_000_000)
    lines = text.splitlines()
    assert len(set(lines)) > 0.99 * len(lines)
    assert not set(lines) & {story.text for story in fresh_stories(200)}
    starts = Counter(" ".join(line.split()[:10]) for line in lines)
    assert starts.most_common(1)[0][1] < 0.05 * len(lines)


def test_every_alternative_of_every_beat_is_reachable():
    """Follow each first choice of a plot, then random tellings: each sentence of the grammar is used somewhere."""
    templates = {t for plot in PLOTS for beat in plot for t in beat} | {
        t for shape in SHAPES for beat in shape if beat is not PLOTS for t in beat
    }
    used = set()

    class Noting(Teller):
        def choose(self, options, form="", ahead=0):
            index = super().choose(options, form, ahead)
            if hasattr(options[index], "parts"):
                used.add(options[index].parts)
            return index

    rng = random.Random(0)
    for _ in range(4_000):
        Noting(rng).tell()
    missing = [t for t in templates if compile_sentence(t).parts not in used]
    assert missing == []


def test_grammar_of_the_text(sample):
    """Sentences start with capitals, end, and use "an" before vowels only; no slot is left open; one space between."""
    for story in sample:
        text = story.text
        assert not re.search(r"[{}|+=\n]|  |\b[Aa] [aeiou]|\b[Aa]n [^aeiou]", text), text
        assert re.match(r'[A-Z"]', text) and re.search(r'[.!?]"?$', text)
        assert not re.search(r'[.!?] "?[a-z]', re.sub(r'[!?]" (asked|cried) ', " ", text)), text
        assert text.count('"') % 2 == 0
        assert text.isascii()


def test_marks_lie_on_what_they_name(sample):
    pronouns = {p for forms in grammar.PRONOUNS.values() for p in forms.values()}
    things = {word[""] for word in grammar.WORDS["thing"]}
    kin = {word[""] for word in grammar.WORDS["kin"]}
    kinds = Counter()
    for story in sample:
        assert [mark.start for mark in story.marks] == sorted(mark.start for mark in story.marks)
        for mark in story.marks:
            kinds[mark.kind] += 1
            word = story.text[mark.start : mark.end]
            before = mark.earlier and story.text[slice(*mark.earlier)]
            assert mark.earlier is None or mark.earlier[1] <= mark.start
            if mark.kind == "pronoun":
                assert word.lower() in pronouns and before
            elif mark.kind in ("open", "close"):
                assert word == '"' and (before == '"') == (mark.kind == "close")
            else:
                assert before in (None, word)
                assert mark.kind == "name" or word in (things if mark.kind == "thing" else kin)
    assert set(kinds) == {"name", "kin", "pronoun", "thing", "open", "close"}


def gender_of(name: str) -> str:
    if " and " in name or ", " in name:
        return "they"
    for gender in ("he", "she"):
        if name in grammar.NAMES[gender] or name[:2] in grammar.FIRST_SYLLABLES[gender]:
            return gender
    return {word[""]: word["gender"] for word in grammar.WORDS["kin"]}[name]


def test_pronouns_agree_with_their_owner_and_every_name_or_pronoun_is_marked(sample):
    for story in sample:
        marked = {(mark.start, mark.end) for mark in story.marks}
        for mark in story.marks:
            if mark.kind == "pronoun":
                owner = story.text[slice(*mark.earlier)]
                assert story.text[mark.start : mark.end].lower() in grammar.PRONOUNS[gender_of(owner)].values(), (
                    story.text
                )
        names = {story.text[m.start : m.end] for m in story.marks if m.kind == "name"}
        for word in re.finditer(r"\w+", story.text):
            if word.group() in names or word.group().lower() in ("he", "she", "him", "his", "her", "they", "their"):
                assert word.span() in marked, story.text


def test_a_pronoun_means_the_latest_person_it_could_mean(sample):
    """Where a sentence starts with he or she, no one else of that gender has been mentioned after the owner."""
    for story in sample:
        people = [m for m in story.marks if m.kind in ("name", "kin")]
        for mark in story.marks:
            word = story.text[mark.start : mark.end]
            if mark.kind == "pronoun" and word in ("He", "She"):
                latest = [
                    m for m in people if m.end <= mark.start and gender_of(story.text[m.start : m.end]) == word.lower()
                ]
                owner = story.text[slice(*mark.earlier)]
                assert story.text[latest[-1].start : latest[-1].end] == owner, story.text


def test_names_of_a_story_differ_and_an_invented_name_is_never_a_common_one(sample):
    common = set(grammar.NAMES["he"] + grammar.NAMES["she"])
    invented = {
        first + last
        for first, last in itertools.product(itertools.chain(*grammar.FIRST_SYLLABLES.values()), grammar.LAST_SYLLABLES)
    }
    assert not common & invented
    share = Counter()
    for story in sample:
        names = {story.text[m.start : m.end] for m in story.marks if m.kind == "name"}
        assert len({name[:2] for name in names}) == len(names)
        share.update(name in common for name in names)
    assert 0.4 < share[True] / share.total() < 0.6


def test_a_reader_gives_up_at_the_first_difference():
    reader = Reader("Nothing of this is in the grammar.")
    with pytest.raises(Mismatch):
        reader.tell()
    assert reader.length == 0


# --- repeated symbols ------------------------------------------------------------------------------------------------


def test_repeated_sequences_repeat_with_a_period_of_their_own():
    n, length, vocab_size = 60, 37, 11
    ids, predictable, earlier = repeated_sequences(n, length, vocab_size, seed=2)
    assert ids.shape == predictable.shape == earlier.shape == (n, length)
    assert ids.dtype == torch.int64 and ids.min() >= 0 and ids.max() == vocab_size - 1
    periods = set()
    for row, known, source in zip(ids, predictable, earlier):
        period = int(known.nonzero()[0])
        periods.add(period)
        assert torch.equal(row[period:], row[:-period])
        assert known.nonzero().flatten().tolist() == list(range(period, length - 1))
        for t in range(period, length - 1):
            assert row[source[t] - 1] == row[t] and row[source[t]] == row[t + 1]
    assert periods == set(range(length // 4, length // 2 + 1))


def test_repeated_sequences_are_seeded_and_refuse_what_cannot_be():
    assert torch.equal(repeated_sequences(3, 20, 5, seed=1).ids, repeated_sequences(3, 20, 5, seed=1).ids)
    assert not torch.equal(repeated_sequences(3, 20, 5, seed=1).ids, repeated_sequences(3, 20, 5, seed=2).ids)
    with pytest.raises(ValueError, match="not 3, 7 and 5"):
        repeated_sequences(3, 7, 5)


# --- text files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("plain é😀\n".encode(), "plain é😀\n"),
        (codecs.BOM_UTF8 + b"mark", "mark"),
        ("both".encode("utf-16"), "both"),
        (codecs.BOM_UTF16_BE + "big".encode("utf-16-be"), "big"),
        (b"a\r\nb\r\n\nc\rd", "a\nb\n\nc\rd"),
    ],
)
def test_text_files_that_work(tmp_path, content, text):
    path = tmp_path / "text"
    path.write_bytes(content)
    assert read_text(path) == read_text(str(path)) == text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "too short: it has 0 characters and 1 "),
        (b" \n\n", "too short"),
        ("naïve".encode("latin-1"), r"not UTF-8 text \(byte 2 is wrong\)"),
        (bytes(range(256)) * 9, "not UTF-8"),
        (b"MZ\0\0\0\3", "binary"),
        (codecs.BOM_UTF16_LE + b"odd", "not UTF-8|encoding"),
    ],
)
def test_text_files_that_are_refused_in_one_sentence(tmp_path, content, message):
    path = tmp_path / "text"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        read_text(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_text_file_missing_folder_short_or_huge(tmp_path):
    path = tmp_path / "text"
    with pytest.raises(ValueError, match="No such file"):
        read_text(path)
    with pytest.raises(ValueError, match=re.escape(f"{tmp_path} cannot be read")):
        read_text(tmp_path)
    path.write_text("twelve signs")
    with pytest.raises(ValueError, match="it has 12 characters and 5,000 are needed"):
        read_text(path, min_characters=5_000)
    with path.open("wb") as file:
        file.truncate(10**12)  # a sparse file: no disk is used
    with pytest.raises(ValueError, match="1,000,000,000,000 bytes, more than the 500,000,000"):
        read_text(path)


def test_pydoc_text_is_long_prose():
    text = pydoc_text()
    assert len(text) > 300_000 and text.count("the ") > 2_000 and text == pydoc_text()

"""Head scores: a head that does a job by construction scores 1, one that does not scores chance."""

import pytest
import torch
from small import build, random_ids, small

from transformer_lib import edit
from transformer_lib.corpus import fresh_stories, repeated_sequences, story_text
from transformer_lib.head_scores import Job, induction_scores, questions, score, story_job, story_scores, tokens_of
from transformer_lib.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(story_text(100_000), 500)


def put_on(targets):
    """An edit of attention weights: head 3 looks at targets[row, query] alone, the others equally at all they see."""

    def change(weights):
        t = weights.shape[-1]
        equal = torch.ones(t, t).tril() / torch.arange(1, t + 1)[:, None]  # (T, T)
        weights = equal.expand_as(weights).clone()
        weights[:, 3] = torch.nn.functional.one_hot(targets, t).float()
        return weights

    return change


@pytest.mark.parametrize("kind", ["name", "quote", "pronoun"])
def test_a_head_that_does_the_job_scores_one_and_equal_attention_scores_chance(tokenizer, kind):
    stories = fresh_stories(12, seed=3)
    rows = [tokenizer.encode(f"\n{story.text}\n") for story in stories]
    longest = max(map(len, rows))
    ids = torch.tensor([row + row[-1:] * (longest - len(row)) for row in rows])
    model = build(small(vocab_size=500, max_seq_len=400))
    job = story_job(kind, tokenizer, stories, longest)
    targets = torch.zeros(len(rows), longest, dtype=torch.int64)
    targets[job.row, job.query] = job.right.int().argmax(dim=1)
    with edit(model, {"blocks.1.attention.weights": put_on(targets)}):
        result = score(model, ids, {kind: job})[kind]
    assert result.best[1:] == (1, 3) and abs(result.best[0] - 1) < 1e-6
    assert abs(float(result.by_head[1, 0]) - result.chance) < 1e-5 and 0 < result.chance < 0.5


def test_the_right_positions_hold_the_right_words(tokenizer):
    for story in fresh_stories(20, seed=4):
        text = f"\n{story.text}\n"
        spans = tokenizer.spans(text)
        for kind in ("name", "quote", "pronoun"):
            for at, earlier in questions(kind, story.marks):
                word = story.text[slice(*at)]
                held = [text[spans[i][0] : spans[i][1]] for i in tokens_of(spans, at)]
                assert word in "".join(held)
                for span in earlier:
                    assert span[1] <= at[0]
                    if kind == "name":
                        assert story.text[slice(*span)] == word
                    if kind == "quote":
                        assert story.text[slice(*span)] == '"' == word


def test_names_lead_back_to_every_earlier_mention(tokenizer):
    story = fresh_stories(1, seed=5)[0]
    name = next(mark for mark in story.marks if mark.kind == "name")
    word = story.text[name.start : name.end]
    mentions = [(m.start, m.end) for m in story.marks if m.kind == "name" and story.text[m.start : m.end] == word]
    asked = {at: earlier for at, earlier in questions("name", story.marks) if at in mentions}
    for k, at in enumerate(mentions[1:], start=1):
        assert sorted(asked[at]) == mentions[:k]


def test_previous_and_first(tokenizer):
    model = build(small(vocab_size=500, max_seq_len=400))
    stories = fresh_stories(3)
    longest = max(len(tokenizer.encode(f"\n{story.text}\n")) for story in stories)
    before = (torch.arange(longest) - 1).clamp(min=0).expand(3, -1)
    with edit(model, {"blocks.0.attention.weights": put_on(before)}):
        scores = story_scores(model, tokenizer, stories)
    assert scores["previous"].best == (1.0, 0, 3) and float(scores["first"].by_head[0, 3]) < 0.05


def test_induction():
    model, repeated = build(small(max_seq_len=40)), repeated_sequences(5, 40, 29)
    with edit(model, {"blocks.1.attention.weights": put_on(repeated.earlier)}):
        scores = induction_scores(model, repeated)
    assert scores.best == (1.0, 1, 3) and scores.chance < 0.1


def test_scores_do_not_depend_on_how_rows_are_taken_together(monkeypatch):
    model, ids = build(small()), random_ids(7, 9)
    job = Job(torch.tensor([0, 3, 6]), torch.tensor([4, 8, 1]), torch.arange(9) < torch.tensor([[2], [5], [1]]))
    whole = score(model, ids, {"job": job})["job"].by_head
    monkeypatch.setattr("transformer_lib.head_scores.ROWS_AT_A_TIME", 2)
    assert torch.allclose(score(model, ids, {"job": job})["job"].by_head, whole, atol=1e-6)


def test_stories_without_the_thing_are_refused(tokenizer):
    with pytest.raises(ValueError, match="hold nothing to score 'name'"):
        story_job("name", tokenizer, [], 5)

"""What is a head's job? Scores on fresh stories, from what the corpus knows about them.

A job is a set of questions: at this position, on which earlier ones should a head that has the job put its attention? A
head's score is the mean weight that it puts there, from 0 to 1. Beside it stands chance: what a head that looks at all
visible positions equally puts there. A head deserves a name only where its score is far above chance and above the
untrained model's.

    scores = story_scores(model, tokenizer, fresh_stories(100))
    scores["name"].by_head        # (L, H)
    scores["name"].best           # (score, layer, head)
    scores["name"].chance

The jobs: "previous" (the token before this one) and "first" (the first token, an attention sink), asked at every token;
at the token just before the thing in question, "name" (earlier mentions of the name that comes next), "quote" (the mark
that opened the quotation that closes next) and "pronoun" (mentions of whom the pronoun that comes next stands for).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from transformer_lib.corpus import Mark, Repeated, Story
from transformer_lib.model import Transformer
from transformer_lib.recording import record
from transformer_lib.tokenizer import Tokenizer

LEAST, TIMES = 0.3, 3  # a job names a head that scores at least this, and so many times chance and the untrained best
ROWS_AT_A_TIME = 25  # attention weights of all layers and heads are kept while they are scored


class Job(NamedTuple):
    """N questions about B rows of T tokens."""

    row: Tensor  # (N,) which row
    query: Tensor  # (N,) at which position
    right: Tensor  # (N, T) bool, on which positions the attention should be

    @property
    def chance(self) -> float:
        """The score of equal attention to every position up to the query."""
        return float((self.right.sum(dim=1) / (self.query + 1)).mean())


class Scores(NamedTuple):
    """One job's score of every head."""

    by_head: Tensor  # (L, H)
    chance: float

    @property
    def best(self) -> tuple[float, int, int]:
        """(score, layer, head) of the highest score."""
        layer, head = divmod(int(self.by_head.argmax()), self.by_head.shape[1])
        return float(self.by_head[layer, head]), layer, head


def named_heads(trained: dict[str, Scores], untrained: dict[str, Scores]) -> dict[tuple[int, int], list[str]]:
    """{(layer, head): its jobs}: only jobs scored `LEAST` or more, and `TIMES` chance and the untrained best."""
    names: dict[tuple[int, int], list[str]] = {}
    for job, scores in trained.items():
        least = max(LEAST, TIMES * scores.chance, TIMES * untrained[job].best[0])
        for layer, head in (scores.by_head >= least).nonzero().tolist():
            names.setdefault((layer, head), []).append(job)
    return names


def story_scores(model: Transformer, tokenizer: Tokenizer, stories: list[Story]) -> dict[str, Scores]:
    """The scores of all heads for every job that the stories ask for, by the job's name."""
    rows = [tokenizer.encode(f"\n{story.text}\n") for story in stories]
    lengths = torch.tensor([len(row) for row in rows])  # (B,)
    longest = int(lengths.max())
    ids = torch.tensor([row + row[-1:] * (longest - len(row)) for row in rows])  # (B, T)
    jobs = {"previous": previous_job(lengths, longest), "first": first_job(lengths, longest)}
    jobs |= {kind: story_job(kind, tokenizer, stories, longest) for kind in ("name", "quote", "pronoun")}
    return score(model, ids, jobs)


def induction_scores(model: Transformer, repeated: Repeated) -> Scores:
    """Mean attention from a repeated symbol to the one after its earlier occurrence (Olsson et al., 2022)."""
    row, query = repeated.predictable.nonzero(as_tuple=True)  # (N,), (N,)
    right = torch.arange(repeated.ids.shape[1]) == repeated.earlier[row, query][:, None]  # (N, T)
    return score(model, repeated.ids, {"induction": Job(row, query, right)})["induction"]


@torch.no_grad()
def score(model: Transformer, ids: Tensor, jobs: dict[str, Job]) -> dict[str, Scores]:
    """ids: (B, T) int64. Scores of every head for every job."""
    cfg = model.cfg
    totals = {name: torch.zeros(cfg.n_layers, cfg.n_heads) for name in jobs}
    for start in range(0, len(ids), ROWS_AT_A_TIME):
        with record(model) as seen:
            model(ids[start : start + ROWS_AT_A_TIME])
        for name, job in jobs.items():
            here = (job.row >= start) & (job.row < start + ROWS_AT_A_TIME)  # (N,)
            row, query, right = job.row[here] - start, job.query[here], job.right[here]
            for layer in range(cfg.n_layers):
                weights = seen[f"blocks.{layer}.attention.weights"][row, :, query]  # (n, H, T)
                totals[name][layer] += (weights * right[:, None]).sum(dim=(0, 2))  # (H,)
    return {name: Scores(total / len(jobs[name].row), jobs[name].chance) for name, total in totals.items()}


def previous_job(lengths: Tensor, longest: int) -> Job:
    """At every token but the first of its row: the one before it."""
    row, query = real_positions(lengths, longest)
    return Job(row, query, torch.arange(longest) == query[:, None] - 1)


def first_job(lengths: Tensor, longest: int) -> Job:
    """At every token but the first of its row: the first."""
    row, query = real_positions(lengths, longest)
    return Job(row, query, (torch.arange(longest) == 0).expand(len(row), -1))


def real_positions(lengths: Tensor, longest: int) -> tuple[Tensor, Tensor]:
    """Row and position of every token, (N,) each, without padding and without each row's first."""
    at = torch.arange(longest)
    return ((at > 0) & (at < lengths[:, None])).nonzero(as_tuple=True)


def story_job(kind: str, tokenizer: Tokenizer, stories: list[Story], longest: int) -> Job:
    """The job "name", "quote" or "pronoun" on these stories, each a row that begins with a newline."""
    rows, queries, rights = [], [], []
    for row, story in enumerate(stories):
        spans = tokenizer.spans(f"\n{story.text}\n")
        for at, earlier in questions(kind, story.marks):
            query = tokens_of(spans, at)[0] - 1
            right = torch.zeros(longest, dtype=torch.bool)
            for span in earlier:
                right[tokens_of(spans, span)] = True
            if query >= 0 and right[: query + 1].any():
                rows.append(row)
                queries.append(query)
                rights.append(right)
    if not rows:
        raise ValueError(f"these {len(stories)} stories hold nothing to score {kind!r} on; give more stories.")
    return Job(torch.tensor(rows), torch.tensor(queries), torch.stack(rights))


def questions(kind: str, marks: tuple[Mark, ...]) -> Iterator[tuple[tuple[int, int], list[tuple[int, int]]]]:
    """(where it stands, where attention should be) in characters of the story, for each mark of that kind."""
    wanted = "close" if kind == "quote" else kind
    before = {(mark.start, mark.end): mark.earlier for mark in marks if mark.kind == "name"}
    for mark in marks:
        if mark.kind == wanted and mark.earlier is not None:
            spans, span = [], mark.earlier
            while span is not None:  # a name's mention leads to the one before it, and so on back to the first
                spans.append(span)
                span = before.get(span)
            yield (mark.start, mark.end), spans


def tokens_of(spans: list[tuple[int, int]], characters: tuple[int, int]) -> list[int]:
    """The tokens that hold the characters start:end of a story, in a row that has a newline before it."""
    start, end = characters[0] + 1, characters[1] + 1
    return [i for i, (first, last) in enumerate(spans) if first < end and last > start]

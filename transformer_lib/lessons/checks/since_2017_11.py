"""Exercises of notebook 11: a permuted head, a router, a recurrence, and one step of unmasking."""

import torch

from transformer_lib.lessons.exercises import Exercise
from transformer_lib.positions import interleaved_to_half_split
from transformer_lib.relatives.scan import recurrence


def weight_cases(rng):
    """The projection of one layer, (H · d_k, d_model), and H."""
    for heads, d_k, d_model in ((2, 4, 5), (3, 6, 7), (1, 8, 3)):
        yield torch.randn(heads * d_k, d_model), heads


def to_half_split(weight, heads):
    order = interleaved_to_half_split(len(weight) // heads)  # (d_k,)
    return weight.unflatten(0, (heads, -1))[:, order].flatten(0, 1)  # (H · d_k, d_model)


def whole_rows(weight, heads):
    return weight[interleaved_to_half_split(len(weight))]


def backwards(weight, heads):
    order = interleaved_to_half_split(len(weight) // heads).argsort()
    return weight.unflatten(0, (heads, -1))[:, order].flatten(0, 1)


def columns(weight, heads):
    return weight[:, torch.arange(weight.shape[1]).roll(1)]


def router_cases(rng):
    """Router scores (T, E), and k."""
    for tokens, experts, k in ((4, 6, 2), (7, 5, 3), (3, 8, 2)):
        yield torch.randn(tokens, experts), k


def route(scores, k):
    probabilities = scores.softmax(dim=-1)  # (T, E)
    best = probabilities.topk(k, dim=-1).indices  # (T, k)
    kept = torch.zeros_like(probabilities).scatter(-1, best, probabilities.gather(-1, best))  # (T, E)
    return kept / kept.sum(dim=-1, keepdim=True)


def route_unscaled(scores, k):
    probabilities = scores.softmax(dim=-1)
    best = probabilities.topk(k, dim=-1).indices
    return torch.zeros_like(probabilities).scatter(-1, best, probabilities.gather(-1, best))


def route_equal(scores, k):
    return (route(scores, k) > 0).float() / k


def state_cases(rng):
    """decay (T, N), write (T, N), and the state before, (N,)."""
    for steps, n in ((5, 3), (2, 4), (7, 6)):
        yield torch.rand(steps, n), torch.randn(steps, n), torch.randn(n)


def states(decay, write, state):
    return recurrence(decay[None, :, None], write[None, :, None], state[None, None])[0, :, 0]  # (T, N)


def decayed_write(decay, write, state):
    found = []
    for a, b in zip(decay, write, strict=True):
        state = a * (state + b)
        found.append(state)
    return torch.stack(found)


def unmask_cases(rng):
    """ids (T,), mask_id, the drawn ids (T,), their confidences (T,), and how many to keep."""
    for length, hidden, count in ((7, 5, 2), (9, 4, 4), (6, 6, 1)):
        ids = torch.randint(0, 50, (length,))
        ids[torch.randperm(length)[:hidden]] = 50
        confidence = torch.rand(length)
        confidence[ids != 50] += 1  # a visible word would always win
        yield ids, 50, torch.randint(0, 50, (length,)), confidence, count


def uncover(ids, mask_id, drawn, confidence, count):
    best = confidence.masked_fill(ids != mask_id, -1).topk(count).indices  # (count,)
    ids = ids.clone()
    ids[best] = drawn[best]
    return ids


def uncover_anywhere(ids, mask_id, drawn, confidence, count):
    best, ids = confidence.topk(count).indices, ids.clone()
    ids[best] = drawn[best]
    return ids


def uncover_all(ids, mask_id, drawn, confidence, count):
    return torch.where(ids == mask_id, drawn, ids)


def uncover_unsure(ids, mask_id, drawn, confidence, count):
    return uncover(ids, mask_id, drawn, 1 / (1 + confidence), count)


EXERCISES = [
    Exercise(
        "half_split",
        reference=to_half_split,
        cases=weight_cases,
        mistakes={
            "each head has its own pairs: reorder the rows inside every head, not across all of them": whole_rows,
            "this is the way back, from half-split to interleaved": backwards,
            "the outputs of the projection are its rows; the columns read the stream": columns,
        },
        praise="Every importer of Llama weights does this to the query and key projections, and to no others.",
    ),
    Exercise(
        "router",
        reference=route,
        cases=router_cases,
        mistakes={
            "the kept weights must sum to one again": route_unscaled,
            "the chosen experts are weighted by their probabilities, not equally": route_equal,
            "only the k best experts are used": lambda scores, k: scores.softmax(dim=-1),
            "one row per token: the softmax goes along the experts": lambda scores, k: route(scores.T, k).T,
        },
        praise="A zero means that the expert does not even run for this token.",
    ),
    Exercise(
        "recurrence",
        reference=states,
        cases=state_cases,
        mistakes={
            "the state decays before the new token is written, which enters whole": decayed_write,
            "the state from before the first token is forgotten": lambda a, b, h: states(a, b, torch.zeros_like(h)),
            "without the decay this is a running sum": lambda a, b, h: states(torch.ones_like(a), b, h),
        },
        praise="However long the text is, the loop carries N numbers.",
    ),
    Exercise(
        "unmask_step",
        reference=uncover,
        cases=unmask_cases,
        mistakes={
            "words that are visible already must not compete, nor be replaced": uncover_anywhere,
            "only `count` words are uncovered in a step; the others are hidden again": uncover_all,
            "the surest words are kept, not the least sure": uncover_unsure,
        },
        praise="Repeat it until nothing is hidden: this is the whole of generation by unmasking.",
    ),
]

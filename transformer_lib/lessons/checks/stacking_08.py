"""Exercises of notebook 08: a block, two ways to sample, and a whole model out of the learner's own functions."""

from contextlib import contextmanager

import torch

from transformer_lib.attention import MultiHeadAttention
from transformer_lib.config import TransformerConfig
from transformer_lib.generation import next_token_probabilities
from transformer_lib.lessons import bugs
from transformer_lib.lessons.exercises import Exercise
from transformer_lib.model import Transformer
from transformer_lib.toy import is_trained, load_toy, toy_folder

# --- The order of a block ---


def halve_and_shift(x):
    """Stands for a norm: no two of these four commute."""
    return x / 2 + 1


def mix(x):
    """Stands for attention: positions mix."""
    return x.cumsum(dim=-2) * 0.3


def scale(x):
    return x * 3 - 0.5


def bend(x):
    """Stands for an MLP."""
    return x**2 - x


def block_cases(rng):
    for t, d in ((3, 5), (4, 7)):
        yield torch.randn(t, d), halve_and_shift, mix, scale, bend


def block_order(x, norm_1, attention, norm_2, mlp):
    x = x + attention(norm_1(x))
    return x + mlp(norm_2(x))


def parallel(x, norm_1, attention, norm_2, mlp):
    return x + attention(norm_1(x)) + mlp(norm_2(x))


def mlp_on_old_stream(x, norm_1, attention, norm_2, mlp):
    return x + mlp(norm_2(x + attention(norm_1(x))))


def post_norm(x, norm_1, attention, norm_2, mlp):
    x = norm_1(x + attention(x))
    return norm_2(x + mlp(x))


def no_residual(x, norm_1, attention, norm_2, mlp):
    return mlp(norm_2(attention(norm_1(x))))


def adds_normed(x, norm_1, attention, norm_2, mlp):
    y = norm_1(x)
    x = y + attention(y)
    y = norm_2(x)
    return y + mlp(y)


# --- Sampling ---


def logit_cases(rng):
    for (*lead, v), temperature in (((5,), 0.5), ((3, 8), 2.0), ((4,), 0.1)):
        yield 4 * torch.randn(*lead, v), temperature
    yield torch.tensor([[1000.0, 999.0, 900.0], [1.0, 0.0, 2.0]]), 0.25


def one_maximum(logits, temperature):
    e = ((logits - logits.max()) / temperature).exp()
    return e / e.sum(-1, keepdim=True)


def top_p_cases(rng):
    for v, p in ((6, 0.6), (9, 0.9), (5, 0.2), (8, 0.75)):
        yield torch.softmax(1.5 * torch.randn(v), dim=-1), p


def top_p(probabilities, p):
    return next_token_probabilities(probabilities.log(), top_p=p)


def cut(probabilities, k):
    """The k likeliest keep what they had."""
    least = probabilities.sort(dim=-1, descending=True).values[..., k - 1, None]
    return probabilities.masked_fill(probabilities < least, 0)


def one_too_few(probabilities, p):
    """The nucleus without the token that reaches p."""
    ordered, order = probabilities.sort(descending=True)
    kept = torch.zeros_like(probabilities).scatter(0, order, ordered.masked_fill(ordered.cumsum(0) > p, 0))
    return kept / kept.sum()


def above_threshold(probabilities, p):
    kept = probabilities.masked_fill(probabilities < p, 0)
    return kept / kept.sum()


def in_order_of_ids(probabilities, p):
    kept = probabilities.masked_fill(probabilities.cumsum(0) - probabilities >= p, 0)
    return kept / kept.sum()


def second_softmax(probabilities, p):
    return torch.softmax(probabilities.masked_fill(top_p(probabilities, p) == 0, -torch.inf), dim=-1)


def nucleus_size(probabilities, p):
    ordered = probabilities.sort(descending=True).values
    return int((ordered.cumsum(0) - ordered < p).sum())


# --- The whole model ---

# Two small models of the toy's architecture; no two sizes coincide.
SHAPES = (
    TransformerConfig(vocab_size=11, d_model=12, n_layers=3, n_heads=2, head_dim=4, d_ff=10, max_seq_len=16),
    TransformerConfig(vocab_size=13, d_model=20, n_layers=2, n_heads=5, head_dim=6, d_ff=7, max_seq_len=16),
)


def model_cases(rng):
    for cfg, (b, t) in zip(SHAPES, ((2, 5), (3, 7)), strict=True):
        model = Transformer(cfg)
        with torch.no_grad():
            for weight in model.parameters():  # larger than at the start of training, norms included, so that all count
                weight.normal_(1.0 if weight.dim() == 1 else 0.0, 0.4)
        yield torch.randint(cfg.vocab_size, (b, t)), model.state_dict(), cfg
    if is_trained(toy_folder()):  # the learner's own toy, which the notebook has trained by then
        model, _ = load_toy()
        yield torch.randint(model.cfg.vocab_size, (2, 9)), model.state_dict(), model.cfg


def library_model(ids, weights, cfg):
    model = Transformer(cfg)
    model.load_state_dict(weights)
    with torch.no_grad():
        return model(ids)


def with_config(**changes):
    """The same weights in a model that does one thing differently."""
    return lambda ids, weights, cfg: library_model(ids, weights, cfg.replace(**changes))


def with_weights(change):
    return lambda ids, weights, cfg: library_model(ids, change(weights), cfg)


def with_bug(switch):
    def run(ids, weights, cfg):
        with switch():
            return library_model(ids, weights, cfg)

    return run


@contextmanager
def turned_values():
    def keys_and_values(original, self, x, rotation, cache, layer):
        k, v = original(self, x, rotation, cache, layer)
        return k, self.rotate(v, *rotation)

    with bugs.replaced(MultiHeadAttention, "keys_and_values", keys_and_values, None):
        yield


def one_block_for_all(weights):
    return {name: weights[name.replace(f"blocks.{name.split('.')[1]}.", "blocks.0.")] if "blocks." in name else tensor
            for name, tensor in weights.items()}  # fmt: skip


def only_block_0(weights):
    """The later blocks write nothing."""
    return {name: 0 * tensor if "blocks." in name and "blocks.0." not in name else tensor
            for name, tensor in weights.items()}  # fmt: skip


EXERCISES = [
    Exercise(
        "block_order",
        reference=block_order,
        cases=block_cases,
        mistakes={
            "both sublayers read the same x: the MLP must read the stream after attention was added": parallel,
            "this is post-norm, norm(x + sublayer(x)); pre-norm is x + sublayer(norm(x))": post_norm,
            "nothing is added: each sublayer replaces the stream": no_residual,
            "the normed stream is added to, not the stream itself": adds_normed,
            "the MLP reads the stream without its norm": lambda x, norm_1, attention, norm_2, mlp: block_order(
                x, norm_1, attention, lambda y: y, mlp
            ),
            "the MLP reads through norm_1; its own is norm_2": lambda x, norm_1, attention, norm_2, mlp: block_order(
                x, norm_1, attention, norm_1, mlp
            ),
            "the MLP's output goes to the old x: attention's update is lost": mlp_on_old_stream,
        },
        praise="This is the order of GPT-2 and of Llama 2.",
    ),
    Exercise(
        "with_temperature",
        reference=lambda logits, t: next_token_probabilities(logits, temperature=t),
        cases=logit_cases,
        mistakes={
            "the logits are multiplied by the temperature, not divided": lambda logits, t: torch.softmax(
                logits * t, -1
            ),
            "the temperature has no effect: divide the logits by it, not the probabilities": lambda logits, t: (
                torch.softmax(logits, -1) / t / (torch.softmax(logits, -1) / t).sum(-1, keepdim=True)
            ),
            "one maximum for the whole batch: subtract each row its own, or a low row becomes 0 / 0": one_maximum,
            "not stable: exp overflows for large logits; subtract the maximum first": lambda logits, t: (
                (logits / t).exp() / (logits / t).exp().sum(-1, keepdim=True)
            ),
        },
    ),
    Exercise(
        "top_p",
        reference=top_p,
        cases=top_p_cases,
        mistakes={
            "the token that reaches p is missing: the sum of those kept must be at least p": one_too_few,
            "this keeps tokens that are likelier than p; p is a sum over the likeliest tokens": above_threshold,
            "what is left does not sum to one: divide it by its sum": lambda probabilities, p: cut(
                probabilities, nucleus_size(probabilities, p)
            ),
            "the result is sorted: each probability must go back to the place of its token": lambda probabilities, p: (
                top_p(probabilities, p).sort(descending=True).values
            ),
            "the sum runs in the order of the ids: sort by probability first": in_order_of_ids,
            "these are probabilities already: divide by their sum, no second softmax": second_softmax,
        },
    ),
    Exercise(
        "whole_model",
        reference=library_model,
        cases=model_cases,
        tolerance=1e-4,
        mistakes={
            "queries and keys are not turned by their positions": with_config(positions="none"),
            "the causal mask is missing: every position sees the later ones": with_config(causal=False),
            "the scores are not divided by √d_k": with_config(scale_scores=False),
            "the scores are divided by √d_model; each head divides by its own √d_k": with_bug(bugs.divide_by_d_model),
            "nothing is added to the stream: x + sublayer(norm(x))": with_config(residual=False),
            "the final norm before the unembedding is missing": with_bug(bugs.missing_final_norm),
            "every layer runs with the weights of block 0": with_weights(one_block_for_all),
            "only block 0 runs: each block reads what the one before it returned": with_weights(only_block_0),
            "the values are turned too; RoPE turns queries and keys alone": with_bug(turned_values),
            "W₁ and W₃ have changed places: SiLU goes on W₁ x": with_bug(bugs.swapped_gate),
            "this reads the logits from the embedding; the table for that is `unembedding.weight`": with_weights(
                lambda weights: {**weights, "unembedding.weight": weights["embedding.weight"]}
            ),
            "these are probabilities: return the logits": lambda ids, weights, cfg: torch.softmax(
                library_model(ids, weights, cfg), dim=-1
            ),
        },
        praise="Your own functions give the logits of two small models and of the toy.",
    ),
]

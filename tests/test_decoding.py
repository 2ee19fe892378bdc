"""The fast path of decoding: other text than the readable one, a bug or an edit that it hides, memory it hides."""

import pytest
import torch
from small import build, left_padding, random_ids, small

from transformer_lib import KVCache, decoding, edit, generate, record
from transformer_lib.decoding import DecodeCopy, checked_copy, rotation_matrix
from transformer_lib.lessons import bugs
from transformer_lib.positions import rotate, rotation
from transformer_lib.recording import zero_head
from transformer_lib.relatives.moe import MoEConfig, MoETransformer

CLOSE = {"atol": 1e-4, "rtol": 1e-4}
LONG = {"max_seq_len": 61}
SHAPES = {
    "llama": {},
    "MHA": {"n_kv_heads": None},
    "MQA": {"n_kv_heads": 1},
    "gpt2": {"positions": "learned", "norm": "layernorm", "activation": "gelu", "bias": True, "tie_embeddings": True},
    "2017": {
        "positions": "sinusoidal", "norm": "layernorm", "norm_position": "post", "activation": "relu", "bias": True,
        "embedding_scale": True,
    },
    "post-norm llama": {"norm_position": "post", "bias": True},
    "no positions, broken on purpose": {"positions": "none", "residual": False, "scale_scores": False},
    "stretched rope": {"rope_scaling": (8.0, 1.0, 4.0, 16), "rope_theta": 500.0, "norm_eps": 0.1},
}  # fmt: skip


@pytest.fixture
def copies(monkeypatch):
    """The copies that `generate` makes, in a list: it must not be said to be fast where it is not."""
    made = []

    class Counted(DecodeCopy):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.steps = 0
            made.append(self)

        def logits(self, *arguments):
            self.steps += 1
            return super().logits(*arguments)

    monkeypatch.setattr(decoding, "DecodeCopy", Counted)
    return made


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_every_step_gives_the_logits_and_the_cache_of_the_model(shape):
    for rows in (1, 3):
        model, ids = build(small(**LONG, **shape)), random_ids(rows, 11)
        fast, readable = KVCache(model.cfg, rows, 11), KVCache(model.cfg, rows, 11)
        copy = DecodeCopy(model, 11, rows)
        for i in range(11):
            logits = step(copy, ids[:, i], fast)
            torch.testing.assert_close(logits, model(ids[:, i : i + 1], cache=readable)[:, -1], **CLOSE)
            assert logits.shape == (rows, 29) and not logits.requires_grad
        torch.testing.assert_close(fast.keys, readable.keys, **CLOSE)
        torch.testing.assert_close(fast.values, readable.values, **CLOSE)


def step(copy: DecodeCopy, tokens, cache: KVCache):
    """What `generate` does with a copy."""
    cache.reserve(len(tokens), 1, None)
    cache.advance(1)
    return copy.logits(tokens, cache)


@pytest.mark.parametrize("rows", [1, 3])
def test_the_next_step_leaves_the_logits_of_this_one_alone(rows):
    model = build(small(**LONG))
    copy, cache = DecodeCopy(model, 11, rows), KVCache(model.cfg, rows, 11)
    kept = step(copy, random_ids(rows, 1)[:, 0], cache)
    before = kept.clone()
    step(copy, random_ids(rows, 1)[:, 0] + 1, cache)
    assert torch.equal(kept, before)


PROMPTS = {"one": [9], "one, padded": [7], "three": [9, 9, 9], "three lengths": [9, 1, 4]}


@pytest.mark.parametrize("lengths", PROMPTS.values(), ids=PROMPTS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("how", [{}, {"temperature": 1.5, "top_p": 0.9, "seed": 3}], ids=["greedy", "drawn"])
def test_generate_writes_the_same_text_with_it(shape, how, lengths, copies, monkeypatch):
    model, ids, keep = build(small(**LONG, **shape)), random_ids(len(lengths), 9), left_padding(lengths, 9)
    fast = generate(model, ids, max_new_tokens=52, padding_mask=keep, **how)
    assert [copy.steps for copy in copies] == [51], "one to check it, and all that follow"
    monkeypatch.setattr(decoding, "FEWEST_STEPS", 10**6)
    assert torch.equal(fast, generate(model, ids, max_new_tokens=52, padding_mask=keep, **how)) and len(copies) == 1


def test_stopping_and_streaming_are_as_without_it(copies, monkeypatch):
    model, ids = build(small(**LONG)), random_ids(1, 9)
    free = generate(model, ids, max_new_tokens=52, temperature=2.0, seed=5)[0, 9:].tolist()
    stop = next(
        token for token in free if free.index(token) > 5
    )  # comes up for the first time when the copy is at work
    streamed, how = [], {"max_new_tokens": 52, "temperature": 2.0, "seed": 5, "stop_ids": [stop]}
    out = generate(model, ids, on_token=lambda token: streamed.append(int(token)), **how)
    assert out[0, 9:].tolist() == streamed == free[: free.index(stop) + 1]
    assert copies[-1].steps == len(streamed) - 1


def test_its_memory_is_the_weights_that_multiply_a_second_time():
    for shape in SHAPES.values():
        model = build(small(**shape))
        matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and "embedding" not in n.split(".")[0]]
        biases = [p for n, p in model.named_parameters() if n.endswith("bias") and "norm" not in n]
        tied = [model.unembedding.weight] if model.cfg.tie_embeddings else []
        untied = [] if tied else [model.unembedding.weight]
        blocks = [p for p in matrices if all(p is not u for u in untied)]
        assert DecodeCopy(model, 5).nbytes == sum(p.nbytes for p in (*blocks, *biases, *tied, *untied))


def test_the_weights_are_copied_anew_for_every_call(copies):
    model, ids = build(small(**LONG)), random_ids(1, 9)
    first = generate(model, ids, max_new_tokens=52)
    with torch.no_grad():
        model.unembedding.weight.neg_()
    second = generate(model, ids, max_new_tokens=52)
    assert len(copies) == 2 and not torch.equal(first, second)


# --- Where the readable path goes on ---


@pytest.mark.parametrize("case", ["many rows", "few steps", "no cache", "half", "float64", "alibi"])
def test_it_is_used_only_where_it_fits(case, copies):
    model = build(small(**LONG, positions="alibi" if case == "alibi" else "rope"))
    ids, how = random_ids(decoding.MOST_ROWS + 1 if case == "many rows" else 1, 9), {"max_new_tokens": 40}
    how |= {"few steps": {"max_new_tokens": 20}, "no cache": {"use_cache": False}}.get(case, {})
    model = {"half": model.bfloat16, "float64": model.double}.get(case, lambda: model)()
    generate(model, ids, **how)
    assert copies == []


def test_a_large_model_is_not_copied(copies, monkeypatch):
    monkeypatch.setattr(decoding, "LARGEST_COPY", 1000)
    generate(build(small(**LONG)), random_ids(1, 9), max_new_tokens=52)
    assert copies == []


def test_other_kinds_of_model_are_not_copied(copies):
    fields = {k: getattr(small(**LONG), k) for k in ("vocab_size", "d_model", "n_layers", "n_heads", "max_seq_len")}
    generate(MoETransformer(MoEConfig(n_experts=3, n_active=2, **fields)).eval(), random_ids(1, 9), max_new_tokens=40)
    encoder_decoder = build(small(**LONG, n_encoder_layers=1, positions="sinusoidal"))
    generate(encoder_decoder, random_ids(1, 1), source=random_ids(1, 5), max_new_tokens=40)

    class Doubled(torch.nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    model = build(small(**LONG))
    model.blocks[0].mlp.w_1 = Doubled(24, 40, bias=False)
    generate(model, random_ids(1, 9), max_new_tokens=40)
    assert copies == []


def test_whoever_looks_into_the_model_or_changes_it_sees_every_step(copies):
    model, ids = build(small(**LONG)), random_ids(1, 9)
    plain = generate(model, ids, max_new_tokens=40)
    assert len(copies) == 1
    with record(model) as seen:
        generate(model, ids, max_new_tokens=40)
    assert seen["logits"].shape[1] == 1 and seen["blocks.0.attention.k"].shape[2] == 48, "of the last step"
    with edit(model, {"blocks.0.attention.heads": zero_head(0, 1, 2)}):
        assert not torch.equal(generate(model, ids, max_new_tokens=40), plain)
    calls = []
    hook = model.blocks[1].mlp.register_forward_hook(lambda *_: calls.append(1))
    generate(model, ids, max_new_tokens=40)
    hook.remove()
    assert len(calls) == 40 and len(copies) == 1


@pytest.mark.parametrize("lengths", PROMPTS.values(), ids=PROMPTS)
@pytest.mark.parametrize("bug", bugs.BUGS.values(), ids=bugs.BUGS)
def test_a_bug_in_the_library_is_not_hidden(bug, lengths, copies, monkeypatch):
    """A copy is compared with the model before it is used: text under a bug is what the broken model writes."""
    model, ids, keep = build(small(**LONG, norm_eps=0.3)), random_ids(len(lengths), 9), left_padding(lengths, 9)
    with bug():
        fast = generate(model, ids, max_new_tokens=40, padding_mask=keep)
        monkeypatch.setattr(decoding, "FEWEST_STEPS", 10**6)
        assert torch.equal(fast, generate(model, ids, max_new_tokens=40, padding_mask=keep))


def test_a_copy_that_disagrees_is_refused(monkeypatch):
    model, ids, cache = build(small(**LONG)), random_ids(1, 9), KVCache(small(**LONG), 1, 50)
    with torch.no_grad():
        logits = model(ids, cache=cache)[:, -1]
        assert checked_copy(model, cache, ids[:, -1], logits, 40) is not None
        assert checked_copy(model, cache, ids[:, -1], logits + 0.1, 40) is None
        assert checked_copy(model, cache, ids[:, -1], logits * torch.nan, 40) is None


def test_rope_as_a_matrix_is_the_rotation():
    cos, sin = rotation(torch.tensor([7]), 8)
    x = torch.randn(1, 3, 1, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(x @ rotation_matrix(cos[0], sin[0]), rotate(x, cos, sin))


@torch.no_grad()
def test_a_matrix_of_one_row_is_copied_too():
    linear = torch.nn.Linear(5, 1, bias=False)
    product = decoding.Product(1, linear)
    assert product.weight.data_ptr() != linear.weight.data_ptr()
    before = product(torch.ones(1, 5)).clone()
    linear.weight.zero_()
    assert torch.equal(product(torch.ones(1, 5)), before) and before.abs().sum() > 0

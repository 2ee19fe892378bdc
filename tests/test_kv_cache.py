"""Cache on: other numbers than cache off; a position pointer that is not reset; overflow that destroys.

Tolerance: logits of order 1 to 10 in float32, computed by products of other shapes: 1e-4.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small import build, left_padding, random_ids, small

from transformer_lib import KVCache, edit, record

CLOSE = {"atol": 1e-4, "rtol": 1e-4}


def in_chunks(model, ids, sizes, cache, keep=None, run=None):
    """Logits (B, T, V) of a forward in chunks of these sizes."""
    run = run or (lambda chunk, mask: model(chunk, padding_mask=mask, cache=cache))
    masks = [None] * len(sizes) if keep is None else keep.split(sizes, dim=1)
    return torch.cat([run(chunk, mask) for chunk, mask in zip(ids.split(sizes, dim=1), masks, strict=True)], dim=1)


@st.composite
def chunkings(draw, longest: int):
    """Sizes ≥ 1 that sum to a length of at most `longest`."""
    length = draw(st.integers(1, longest))
    cuts = sorted(draw(st.sets(st.integers(1, length - 1)))) if length > 1 else []
    return [b - a for a, b in zip([0, *cuts], [*cuts, length])]


@settings(deadline=None, max_examples=60)
@given(
    sizes=chunkings(19),
    batch=st.integers(1, 4),
    spare=st.integers(0, 3),
    shape=st.fixed_dictionaries(
        {
            "n_kv_heads": st.sampled_from([6, 2, 1]),
            "positions": st.sampled_from(["rope", "sinusoidal", "learned", "none"]),
            "norm_position": st.sampled_from(["pre", "post"]),
        }
    ),
    padding=st.sampled_from(["no mask", "all real", "left", "any"]),
    seed=st.integers(0, 10_000),
)
def test_every_chunking_gives_the_logits_of_the_whole(sizes, batch, spare, shape, padding, seed):
    length = sum(sizes)
    model, ids = build(small(**shape), seed), random_ids(batch, length, seed=seed)
    torch.manual_seed(seed)
    keep = {
        "no mask": None,
        "all real": torch.ones(batch, length, dtype=torch.bool),
        "left": left_padding(torch.randint(1, length + 1, (batch,)).tolist(), length),
        "any": torch.rand(batch, length) < 0.7,
    }[padding]
    cache = KVCache(model.cfg, batch, min(length + spare, 19))
    expected = model(ids, padding_mask=keep)
    torch.testing.assert_close(in_chunks(model, ids, sizes, cache, keep), expected, **CLOSE)
    assert cache.length == length
    cache.reset()
    torch.testing.assert_close(in_chunks(model, ids, sizes, cache, keep), expected, **CLOSE)


def test_a_mask_may_be_left_out_once_the_padding_is_stored():
    model, ids, keep = build(small()), random_ids(3, 11), left_padding([2, 7, 5], 11)
    cache = KVCache(model.cfg, 3, 11)
    model(ids[:, :9], padding_mask=keep[:, :9], cache=cache)
    torch.testing.assert_close(model(ids[:, 9:], cache=cache), model(ids, padding_mask=keep)[:, 9:], **CLOSE)
    cache.reset()  # forgets the padding of the earlier rows too
    torch.testing.assert_close(model(ids, cache=cache), model(ids), **CLOSE)


def test_the_readable_path_reads_the_same_cache():
    model, ids = build(small()), random_ids(3, 11)
    with record(model) as seen:
        logits = in_chunks(model, ids, [4, 1, 6], KVCache(model.cfg, 3, 11))
    torch.testing.assert_close(logits, model(ids), **CLOSE)
    assert seen["blocks.1.attention.weights"].shape == (3, 6, 6, 11)


def snapshot(cache):
    return [cache.keys.clone(), cache.values.clone(), cache.keep.clone()], (cache.length, cache.has_padding)


def unchanged(cache, before) -> bool:
    tensors, rest = snapshot(cache)
    return rest == before[1] and all(torch.equal(a, b) for a, b in zip(tensors, before[0], strict=True))


@pytest.mark.parametrize(("max_len", "named"), [(9, "max_len=9"), (19, "max_seq_len=19")])
def test_one_token_past_the_capacity_is_refused_and_changes_nothing(max_len, named):
    model, ids = build(small()), random_ids(3, 19)
    cache = KVCache(model.cfg, 3, max_len)
    expected = model(ids[:, :max_len])
    torch.testing.assert_close(model(ids[:, :max_len], cache=cache), expected, **CLOSE)  # exactly full
    before = snapshot(cache)
    keep = torch.zeros(3, 1, dtype=torch.bool)
    for arguments in ({}, {"padding_mask": keep}):
        with pytest.raises(ValueError, match=rf"{max_len}.*{named}"):
            model(ids[:, :1], cache=cache, **arguments)
        assert unchanged(cache, before)


def test_a_chunk_that_fits_only_in_part_is_refused_whole():
    model, ids = build(small()), random_ids(3, 12)
    cache = KVCache(model.cfg, 3, 10)
    first = model(ids[:, :8], cache=cache)
    before = snapshot(cache)
    with pytest.raises(ValueError, match=r"8 of max_len=10 tokens, and 3 more"):
        model(ids[:, 8:11], cache=cache)
    assert unchanged(cache, before)
    rest = model(ids[:, 8:10], cache=cache)  # and goes on as if nothing had been asked
    torch.testing.assert_close(torch.cat([first, rest], dim=1), model(ids[:, :10]), **CLOSE)


def test_a_forward_that_fails_half_way_can_be_repeated():
    model, ids, keep = build(small()), random_ids(3, 9), left_padding([9, 3, 5], 9)
    cache = KVCache(model.cfg, 3, 9)
    in_chunks(model, ids[:, :6], [6], cache, keep[:, :6])

    def fail(_):
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"), edit(model, {"blocks.1.attention.output": fail}):
        model(ids[:, 6:], cache=cache)
    assert cache.length == 6
    torch.testing.assert_close(model(ids[:, 6:], cache=cache), model(ids, padding_mask=keep)[:, 6:], **CLOSE)


@pytest.mark.parametrize("n_kv_heads", [6, 2, 1], ids=["MHA", "GQA", "MQA"])
@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 4), (torch.bfloat16, 2)])
def test_bytes_equal_the_formula_with_unexpanded_heads(n_kv_heads, dtype, size):
    cfg = small(n_kv_heads=n_kv_heads)
    cache = KVCache(cfg, batch_size=3, max_len=17, dtype=dtype)
    assert cache.nbytes == 2 * 2 * 3 * n_kv_heads * 17 * 8 * size
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in (cache.keys, cache.values)}
    assert sum(storages.values()) == cache.nbytes, "and that is what is really allocated"
    build(cfg).to(dtype)(random_ids(3, 5), cache=cache)
    assert cache.nbytes == sum(storages.values()), "filling it allocates nothing"


def test_no_gradient_is_kept_by_the_cache():
    model, cache = build(small()), KVCache(small(), 3, 9)
    model(random_ids(3, 9), cache=cache)
    assert not cache.keys.requires_grad and not cache.values.requires_grad


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"batch_size": 0, "max_len": 9}, "batch_size must be .* got 0"),
        ({"batch_size": 3, "max_len": 0}, "max_len must be .* got 0"),
        ({"batch_size": 3, "max_len": 2.5}, "max_len must be .* got 2.5"),
        ({"batch_size": 3, "max_len": 20}, "max_len=20.*max_seq_len=19"),
    ],
)
def test_a_cache_that_cannot_be_is_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        KVCache(small(), **arguments)


def test_a_cache_of_another_batch_or_model_is_refused_before_it_is_written():
    model, ids = build(small()), random_ids(3, 5)
    cases = [
        (KVCache(small(), 4, 9), r"4 rows; got 3"),
        (KVCache(small(n_kv_heads=6), 3, 9), "another model"),
        (KVCache(small(n_layers=3), 3, 9), "another model"),
        (KVCache(small(n_layers=1), 3, 9), "another model"),
        (KVCache(small(head_dim=16), 3, 9), "another model"),
        (KVCache(small(), 3, 9, dtype=torch.float64), "another model.*float64.*float32"),
    ]
    for cache, sentence in cases:
        before = snapshot(cache)
        with pytest.raises(ValueError, match=sentence):
            model(ids, cache=cache)
        assert unchanged(cache, before), sentence


def test_an_encoder_refuses_a_cache():
    with pytest.raises(ValueError, match="causal=True"):
        build(small(causal=False))(random_ids(3, 5), cache=KVCache(small(), 3, 9))


# --- Encoder and decoder ---


@settings(deadline=None, max_examples=25)
@given(
    sizes=chunkings(13),
    positions=st.sampled_from(["rope", "sinusoidal", "learned"]),
    norm_position=st.sampled_from(["pre", "post"]),
    n_kv_heads=st.sampled_from([6, 2, 1]),
    padded=st.booleans(),
)
def test_a_cached_decoder_equals_the_uncached_and_encodes_once(sizes, positions, norm_position, n_kv_heads, padded):
    cfg = small(n_encoder_layers=3, positions=positions, norm_position=norm_position, n_kv_heads=n_kv_heads)
    model, length = build(cfg), sum(sizes)
    source, target = random_ids(3, 7), random_ids(3, length, seed=2)
    source_mask = left_padding([7, 2, 5], 7).flip(1) if padded else None
    target_mask = left_padding([length, max(1, length - 2), 1], length) if padded else None
    cache, encoded = KVCache(cfg, 3, length), []
    hook = model.encoder.register_forward_hook(lambda *_: encoded.append(1))

    def run(chunk, mask):
        return model(source, chunk, source_mask=source_mask, target_mask=mask, cache=cache)

    logits = in_chunks(model, target, sizes, cache, target_mask, run)
    hook.remove()
    assert len(encoded) == 1
    expected = model(source, target, source_mask=source_mask, target_mask=target_mask)
    torch.testing.assert_close(logits, expected, **CLOSE)


def test_another_source_needs_a_reset():
    cfg = small(n_encoder_layers=1, positions="sinusoidal")
    model, cache = build(cfg), KVCache(cfg, 3, 9)
    source, other, target = random_ids(3, 7), random_ids(3, 7, seed=5), random_ids(3, 4, seed=2)
    model(source, target, cache=cache)
    before = snapshot(cache)
    for changed in (other, source[:, :5]):
        with pytest.raises(ValueError, match=r"another source.*reset"):
            model(changed, target, cache=cache)
    mask = left_padding([7, 3, 4], 7)
    with pytest.raises(ValueError, match=r"another source.*reset"):
        model(source, target, source_mask=mask, cache=cache)
    source_changed_in_place = source.clone()
    source[0, 0] = (source[0, 0] + 1) % 29
    with pytest.raises(ValueError, match=r"another source.*reset"):
        model(source, target, cache=cache)
    assert unchanged(cache, before)
    model(source_changed_in_place, target, cache=cache)
    cache.reset()
    logits = model(other, target, source_mask=mask, cache=cache)
    torch.testing.assert_close(logits, model(other, target, source_mask=mask), **CLOSE)

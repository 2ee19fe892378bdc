"""Bad input gets one clear sentence with the values, before anything is computed; never a trace from inside torch."""

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small import build, random_ids, small

from transformer_lib import EncoderDecoder, Transformer, generate

MODEL = build(small())
TRANSLATOR = build(small(n_encoder_layers=1, positions="sinusoidal"))
IDS = random_ids(3, 5)


def refused(run, *values: str, errors=(TypeError, ValueError)) -> None:
    """`run` raises one sentence, which names the values."""
    with pytest.raises(errors) as refusal:
        run()
    sentence = str(refusal.value)
    assert "\n" not in sentence and sentence.endswith(".") and re.search(r"[a-z]", sentence), sentence
    assert all(value in sentence for value in values), (sentence, values)


BAD_IDS = {
    "a list": (IDS.tolist(), ["torch tensor", "list"]),
    "text": ("once upon", ["str"]),
    "nothing": (None, ["NoneType"]),
    "float": (IDS.float(), ["torch.float32", "int64"]),
    "int32": (IDS.int(), ["torch.int32", "long()"]),
    "bool": (IDS > 3, ["torch.bool"]),
    "one row without a batch": (IDS[0], ["(5,)", "[None]"]),
    "three dimensions": (IDS[None], ["(1, 3, 5)"]),
    "a number": (IDS[0, 0], ["()"]),
    "no tokens": (IDS[:, :0], ["(3, 0)"]),
    "no rows": (IDS[:0], ["(0, 5)"]),
    "too long": (random_ids(3, 20), ["20", "max_seq_len=19"]),
    "id too large": (torch.tensor([[1, 29]]), ["29", "from 0 to 28"]),
    "id below 0": (torch.tensor([[1, -1]]), ["-1", "from 0 to 28"]),
}


@pytest.mark.parametrize(("ids", "values"), BAD_IDS.values(), ids=BAD_IDS)
def test_ids(ids, values):
    refused(lambda: MODEL(ids), *values)
    refused(lambda: TRANSLATOR(ids, IDS), *values)
    refused(lambda: TRANSLATOR(IDS, ids), *values)
    refused(lambda: generate(MODEL, ids, max_new_tokens=2), *values)
    if ids is not None:
        refused(lambda: generate(TRANSLATOR, IDS, source=ids, max_new_tokens=2), *values)


@pytest.mark.parametrize(
    ("mask", "values"),
    [
        (torch.ones(3, 5), ["torch.float32", "bool"]),
        (torch.ones(3, 5, dtype=torch.int64), ["torch.int64", "bool"]),
        ([[True] * 5] * 3, ["list", "bool"]),
        (torch.ones(3, 4, dtype=torch.bool), ["(3, 5)", "(3, 4)"]),
        (torch.ones(5, dtype=torch.bool), ["(3, 5)", "(5,)"]),
    ],
    ids=["float", "int", "list", "other length", "no batch"],
)
def test_padding_masks(mask, values):
    refused(lambda: MODEL(IDS, padding_mask=mask), "padding_mask", *values)
    refused(lambda: TRANSLATOR(IDS, IDS, source_mask=mask), "source_mask", *values)
    refused(lambda: TRANSLATOR(IDS, IDS, target_mask=mask), "target_mask", *values)
    refused(lambda: generate(MODEL, IDS, padding_mask=mask, max_new_tokens=2), "padding_mask", *values)
    refused(lambda: generate(TRANSLATOR, IDS, source=IDS, source_mask=mask, max_new_tokens=2), "source_mask", *values)


BAD_OPTIONS = {
    "no new tokens": ({"max_new_tokens": 0}, ["max_new_tokens", "0"]),
    "half a token": ({"max_new_tokens": 2.5}, ["max_new_tokens", "2.5"]),
    "too many": ({"max_new_tokens": 15}, ["15", "max_seq_len=19", "14"]),
    "temperature below 0": ({"temperature": -0.5}, ["temperature", "-0.5"]),
    "temperature nan": ({"temperature": float("nan")}, ["temperature", "nan"]),
    "temperature inf": ({"temperature": float("inf")}, ["temperature", "inf"]),
    "temperature as text": ({"temperature": "hot"}, ["temperature", "'hot'"]),
    "temperature None": ({"temperature": None}, ["temperature", "None"]),
    "top_k 0": ({"top_k": 0}, ["top_k", "0"]),
    "top_k a share": ({"top_k": 0.9}, ["top_k", "0.9"]),
    "top_p 0": ({"top_p": 0}, ["top_p", "0"]),
    "top_p percent": ({"top_p": 90}, ["top_p", "90"]),
    "top_p as text": ({"top_p": "0.9"}, ["top_p", "'0.9'"]),
    "seed as text": ({"seed": "lucky"}, ["seed", "'lucky'"]),
    "stop id as one number": ({"stop_ids": 3}, ["stop_ids", "3"]),
    "stop id outside the vocabulary": ({"stop_ids": [3, 29]}, ["stop_ids", "29"]),
    "stop id as text": ({"stop_ids": ["."]}, ["stop_ids", "'.'"]),
    "on_token not callable": ({"on_token": "print"}, ["on_token", "'print'"]),
    "a source for a decoder": ({"source": IDS}, ["source"]),
    "a source mask without a source": ({"source_mask": IDS > 0}, ["source"]),
}


@pytest.mark.parametrize(("options", "values"), BAD_OPTIONS.values(), ids=BAD_OPTIONS)
def test_generation_options(options, values):
    refused(lambda: generate(MODEL, IDS, **({"max_new_tokens": 2} | options)), *values)


def test_generation_with_the_wrong_model():
    refused(lambda: generate(TRANSLATOR, IDS, max_new_tokens=2), "source")
    refused(lambda: generate(build(small(causal=False)), IDS, max_new_tokens=2), "causal=True")
    refused(lambda: generate("toy", IDS, max_new_tokens=2), "str")
    refused(lambda: generate(torch.nn.Linear(3, 5), IDS, max_new_tokens=2), "Linear")
    right = torch.tensor([[True] * 5, [True, True, True, False, False], [True] * 5])
    refused(lambda: generate(MODEL, IDS, padding_mask=right, max_new_tokens=2), "left")


def test_source_and_target_of_different_batches():
    refused(lambda: TRANSLATOR(IDS, random_ids(4, 6)), "3 rows", "4")
    refused(lambda: generate(TRANSLATOR, IDS, source=random_ids(2, 6), max_new_tokens=2), "2 rows", "3")


@settings(deadline=None, max_examples=60)
@given(
    shape=st.lists(st.integers(0, 21), min_size=0, max_size=3),
    low=st.integers(-2, 0),
    high=st.integers(1, 31),
    dtype=st.sampled_from([torch.int64, torch.int32, torch.uint8, torch.float32, torch.bool]),
)
def test_any_tensor_gives_logits_or_one_sentence(shape, low, high, dtype):
    ids = torch.randint(low, high, shape).to(dtype)
    try:
        logits = MODEL(ids)
    except (TypeError, ValueError) as refusal:
        assert "\n" not in str(refusal) and str(refusal).endswith(".")
    else:
        assert logits.shape == (*ids.shape, 29) and logits.isfinite().all() and logits.dtype == torch.float32


@pytest.mark.parametrize(
    "changes", [{"n_layers": 10_000, "d_model": 4096}, {"vocab_size": 2**31 - 1, "n_encoder_layers": 1}]
)
def test_a_model_larger_than_the_memory_is_refused_before_it_is_built(changes):
    cfg = small(**changes)
    refused(lambda: (EncoderDecoder if cfg.n_encoder_layers else Transformer)(cfg), "of memory", "free", "meta")
    with torch.device("meta"):
        assert Transformer(small(n_layers=3, d_model=2**18)).embedding.weight.is_meta

"""llama2.c files: the published one says what it is known to say, ours come back, damaged ones are refused."""

import json
import math
import struct

import pytest
import torch
from reference import EXPECTED, STORIES, needs_stories

from transformer_lib import Transformer, TransformerConfig, generate
from transformer_lib.pretrained import load_pretrained, save_llama2c
from transformer_lib.tokenizer import Tokenizer

CFG = TransformerConfig(vocab_size=37, d_model=24, n_layers=3, n_heads=6, n_kv_heads=2, d_ff=40, max_seq_len=19)


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "tokens.model"
    Tokenizer.train("a b c d e f g\n" * 50, 270).save(path)
    return path


@pytest.mark.reference
@needs_stories
@pytest.mark.parametrize("length, use_cache", [(200, True), (200, False), (256, True)])
def test_greedy_text_of_the_published_checkpoint(length, use_cache):
    expected = json.loads((EXPECTED / f"stories260K_greedy_n{length}_noprompt.json").read_text())
    model, tokenizer = load_pretrained(STORIES)
    start = torch.tensor([tokenizer.encode("", bos=True)])
    ids = generate(model, start, max_new_tokens=length, use_cache=use_cache)[0].tolist()
    assert ids == expected["ids"]
    assert tokenizer.decode(ids) + "\n" == expected["text"]


@pytest.mark.reference
@needs_stories
def test_tokenizer_of_the_published_checkpoint():
    _, tokenizer = load_pretrained(STORIES)
    for case in json.loads((EXPECTED / "tok512_tokenizer_cases.json").read_text())["cases"]:
        assert tokenizer.encode(case["text"]) == case["ids"], case["name"]
        assert tokenizer.decode(case["ids"]) == case["decoded"], case["name"]


@pytest.mark.reference
@needs_stories
def test_saving_the_published_checkpoint_gives_its_very_bytes(tmp_path):
    model, _ = load_pretrained(STORIES)
    save_llama2c(model, tmp_path / "again.bin")
    assert (tmp_path / "again.bin").read_bytes() == STORIES.read_bytes()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("version", [0, 1])
def test_round_trip(tmp_path, vocabulary, version, tied):
    torch.manual_seed(1)
    model = Transformer(CFG.replace(vocab_size=271, tie_embeddings=tied))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    save_llama2c(model, tmp_path / "model.bin", version)
    again, tokenizer = load_pretrained(tmp_path / "model.bin", tokenizer=vocabulary)
    assert (again.unembedding.weight is again.embedding.weight) == tied
    for (name, ours), theirs in zip(model.named_parameters(), again.parameters(), strict=True):
        assert torch.equal(ours, theirs), name
    ids = torch.tensor([[3, 270, 5], [0, 1, 2]])
    assert torch.equal(model.eval()(ids), again(ids))
    assert tokenizer.vocab_size == 270


@pytest.mark.parametrize("version", [0, 1])
def test_the_layout_is_llama2cs_own(tmp_path, vocabulary, version):
    """Written here by hand from the description of the format, with the interleaved rotation computed independently."""
    cfg = CFG.replace(n_layers=2, vocab_size=290)
    torch.manual_seed(2)
    d, wide, kv, d_k = cfg.d_model, cfg.ff_width, cfg.kv_heads * cfg.d_k, cfg.d_k
    draw = lambda *shape: torch.randn(2, *shape) * 0.3  # noqa: E731
    norm_1, norm_2, final = draw(d), draw(d), draw(d)[0]
    q, k, v, o = draw(d, d), draw(kv, d), draw(kv, d), draw(d, d)
    w1, w2, w3 = draw(wide, d), draw(d, wide), draw(wide, d)
    embedding, unembedding = draw(290, d)
    counts = (d, wide, 2, cfg.n_heads, cfg.kv_heads, -290 if version == 0 else 290, cfg.max_seq_len)
    if version == 0:
        head = struct.pack("<7i", *counts)
        angles = torch.zeros(2, cfg.max_seq_len, d_k // 2)
        parts = [embedding, norm_1, q, k, v, o, norm_2, w1, w2, w3, final, angles, unembedding]
    else:
        head = (struct.pack("<Ii", 0x616B3432, 1) + struct.pack("<7i", *counts) + b"\0").ljust(256, b"\0")
        parts = [norm_1, norm_2, final, embedding, q, k, v, o, w1, w2, w3, unembedding]
    (tmp_path / "hand.bin").write_bytes(head + b"".join(part.numpy().tobytes() for part in parts))
    model, _ = load_pretrained(tmp_path / "hand.bin", tokenizer=vocabulary)

    def rms(x, weight):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * weight

    def turn(x):  # (T, H, d_k): neighbours (2i, 2i + 1) are one complex number
        angle = torch.arange(len(x))[:, None] * 10_000.0 ** (-torch.arange(0, d_k, 2) / d_k)
        turned = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * torch.polar(
            torch.ones_like(angle), angle
        ).unsqueeze(1)
        return torch.view_as_real(turned).flatten(-2)

    ids = torch.tensor([5, 0, 289, 17, 17, 3, 8])
    x = embedding[ids]
    for i in range(2):
        y = rms(x, norm_1[i])
        queries = turn((y @ q[i].T).unflatten(-1, (-1, d_k)))
        keys = turn((y @ k[i].T).unflatten(-1, (-1, d_k))).repeat_interleave(3, dim=1)
        values = (y @ v[i].T).unflatten(-1, (-1, d_k)).repeat_interleave(3, dim=1)
        scores = torch.einsum("qhd,khd->hqk", queries, keys) / math.sqrt(d_k)
        weights = scores.masked_fill(torch.ones(7, 7).triu(1).bool(), -math.inf).softmax(-1)
        x = x + torch.einsum("hqk,khd->qhd", weights, values).flatten(1) @ o[i].T
        y = rms(x, norm_2[i])
        x = x + (torch.nn.functional.silu(y @ w1[i].T) * (y @ w3[i].T)) @ w2[i].T
    torch.testing.assert_close(model(ids[None])[0], rms(x, final) @ unembedding.T, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("version", [0, 1])
def test_cut_short_anywhere(tmp_path, vocabulary, version):
    path = tmp_path / "whole.bin"
    save_llama2c(Transformer(CFG), path, version)
    whole = path.read_bytes()
    for length in [*range(0, 300, 7), *range(300, len(whole), 5003), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"whole\.bin"):
            load_pretrained(path, tokenizer=vocabulary)
    path.write_bytes(whole + b"\0\0\0\0")
    with pytest.raises(ValueError, match=r"whole\.bin has .* bytes, but its header"):
        load_pretrained(path, tokenizer=vocabulary)


@pytest.mark.parametrize("position", range(7))
@pytest.mark.parametrize("value", [0, -1, 2**31 - 1, -(2**31)])
def test_absurd_header(tmp_path, vocabulary, position, value):
    path = tmp_path / "absurd.bin"
    save_llama2c(Transformer(CFG), path)
    content = bytearray(path.read_bytes())
    struct.pack_into("<i", content, 4 * position, value)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"absurd\.bin"):
        load_pretrained(path, tokenizer=vocabulary)


def test_a_quantised_version_is_refused_by_its_number(tmp_path, vocabulary):
    path = tmp_path / "v2.bin"
    save_llama2c(Transformer(CFG), path, 1)
    content = bytearray(path.read_bytes())
    struct.pack_into("<i", content, 4, 2)
    path.write_bytes(content)
    with pytest.raises(ValueError, match="version 2; versions 0 and 1"):
        load_pretrained(path, tokenizer=vocabulary)


@pytest.mark.parametrize("others", [[], ["a.model", "b.model"]])
def test_not_exactly_one_vocabulary_beside(tmp_path, others):
    save_llama2c(Transformer(CFG), tmp_path / "m.bin")
    for name in others:
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(ValueError, match=r"one \.model file beside it .* tokenizer=…"):
        load_pretrained(tmp_path / "m.bin")


@pytest.mark.parametrize(
    "change",
    [
        {"norm_eps": 1e-6}, {"rope_theta": 5e5}, {"bias": True}, {"positions": "learned"},
        {"norm": "layernorm"}, {"norm_position": "post"}, {"activation": "gelu"}, {"embedding_scale": True},
        {"scale_scores": False}, {"residual": False}, {"causal": False},
        {"rope_scaling": (8.0, 1.0, 4.0, 16)},
    ],
)  # fmt: skip
def test_saving_what_the_format_cannot_say(tmp_path, change):
    with pytest.raises(ValueError, match=f"cannot say {next(iter(change))}="):
        save_llama2c(Transformer(CFG.replace(**change)), tmp_path / "m.bin")
    assert list(tmp_path.iterdir()) == []


def test_saving_heads_wider_than_the_format_can_say(tmp_path):
    with pytest.raises(ValueError, match="cannot say d_k=10; it always means 4"):
        save_llama2c(Transformer(CFG.replace(head_dim=10)), tmp_path / "m.bin")


def test_an_interrupted_save_leaves_the_earlier_file(tmp_path, monkeypatch):
    path = tmp_path / "m.bin"
    save_llama2c(Transformer(CFG), path)
    before = path.read_bytes()
    model = Transformer(CFG)
    model.final_norm.weight = None  # breaks in the middle
    with pytest.raises(KeyError):
        save_llama2c(model, path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]

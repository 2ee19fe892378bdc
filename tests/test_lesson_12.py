"""Notebook 12: the atlas of a deep model, knock-outs by the dozen and the depth ledger tell what the model does."""

import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small import Letters

from transformer_lib import Transformer, TransformerConfig, edit, generate
from transformer_lib.devices import memory_bandwidth, seconds
from transformer_lib.explorers.heads import head_atlas, sharpest
from transformer_lib.explorers.ledger import LENGTH
from transformer_lib.explorers.real_model import (
    DEPTH_LONGEST,
    LONGEST,
    NEW,
    depth_ledger,
    echoes,
    knock_out_lab,
    without,
)
from transformer_lib.explorers.tokens import typed_tokens
from transformer_lib.head_scores import Scores
from transformer_lib.ledger import credits, ledger
from transformer_lib.plots import kv_cache, real_model
from transformer_lib.plots.style import pixels
from transformer_lib.recording import record, zero_head
from transformer_lib.tokenizer import ByteLevelTokenizer

TEXT = "a fox, a hen"


@pytest.fixture(scope="module")
def model():
    """13 layers of 3 heads with one shared key/value head: too many for a strip each, too deep for buttons."""
    torch.manual_seed(0)
    cfg = TransformerConfig(vocab_size=97, d_model=24, n_layers=13, n_heads=3, n_kv_heads=1, max_seq_len=256)
    model = Transformer(cfg)
    model.initialize(std=0.3)
    return model.eval()


@pytest.fixture(scope="module")
def orders(model):
    every = [(layer, head) for layer in range(13) for head in range(3)]
    return {"forwards": every, "backwards": every[::-1]}


@pytest.fixture(scope="module")
def atlas(model):
    return head_atlas(
        model, Letters(), TEXT, 9, {(4, 1): ["induction"], (5, 1): ["first"]}, start=(4, 1), frames=echoes
    )


@pytest.fixture(scope="module")
def lab(model, orders):
    return knock_out_lab(model, Letters(), TEXT, orders, count=2)


@pytest.fixture(scope="module")
def depth(model):
    return depth_ledger(model, Letters(), TEXT)


def set_to(shown, **values):
    for name, value in values.items():
        shown.controls[name].value = value


def words(shown):
    return [part[2] for part in shown.drawing.parts if part[0] == "text"]


def hovers(shown):
    return [part[4] for part in shown.drawing.parts if part[0] == "rect"]


def test_echoes_follow_the_last_earlier_occurrence():
    assert echoes([5, 8, 5, 9, 5, 5]) == {2: 1, 4: 3, 5: 5}
    assert echoes([]) == {} and echoes([1, 2, 3]) == {}


def test_without_is_a_knock_out_of_each_head(model):
    ids = torch.tensor([Letters().encode(TEXT)])
    changes = {"blocks.2.attention.heads": zero_head(0, 2), "blocks.7.attention.heads": zero_head(1)}
    with torch.no_grad():
        with edit(model, changes):
            expected = model(ids)
        with edit(model, without([(2, 2), (7, 1), (2, 0)])):
            assert torch.equal(model(ids), expected)


def test_the_atlas_of_a_deep_model_shows_one_layer_as_strips_and_all_heads_as_squares(model, atlas):
    assert atlas.controls["layer"].value == 4 and type(atlas.controls["layer"]).__name__ == "IntSlider"
    ids = torch.tensor([Letters().encode(TEXT)])
    with torch.no_grad(), record(model) as seen:
        model(ids)
    maps = torch.stack([seen[f"blocks.{i}.attention.weights"][0] for i in range(13)]).numpy()
    squares = [h for h in hovers(atlas) if re.match(r"layer \d+, head \d: \S+ → \S+ \(\d+\): ", h)]
    assert len(squares) == 13 * 3
    for layer, head in ((0, 0), (12, 2)):
        said = next(h for h in squares if h.startswith(f"layer {layer}, head {head}: "))
        assert said.endswith(f"{maps[layer, head, 9, 1:9].max():.2f}")
    assert "head 1 · induction" in words(atlas) and not [w for w in words(atlas) if "first" in w]
    strips = [h for h in hovers(atlas) if h.startswith("layer 4, head ") and h not in squares]
    assert len(strips) == 3 * len(TEXT)


def test_the_atlas_frames_where_induction_should_look(atlas):
    framed = [part for part in atlas.drawing.parts if part[0] == "rect" and part[2] == "none"]
    assert len(framed) == len(echoes(Letters().encode(TEXT))) == 3


@pytest.mark.parametrize("row", [0, 1, 31])
def test_the_atlas_survives_every_query(atlas, row):
    before = atlas.controls["row"].value
    set_to(atlas, row=row, layer=12)
    assert atlas.error.value == ""
    set_to(atlas, row=before, layer=4)


def test_sharpest_leaves_out_the_first_token_and_the_query_itself():
    maps = np.zeros((1, 1, 4, 4))
    maps[0, 0, 3] = [0.5, 0.1, 0.2, 0.7]
    assert sharpest(maps, 3) == [[0.2]] and sharpest(maps, 1) == [[0.0]]


def test_the_lab_says_what_generation_and_loss_are_with_these_heads_out(model, orders, lab):
    set_to(lab, which="backwards", count=5)
    ids = torch.tensor([Letters().encode(TEXT)])
    texts, means = [], []
    for heads in ([], orders["backwards"][:5]):
        with torch.no_grad(), edit(model, without(heads)):
            out = generate(model, ids, max_new_tokens=NEW)
            losses = F.cross_entropy(model(out)[0, :-1], out[0, 1:], reduction="none")
        texts.append(out[0, ids.shape[1] :].tolist())
        means.append(float(losses[list(echoes(ids[0, :-1].tolist()))].mean()))
        shown = [h for h in hovers(lab) if h.endswith("%")]
        mine = shown[:NEW] if not heads else shown[NEW:]
        assert mine == [f"{p:.1%}" for p in losses[ids.shape[1] - 1 :].neg().exp().tolist()]
    assert texts[0] != texts[1]
    assert f"costs {means[0]:.2f} → {means[1]:.2f} nats" in lab.summary
    assert " ".join(Letters().decode(texts[1]).split()) in lab.summary
    set_to(lab, count=0)
    assert "nothing knocked out" in " ".join(words(lab)) and "+" not in "".join(words(lab))


@pytest.mark.parametrize("text", ["", " ", "a", "x" * 900, "<b>&\x07\n\t", "שלום 🙂", "$x_1$ and $"])
def test_awkward_text_survives(lab, depth, text):
    for shown, longest in ((lab, LONGEST), (depth, DEPTH_LONGEST)):
        set_to(shown, sentence=text)
        assert shown.error.value == "" and shown._pixels().shape[1] == 1600
        assert (f"only the first {longest}" in shown.summary) == (len(text) > longest)
        set_to(shown, sentence=TEXT)


@pytest.mark.parametrize("measure", [0, 1])
def test_the_depth_ledger_shows_the_ledger(model, depth, measure):
    set_to(depth, measure=depth.controls["measure"].options[measure], row=6)
    ids = torch.tensor([Letters().encode(TEXT)])
    book = ledger(model, ids)
    with torch.no_grad():
        final = int(model(ids)[0, 6].argmax())
    if depth.controls["measure"].value == LENGTH:
        writes = book.writes[1:, 0, 6].unflatten(0, (13, 4))
        attention, mlp = writes[:, :3].sum(1).norm(dim=-1), writes[:, 3].norm(dim=-1)
    else:
        pushes = credits(model, book, final)[1:, 0, 6].unflatten(0, (13, 4))
        attention, mlp = pushes[:, :3].sum(1), pushes[:, 3]
    said = hovers(depth)
    for block in (0, 12):
        assert any(h.startswith(f"block {block}, attention: {float(attention[block]):+.2f}") for h in said)
        assert f"block {block}, MLP: {float(mlp[block]):+.2f}" in said
    with torch.no_grad():
        p = model(ids)[0, 6].softmax(-1)
    assert f"probability {float(p.max()):.2f}" in depth.summary and words(depth)[-1] == "1"


def test_pictures_show_their_numbers():
    scores = {job: Scores(torch.rand(30, 9), 0.1) for job in ("induction", "previous", "first")}
    fig = real_model.score_maps(scores)
    for ax, found in zip(fig.axes, scores.values(), strict=False):
        assert np.allclose(ax.images[0].get_array(), found.by_head)
        assert tuple(ax.patches[0].get_xy()) == (found.best[2] - 0.5, found.best[1] - 0.5)
    fig = real_model.repeats({"a": [3.0, 2.0, 1.0]}, -1, {words: {0: 1.0, 8: 4.0} for words in "bcde"})
    assert list(fig.axes[0].lines[0].get_xdata()) == [-1, 0, 1]
    assert list(fig.axes[1].lines[0].get_ydata()) == [1.0, 4.0]
    fig = real_model.sink(np.array([[9.0, 1.0, 3.0]] * 2), np.full((2, 3), 0.5))
    assert [list(line.get_ydata()) for line in fig.axes[0].lines] == [[9.0, 9.0], [2.0, 2.0]]
    fig = real_model.fewer_bits({4: 80.0, 8: 140.0}, {8: 3.0, 4: 3.1})
    assert list(fig.axes[0].lines[0].get_xydata().ravel()) == [80.0, 3.1, 140.0, 3.0]
    fig = kv_cache.times([1, 2], [3.0, 3.0], [5.0, 9.0], floor=2.5)
    assert [2.5, 2.5] in [list(line.get_ydata()) for line in fig.axes[0].lines]
    assert pixels(fig).std() > 0


def test_bandwidth_and_seconds_are_measured():
    assert 1e8 < memory_bandwidth(16 * 2**20) < 1e13
    calls = []
    assert seconds(lambda: calls.append(0), 4) >= 0 and len(calls) == 4


def test_a_byte_level_vocabulary_is_shown_as_text_where_a_token_is_whole_characters():
    tokenizers = pytest.importorskip("tokenizers")
    bytes_alone = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    vocab = {piece: i for i, piece in enumerate([*sorted(bytes_alone), "Ã©"])}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[("Ã", "©")]))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    shown = typed_tokens({257: ByteLevelTokenizer(made)}, "é ñ")
    assert "é" in words(shown) and "ñ" not in words(shown) and "3 letters become 4 tokens" in shown.summary

"""Whatever `generate`, `TrainConfig` and `train` are given: they do what they promise, or one sentence says why not."""

import copy
import dataclasses
import math

import pytest
import torch
from anything import ANYTHING, EVERY, check_sentence, examples, options, tried
from hypothesis import strategies as st
from small import build, random_ids, small

from transformer_lib import EncoderDecoder, generate
from transformer_lib.config import TransformerConfig
from transformer_lib.training import TextBatches, TrainConfig, train

DECODER = build(small())
TRANSLATOR = build(small(n_encoder_layers=1, positions="sinusoidal"))
IDS, SOURCE = random_ids(3, 5), random_ids(3, 7)
ROOM = DECODER.cfg.max_seq_len - IDS.shape[1]
REFUSALS = (ValueError, TypeError)


# --- generate ---

GENERATION = {
    "max_new_tokens": st.integers(1, ROOM),
    "temperature": st.floats(0, 1e6),
    "top_k": st.none() | st.integers(1, 40),
    "top_p": st.none() | st.floats(1e-3, 1),
    "seed": st.none() | st.integers(0, 2**63 - 1),
    "use_cache": st.booleans(),
    "stop_ids": st.lists(st.integers(0, 28), max_size=9),
    "padding_mask": st.none(),
    "on_token": st.none() | st.just("show"),
    "source": st.none(),
    "source_mask": st.none(),
}
GENERATIONS = st.tuples(
    options(GENERATION, needed=["max_new_tokens"]),
    st.sampled_from([DECODER, DECODER, TRANSLATOR]),
    st.sampled_from([IDS, IDS, IDS, IDS[:1]]) | ANYTHING,
)


def check_generation(request):
    chosen, model, ids = request
    heard = []
    if isinstance(chosen.get("on_token"), str) and chosen["on_token"] == "show":
        chosen["on_token"] = heard.append
    if model is TRANSLATOR and chosen.get("source") is None:
        chosen["source"] = SOURCE[: len(ids)] if isinstance(ids, torch.Tensor) and ids.dim() == 2 else SOURCE
    try:
        out = generate(model, ids, **chosen)
    except REFUSALS as refusal:
        check_sentence(refusal, [*chosen, "ids"])
        return
    finally:
        assert not model.training
    new = out.shape[1] - ids.shape[1]
    assert out.dtype == torch.int64 and torch.equal(out[:, : ids.shape[1]], ids)
    assert int(out.min()) >= 0 and int(out.max()) < 29 and 1 <= new <= chosen["max_new_tokens"]
    stops = set(map(int, chosen.get("stop_ids", ())))
    if new < chosen["max_new_tokens"]:
        assert stops and all(stops & set(row.tolist()) for row in out[:, ids.shape[1] :])
    if heard:
        assert torch.equal(torch.stack(heard, dim=1), out[:, ids.shape[1] :])
    if chosen.get("seed") is not None or chosen.get("temperature", 0) == 0:
        assert torch.equal(generate(model, ids, **chosen), out), "the same request, another text"


@examples(150)
def test_any_request_is_continued_or_refused_in_a_sentence(examples):
    tried(GENERATIONS, examples, check_generation)


@pytest.mark.parametrize("name", GENERATION)
def test_every_odd_value_of_an_option_is_taken_or_refused_in_a_sentence(name):
    for value in EVERY:
        check_generation(({"max_new_tokens": 2, "temperature": 1.0, name: value}, DECODER, IDS))


# --- TrainConfig ---

TRAINING = {
    "batch_size": st.integers(1, 5),
    "learning_rate": st.floats(1e-6, 1),
    "schedule": st.sampled_from(["cosine", "inverse_sqrt", "constant"]),
    "warmup_steps": st.integers(0, 2**63 - 1),
    "final_fraction": st.floats(0, 1),
    "weight_decay": st.floats(0, 10),
    "betas": st.tuples(st.floats(0, 0.999), st.floats(0, 0.999)) | st.lists(ANYTHING, min_size=2, max_size=2),
    "grad_clip": st.none() | st.floats(1e-6, 1e3),
    "seed": st.integers(0, 2**63 - 1),
    "eval_every": st.none() | st.integers(1, 9),
    "save_every": st.integers(1, 9),
    "threads": st.none() | st.integers(1, 256),
    "device": st.none() | st.sampled_from(["cpu", "cuda", "mps", "meta", "cuda:7"]),
    "precision": st.sampled_from(["float32", "bf16"]),
}
CONFIGS = options({"steps": st.integers(1, 3)} | TRAINING, needed=["steps"])


def small_run():
    model = build(small())
    return model, TextBatches(torch.arange(99) % 29, context=7)


def check_config(chosen):
    """A config that is taken is one that a run can follow to its end, or to a loss that is said to be none."""
    try:
        config = TrainConfig(**chosen)
    except REFUSALS as refusal:
        check_sentence(refusal, chosen)
        return
    assert dataclasses.replace(config) == config
    rates = [config.learning_rate_at(step) for step in range(min(config.steps, 9))]
    assert all(0 <= rate < math.inf for rate in rates)
    if config.steps > 3 or config.batch_size > 1_000:
        return
    model, batches = small_run()
    config = dataclasses.replace(config, threads=1)
    try:
        history = train(model, batches, config, evaluate=lambda model: 1.5, progress=False)
    except REFUSALS as refusal:
        check_sentence(refusal, ["device"])
    except FloatingPointError as diverged:
        check_sentence(diverged, ["learning rate"])
    else:
        assert history.step == config.steps and history.evaluations[-1] == (config.steps, 1.5)
        assert all(math.isfinite(loss) for loss in history.losses)
        assert all(bool(weight.isfinite().all()) for weight in model.parameters())


@examples(100, 1_000)
def test_any_training_config_is_followed_or_refused_in_a_sentence(examples):
    tried(CONFIGS, examples, check_config)


@pytest.mark.parametrize("name", ["steps", *TRAINING])
def test_every_odd_value_of_a_training_option_is_followed_or_refused_in_a_sentence(name):
    for value in EVERY:
        check_config({"steps": 2, name: value})


# --- train ---

DTYPES = [torch.int64, torch.int64, torch.int32, torch.float32, torch.bool, torch.complex64, torch.uint8]


@st.composite
def tensors(draw):
    shape = draw(st.sampled_from([(3, 8), (3, 8), (1, 2)]) | st.lists(st.integers(0, 21), max_size=3))
    values = torch.randint(draw(st.sampled_from([0, 0, -1])), draw(st.sampled_from([2, 29, 29, 30])), tuple(shape))
    return values.to(draw(st.sampled_from(DTYPES)))


BATCHES = st.one_of(
    tensors(), tensors(), st.tuples(tensors(), tensors()), st.tuples(tensors()), st.lists(tensors(), max_size=3),
    st.tuples(st.just(IDS), st.sampled_from([IDS > 3, IDS < 0, IDS[0] > 3, IDS])), ANYTHING, st.tuples(ANYTHING),
)  # fmt: skip


def check_batch(batch):
    model, _ = small_run()
    before = copy.deepcopy(model.state_dict())
    try:
        history = train(model, lambda step, config: batch, TrainConfig(steps=2), progress=False)
    except REFUSALS as refusal:
        check_sentence(refusal, ["batch", "ids", "mask", "targets", "id ", "tokens"])
        assert all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())
    else:
        assert history.step == 2 and all(math.isfinite(loss) for loss in history.losses)


@examples(150)
def test_any_batch_is_learnt_from_or_refused_in_a_sentence(examples):
    tried(BATCHES, examples, check_batch)


WRONG = {
    "model": ANYTHING | st.sampled_from([torch.nn.ReLU(), build(small()).requires_grad_(False)]),
    "batches": ANYTHING,
    "config": ANYTHING | st.sampled_from([small(), {"steps": 2}]),
    "loss_fn": ANYTHING.map(lambda value: lambda model, batch: value) | ANYTHING,
    "evaluate": ANYTHING.filter(lambda value: value is not None)
    | st.sampled_from(["loss", None, [1, 2], torch.zeros(2), 10**400]).map(lambda value: lambda model: value),
    "out": ANYTHING.filter(lambda value: value is not None and not isinstance(value, str)),
    "tokenizer": ANYTHING.filter(lambda value: value is not None),
    "on_step": ANYTHING.filter(lambda value: value is not None and not callable(value)),
    "resume": ANYTHING.filter(lambda value: not isinstance(value, bool)),
    "progress": ANYTHING.filter(lambda value: not isinstance(value, bool)),
}


def check_argument(tmp_path, name):
    def check(value):
        model, batches = small_run()
        arguments = {"model": model, "batches": batches, "config": TrainConfig(steps=1), "progress": False}
        with pytest.raises(REFUSALS) as refusal:
            train(**(arguments | {name: value}), **({"out": tmp_path} if name == "tokenizer" else {}))
        check_sentence(refusal.value, [name, "loss", "batch", "Tokenizer"])

    return check


@pytest.mark.parametrize("name", WRONG)
@examples(10, 300)
def test_a_wrong_argument_of_train_is_refused_in_a_sentence(name, examples, tmp_path):
    tried(WRONG[name], examples, check_argument(tmp_path, name))


# --- The shape of a model ---

SHAPES = {
    field.name: st.integers(1, 24) if field.type.startswith("int") else st.booleans()
    for field in dataclasses.fields(TransformerConfig)
} | {
    "positions": st.sampled_from(["rope", "sinusoidal", "learned", "alibi", "none"]),
    "norm": st.sampled_from(["rmsnorm", "layernorm"]),
    "norm_position": st.sampled_from(["pre", "post"]),
    "activation": st.sampled_from(["swiglu", "gelu", "relu"]),
    "dropout": st.floats(0, 0.99),
    "n_encoder_layers": st.integers(0, 2),
    "rope_theta": st.floats(1, 1e6),
    "norm_eps": st.floats(1e-6, 1),
    "rope_scaling": st.none() | st.lists(ANYTHING, min_size=4, max_size=4),
}


def check_shape(fields):
    try:
        cfg = small().replace(**fields)
    except REFUSALS as refusal:
        check_sentence(refusal, [*fields, "d_k"])
        return
    assert hash(cfg) is not None
    if max(cfg.d_model, cfg.n_layers, cfg.n_heads, cfg.d_k, cfg.ff_width, cfg.vocab_size) < 300:
        model = build(cfg)
        ids = torch.zeros(1, min(cfg.max_seq_len, 3), dtype=torch.int64)
        arguments = (ids, ids) if isinstance(model, EncoderDecoder) else (ids,)
        assert model(*arguments).shape == (*ids.shape, cfg.vocab_size)


@pytest.mark.parametrize("name", SHAPES)
def test_every_odd_value_of_a_field_is_built_or_refused_in_a_sentence(name):
    for value in EVERY:
        check_shape({name: value})


@examples(150)
def test_any_shape_of_a_model_is_built_or_refused_in_a_sentence(examples):
    tried(options(SHAPES), examples, check_shape)

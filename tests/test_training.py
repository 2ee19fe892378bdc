"""Training: the same seed gives the same bits, whatever happens to a run changes no loss, and nothing is lost."""

import dataclasses
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from small import build, random_ids, small
from torch import nn
from training_task import setup, text

from transformer_lib import EncoderDecoder, checkpoint
from transformer_lib.losses import cross_entropy
from transformer_lib.runs import RunIsBusy, interruptible
from transformer_lib.training import TextBatches, TrainConfig, make_optimizer, mean_loss, next_token_loss, train

SCRIPT = Path(__file__).with_name("training_task.py")


def losses(**changes) -> list[float]:
    return train(*setup(**changes), progress=False).losses


def start(folder, *arguments) -> subprocess.Popen:
    command = [sys.executable, str(SCRIPT), str(folder), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished(process: subprocess.Popen) -> list[float]:
    """The losses that the process printed."""
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return [float.fromhex(word) for word in output.splitlines()[-1].split()[1:]]


def wait_for_step(process: subprocess.Popen, step: int) -> None:
    for line in process.stdout:
        if line.split() == ["step", str(step)]:
            return
    raise AssertionError(process.stderr.read())


# --- Determinism and resuming ---


def test_the_same_seed_gives_the_same_bits_and_another_seed_others():
    once = losses()
    assert once == losses() and len(once) == 12
    assert once != losses(seed=4)


def test_the_seed_of_the_config_draws_other_batches_for_the_same_weights():
    model, batches, config = setup()
    other = train(model, batches, dataclasses.replace(config, seed=4), progress=False).losses
    assert all(a != b for a, b in zip(other, losses(), strict=True))


def test_other_processes_give_the_same_bits(tmp_path):
    assert finished(start(tmp_path, 12)) == losses()


WHOLE_RUN = """
import hashlib, sys
from training_task import setup
from transformer_lib import generate
from transformer_lib.training import train
model, batches, config = setup(threads=int(sys.argv[1]))
losses = train(model, batches, config, progress=False).losses
weights = hashlib.sha256(b"".join(weight.detach().numpy().tobytes() for weight in model.parameters())).hexdigest()
drawn = generate(model.eval(), batches(0, config)[:, :4], max_new_tokens=9, temperature=1.0, seed=5).tolist()
print([loss.hex() for loss in losses], weights, drawn)
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_losses_weights_and_drawn_text_are_the_same_bits_in_every_process(threads):
    """Whatever Python's own order of sets and hashes: with one seed and one number of threads, on one machine."""

    def printed(hash_seed: str) -> str:
        paths = os.pathsep.join(filter(None, [str(SCRIPT.parent), os.environ.get("PYTHONPATH")]))
        environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": paths}
        command = [sys.executable, "-c", WHOLE_RUN, str(threads)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    first = printed("1")
    assert first == printed("2") and first.count("0x1") == 12


def test_the_callers_random_numbers_and_threads_are_left_alone():
    threads = torch.get_num_threads()
    model, batches, config = setup()
    torch.manual_seed(7)
    expected = torch.rand(5)
    torch.manual_seed(7)
    train(model, batches, config, progress=False)
    assert torch.equal(torch.rand(5), expected) and torch.get_num_threads() == threads


def test_what_a_callback_draws_changes_nothing():
    model, batches, config = setup()
    assert train(model, batches, config, progress=False, on_step=lambda _: torch.rand(3)).losses == losses()


@pytest.mark.parametrize("stop", [1, 4, 7, 10])
def test_interrupted_and_resumed_equals_uninterrupted(tmp_path, stop):
    def press_ctrl_c(history):
        if history.step == stop:
            os.kill(os.getpid(), signal.SIGINT)

    model, batches, config = setup()
    with pytest.raises(KeyboardInterrupt, match=r"(?s)Stopped after step \d+ of 12.*saved in"):
        train(model, batches, config, out=tmp_path, progress=False, on_step=press_ctrl_c)
    reached = len(checkpoint.read_about(tmp_path)["history"]["losses"])
    assert stop <= reached <= stop + 1
    again, batches, config = setup(seed=3)
    with torch.no_grad():
        again.embedding.weight.fill_(1.0)  # what is resumed does not depend on the weights that it is given
    assert train(again, batches, config, out=tmp_path, progress=False).losses == losses()


@pytest.mark.parametrize(("kills", "steps"), [(5, 30), pytest.param(50, 400, marks=pytest.mark.long)])
def test_killed_at_random_moments_every_restart_goes_on(tmp_path, kills, steps):
    rng, expected = random.Random(), losses(steps=steps)
    for _ in range(kills):
        process = start(tmp_path, steps, 0.02)
        wait_for_step(process, rng.randint(1, 3)) if checkpoint.read_about(tmp_path) is None else time.sleep(0)
        time.sleep(rng.uniform(0, 2.5))  # half of them while torch is still loading
        process.kill()
        process.communicate()
    assert finished(start(tmp_path, steps)) == expected


def test_ctrl_c_ends_the_process_with_a_checkpoint(tmp_path):
    process = start(tmp_path, 1000, 0.01)
    wait_for_step(process, 5)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode != 0 and "Run the same again" in errors
    assert 5 <= len(checkpoint.read_about(tmp_path)["history"]["losses"]) < 1000


def test_a_second_ctrl_c_does_not_wait():
    with pytest.raises(KeyboardInterrupt), interruptible() as interrupted:
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupted()
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_finished_run_is_not_trained_again(tmp_path):
    model, batches, config = setup()
    first = train(model, batches, config, out=tmp_path, progress=False, evaluate=lambda model: 1.5)
    fresh, batches, config = setup(seed=3)
    steps = []
    second = train(fresh, batches, config, out=tmp_path, progress=False, on_step=steps.append)
    assert second == first and steps == [] and second.evaluations == [(12, 1.5)]
    assert torch.equal(fresh.embedding.weight, model.embedding.weight)


def test_the_thread_count_is_kept_with_the_run(tmp_path):
    train(*setup(), out=tmp_path, progress=False)
    assert checkpoint.read_about(tmp_path)["history"]["threads"] == 1


# --- Folders ---


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"steps": 13}, "steps is 12 there and 13 here"),
        ({"seed": 4}, "seed"),
        ({"learning_rate": 1e-2}, "learning_rate"),
    ],
)
def test_the_folder_of_another_run_is_refused(tmp_path, changes, named):
    train(*setup(), out=tmp_path, progress=False)
    before = (tmp_path / checkpoint.FILE).read_bytes()
    with pytest.raises(ValueError, match=named):
        train(*setup(**changes), out=tmp_path, progress=False)
    assert (tmp_path / checkpoint.FILE).read_bytes() == before


def test_other_data_other_shapes_and_starting_over_are_refused(tmp_path):
    model, batches, config = setup()
    train(model, batches, config, out=tmp_path, progress=False)
    with pytest.raises(ValueError, match="data is"):
        train(model, TextBatches(text().flip(0), context=11), config, out=tmp_path, progress=False)
    with pytest.raises(ValueError, match="n_layers is 2 there and 3 here"):
        train(build(small(dropout=0.2, n_layers=3)), batches, config, out=tmp_path, progress=False)
    with pytest.raises(ValueError, match="already holds a run"):
        train(model, batches, config, out=tmp_path, resume=False, progress=False)
    checkpoint.save_model(model, tmp_path / "model")
    with pytest.raises(ValueError, match="without its training state"):
        train(model, batches, config, out=tmp_path / "model", progress=False)


def test_two_processes_cannot_train_into_one_folder(tmp_path):
    process = start(tmp_path, 1000, 0.01)
    wait_for_step(process, 1)
    try:
        with pytest.raises(RunIsBusy, match="Another process is training"):
            train(*setup(steps=1000), out=tmp_path, progress=False)
    finally:
        process.kill()
        process.communicate()


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match=r"Nothing can be saved in .*choose another folder"):
        train(*setup(), out=tmp_path / "file", progress=False)


# --- Numbers ---


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_nan_stops_with_a_sentence_and_the_last_good_checkpoint(tmp_path, what):
    model, batches, config = setup()
    calls = []

    def breaks_at_step_7(model, batch):
        calls.append(1)
        loss = next_token_loss(model, batch)
        if len(calls) < 7:
            return loss
        return loss * math.nan if what == "loss" else loss + (model.embedding.weight.sum() * 0).sqrt()

    with pytest.raises(FloatingPointError, match=f"The {what} is nan at step 7.*learning rate below 0.003"):
        train(model, batches, config, loss_fn=breaks_at_step_7, out=tmp_path, progress=False)
    about, tensors = checkpoint.read_checkpoint(tmp_path)
    assert len(about["history"]["losses"]) == 4
    assert all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values())
    assert all(bool(torch.isfinite(weight).all()) for weight in model.parameters())


def test_the_loss_mask_goes_before_the_mean():
    model, ids = build(small()).requires_grad_(False), random_ids(3, 9)
    mask = torch.rand(3, 9, generator=torch.Generator().manual_seed(0)) < 0.4
    by_hand = [
        float(-torch.log_softmax(model(ids[b : b + 1, :t]), -1)[0, -1, ids[b, t]])
        for b in range(3)
        for t in range(1, 9)
        if mask[b, t]
    ]
    assert len(by_hand) not in (0, 24)
    loss = next_token_loss(model, (ids, mask))
    assert abs(float(loss) - sum(by_hand) / len(by_hand)) < 1e-5
    changed = torch.where(mask, ids, (ids + 1) % 29)  # what does not count as a target …
    logits = model(ids[:, :-1])
    kept = mask[:, 1:]
    assert torch.equal(cross_entropy(logits, ids[:, 1:], kept), cross_entropy(logits, changed[:, 1:], kept))


def test_one_loop_trains_an_encoder_decoder():
    cfg = small(n_encoder_layers=1)
    torch.manual_seed(0)
    model = EncoderDecoder(cfg)

    def batches(step, config):
        source = torch.randint(0, 29, (config.batch_size, 7))  # from the global generator: seeded for every step
        return source, source.flip(1)

    def loss_fn(model, batch):
        source, target = batch
        return cross_entropy(model(source, target[:, :-1]), target[:, 1:])

    config = TrainConfig(steps=40, batch_size=5, learning_rate=1e-2, threads=1)
    history = train(model, batches, config, loss_fn=loss_fn, progress=False)
    assert history.losses[-1] < history.losses[0] and history.tokens == 40 * 5 * 7


def test_it_learns():
    history = train(*setup(steps=150, learning_rate=1e-2), progress=False)
    assert history.losses[0] > 3 and sum(history.losses[-10:]) / 10 < 1


def test_updates_are_those_of_adamw_with_decay_on_matrices_alone():
    model, _, config = setup(weight_decay=0.3)
    twin, _, _ = setup()
    ours = make_optimizer(model, config)
    matrices = [p for p in twin.parameters() if p.dim() == 2]
    vectors = [p for p in twin.parameters() if p.dim() == 1]
    theirs = [
        torch.optim.AdamW(group, lr=3e-3, betas=(0.9, 0.95), weight_decay=decay, foreach=False, fused=False)
        for group, decay in ((matrices, 0.3), (vectors, 0.0))
    ]
    model.eval(), twin.eval()
    for _ in range(3):
        for net, optimizers in ((model, [ours]), (twin, theirs)):
            next_token_loss(net, random_ids(3, 9)).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(a, b, atol=2e-6)


def test_schedules():
    cosine = TrainConfig(steps=100, learning_rate=0.5, warmup_steps=10, final_fraction=0.1)
    rates = [cosine.learning_rate_at(step) for step in range(100)]
    assert rates[:3] == pytest.approx([0.05, 0.1, 0.15]) and max(rates) == rates[9] == 0.5
    assert rates[-1] == pytest.approx(0.05) and rates[9:] == sorted(rates[9:], reverse=True)
    d_model, warmup = 512, 40  # the paper's formula, section 5.3, up to its factor d^-0.5
    paper = TrainConfig(
        steps=100, learning_rate=(d_model * warmup) ** -0.5, warmup_steps=warmup, schedule="inverse_sqrt"
    )
    for done in (1, 13, 39, 40, 41, 100):
        expected = d_model**-0.5 * min(done**-0.5, done * warmup**-1.5)
        assert paper.learning_rate_at(done - 1) == pytest.approx(expected)
    flat = TrainConfig(steps=9, learning_rate=0.2, warmup_steps=0, schedule="constant")
    assert {flat.learning_rate_at(step) for step in range(9)} == {0.2}


def test_gradients_are_clipped():
    model, batches, config = setup(grad_clip=1e-3, schedule="constant", warmup_steps=0)
    lengths = []
    original = nn.utils.clip_grad_norm_

    def spy(parameters, longest):
        parameters = list(parameters)
        before = original(parameters, longest)
        lengths.append(math.sqrt(sum(float((p.grad**2).sum()) for p in parameters)))
        return before

    nn.utils.clip_grad_norm_ = spy
    try:
        train(model, batches, config, progress=False)
    finally:
        nn.utils.clip_grad_norm_ = original
    assert max(lengths) <= 1e-3 * (1 + 1e-4)


def test_evaluation_is_in_eval_mode_and_at_the_right_steps():
    model, batches, config = setup(eval_every=5)
    modes = []

    def evaluate(model):
        modes.append(model.training)
        return mean_loss(model, [batches(0, config), batches(1, config)])

    history = train(model, batches, config, evaluate=evaluate, progress=False)
    assert [step for step, _ in history.evaluations] == [5, 10, 12] and modes == [False] * 3 and model.training


def test_windows_begin_where_they_may():
    config = TrainConfig(steps=1, batch_size=50)
    starts = torch.tensor([0, 10, 21, 95])  # the last leaves no room for a window of 12
    rows = TextBatches(torch.arange(100), context=11, starts=starts)(0, config)
    assert rows.shape == (50, 12) and set(rows[:, 0].tolist()) == {0, 10, 21}
    assert torch.equal(rows - rows[:, :1], torch.arange(12).expand(50, 12))
    free = TextBatches(torch.arange(13), context=11)(0, config)
    assert set(free[:, 0].tolist()) == {0, 1}
    with pytest.raises(ValueError, match="the text has 11 tokens"):
        TextBatches(torch.arange(11), context=11)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "steps must be a whole number of at least 1; got 0"),
        ({"steps": 2.0}, "steps"),
        ({"batch_size": True}, "batch_size"),
        ({"learning_rate": math.nan}, "learning_rate must be a finite number"),
        ({"learning_rate": 0.0}, "above 0"),
        ({"grad_clip": -1}, "grad_clip"),
        ({"schedule": "linear"}, "'cosine', 'inverse_sqrt', 'constant'; got 'linear'"),
        ({"betas": (0.9, 1.0)}, "betas"),
        ({"seed": -1}, "seed"),
        ({"threads": 0}, "threads"),
        ({"threads": 10**6}, "threads must be at most 256; got 1,000,000"),
        ({"steps": 10**30}, "steps must be at most"),
        ({"seed": 2**63}, "below 2\\^63"),
    ],
)
def test_a_training_config_that_cannot_be_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        TrainConfig(**({"steps": 5} | changes))


def test_the_history_survives_json(tmp_path):
    history = train(*setup(), out=tmp_path, progress=False)
    assert json.loads(json.dumps(history.losses)) == history.losses
    assert checkpoint.read_about(tmp_path)["history"]["losses"] == history.losses


def test_a_batch_that_would_fill_the_memory_is_refused_before_it_is_made():
    config = TrainConfig(steps=1, batch_size=2**31 - 1)
    with pytest.raises(ValueError, match=r"batch_size=2,147,483,647 is too large: at most 268,435,456 tokens"):
        TextBatches(torch.arange(100), context=11)(0, config)

"""Several processes: other losses than one, a checkpoint that only they can read, many voices, unequal shares."""

import re
import subprocess
import sys
import time

import pytest
import torch
from training_task import setup

from transformer_lib import corpus
from transformer_lib.checkpoint import read_checkpoint
from transformer_lib.distributed import ALONE, Team, launched
from transformer_lib.training import History, make_optimizer, next_token_loss, one_step, train

OPTIONS = ["--batch-size", "6", "--width", "24", "--heads", "2", "--layers", "2", "--context", "17", "--seed", "3"]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "mine.txt"
    path.write_text(corpus.pydoc_text()[:4000])
    return path


def command(text, out, steps: int, processes: int = 1) -> subprocess.CompletedProcess:
    team = ["-m", "torch.distributed.run", f"--nproc-per-node={processes}"] if processes > 1 else []
    line = [sys.executable, *team, "-m", "transformer_lib", "train", *OPTIONS, "--text", text, "--out", out]
    return subprocess.run([*line, "--steps", str(steps)], capture_output=True, text=True, timeout=120)


def test_two_processes_train_as_one_and_speak_with_one_voice(text, tmp_path):
    """On this machine's own loopback; the checkpoint of the two is read, and gone on with, by one."""
    alone, together = command(text, tmp_path / "alone", 8), command(text, tmp_path / "together", 8, processes=2)
    assert alone.returncode == together.returncode == 0, together.stderr
    (one, weights), (two, shared) = (read_checkpoint(tmp_path / name) for name in ("alone", "together"))
    assert len(set(one["history"]["losses"])) == 8
    assert two["history"]["losses"] == pytest.approx(one["history"]["losses"], abs=1e-4)
    assert two["history"]["tokens"] == one["history"]["tokens"] == 8 * 6 * 18
    assert weights.keys() == shared.keys()
    for name, weight in weights.items():
        torch.testing.assert_close(shared[name], weight, atol=1e-3, rtol=1e-3)
    assert together.stdout.count("Loss on the text's last part") == 1
    assert together.stderr.count("Training ") == 1 and len(re.findall("100%", together.stderr)) == 1
    again = command(text, tmp_path / "together", 8)
    assert again.returncode == 0 and again.stdout == together.stdout


WAITING = """
import os, pathlib, sys, time
place = pathlib.Path(sys.argv[1], os.environ["RANK"])
try:
    place.with_suffix(".there").write_text(os.environ["WORLD_SIZE"] + os.environ["OMP_NUM_THREADS"])
    time.sleep(100)
except KeyboardInterrupt:
    place.with_suffix(".stopped").touch()
"""


def test_whoever_leaves_a_team_interrupts_it(tmp_path):
    script = tmp_path / "waiting.py"
    script.write_text(WAITING)
    with launched([str(script), str(tmp_path)], 2) as team:
        while sorted(path.read_text() for path in tmp_path.glob("*.there")) != ["21", "21"]:
            assert team.poll() is None
            time.sleep(0.1)
    assert team.poll() is not None
    assert sorted(path.name for path in tmp_path.glob("*.stopped")) == ["0.stopped", "1.stopped"]


MANY_ENDS = """
import os, sys, torch
from torch import distributed, nn
from transformer_lib.distributed import Team
folder, rank = sys.argv[1], int(sys.argv[2])
def one(i):
    distributed.init_process_group("gloo", init_method=f"file://{folder}/{i}", rank=rank, world_size=2)
    team = Team(rank, 2)
    model = team.wrap(nn.Linear(64, 64))
    model(torch.randn(4, 64)).sum().backward()
    assert not team.any(False, "cpu")
    distributed.destroy_process_group()  # and then, as at the end of `train`, the model goes
for i in range(40):
    one(i)
print("done", flush=True)
os._exit(0)
"""


def test_a_team_that_has_trained_ends(tmp_path):
    """Without `KEPT`, one of these 40 ends is a deadlock, nearly always."""
    script = tmp_path / "ends.py"
    script.write_text(MANY_ENDS)
    line = [sys.executable, str(script), str(tmp_path)]
    with subprocess.Popen([*line, "1"]) as other:
        try:
            assert subprocess.run([*line, "0"], stdout=subprocess.PIPE, text=True, timeout=60).stdout == "done\n"
            assert other.wait(timeout=10) == 0
        finally:
            other.kill()


# --- Its logic, in one process ---


def test_torchrun_says_who_is_who(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert Team.from_environment() == ALONE == Team(rank=0, size=1, local_rank=0) and ALONE.leads
    for name, value in {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    team = Team.from_environment()
    assert team == Team(rank=5, size=8, local_rank=1) and not team.leads
    assert team.device(torch.device("cuda")) == torch.device("cuda:1"), "a GPU for each"
    assert team.device(torch.device("cpu")) == torch.device("cpu")
    assert ALONE.device(torch.device("cuda")) == torch.device("cuda")


@pytest.mark.parametrize(("device", "backend"), [("cuda", "nccl"), ("cpu", "gloo")])
def test_gpus_talk_over_nccl_and_processors_over_gloo(device, backend, monkeypatch):
    said = []
    monkeypatch.setattr(torch.distributed, "init_process_group", said.append)
    monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: said.append("left"))
    with pytest.raises(RuntimeError, match="inside"), Team(1, 2, 1).joined(torch.device(device)):
        raise RuntimeError("inside")
    with ALONE.joined(torch.device(device)):
        pass
    assert said == [backend, "left"]


def test_the_shares_are_the_batch():
    batch = torch.arange(12).view(6, 2)
    shares = [Team(rank, 3).own_rows(batch) for rank in range(3)]
    assert [len(share) for share in shares] == [2, 2, 2]
    assert sorted(torch.cat(shares).tolist()) == batch.tolist() and ALONE.own_rows(batch) is batch
    with pytest.raises(ValueError, match="4 processes cannot share 6 rows equally"):
        Team(0, 4).own_rows(batch)
    with pytest.raises(TypeError, match=r"mask.*one process"):
        Team(0, 2).own_rows((batch, batch > 0))


# --- bfloat16, on either device behind one switch ---


def test_bf16_learns_what_float32_learns():
    """The weights stay in float32, and the loss differs by the noise of its rounding."""
    runs = {}
    for precision in ("float32", "bf16"):
        model, batches, config = setup(steps=150, precision=precision)
        runs[precision] = train(model, batches, config, progress=False).losses
        assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert runs["bf16"] != runs["float32"]
    ends = [sum(losses[-30:]) / 30 for losses in runs.values()]
    assert ends[0] < 0.8 * runs["float32"][0] and ends[1] == pytest.approx(ends[0], abs=0.1)


@pytest.mark.parametrize(("precision", "enabled"), [("float32", False), ("bf16", True)])
def test_the_switch_is_autocast_on_the_device_of_the_run(precision, enabled, monkeypatch):
    model, batches, config = setup(precision=precision)
    asked, autocast = [], torch.autocast

    def noted(device_type, dtype, enabled):
        asked.append((device_type, dtype, enabled))
        return autocast("cpu", dtype, enabled=enabled)

    monkeypatch.setattr(torch, "autocast", noted)
    monkeypatch.setattr("transformer_lib.training.to_device", lambda batch, device: batch)
    optimizer = make_optimizer(model, config)
    one_step(model, optimizer, batches, next_token_loss, config, History(), torch.device("cuda"))
    assert asked == [("cuda", torch.bfloat16, enabled)]
    assert all(group["fused"] for group in optimizer.param_groups), "AdamW in one kernel"

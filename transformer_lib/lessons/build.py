"""The authoring command behind `make notebooks`: execute the notebooks, store their outputs, write figures/.

    python -m transformer_lib.lessons.build            # all notebooks
    python -m transformer_lib.lessons.build 02 03      # those whose names begin so

Each notebook runs from top to bottom in a fresh kernel, in static mode: explorers leave a picture and no widget. A
cell that fails leaves the file as it was and is printed. Figures are those in the stored outputs: they are written
to figures/<notebook>_<name>.png, with an index of their alt texts, and those no longer drawn are deleted.

Every notebook's first code cell begins with `FIRST_CELL`, so that a missing package is one line and no traceback.
"""

import base64
import json
import os
import pathlib
import sys
import tempfile
import time

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

FIRST_CELL = """\
try:
    from transformer_lib.lessons import check, claim, predict
except ModuleNotFoundError as missing:
    advice = "transformer_lib is not installed in this kernel: "
    advice += "close this page and start with `make lab`"
    missing._render_traceback_ = lambda: [advice]  # one line instead of a traceback
    raise"""
KERNEL = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
LANGUAGE = {"name": "python", "file_extension": ".py", "mimetype": "text/x-python", "pygments_lexer": "ipython3"}
CELL_SECONDS = 600
INDEX = "index.json"
FAILURES = (CellExecutionError, CellTimeoutError, DeadKernelError)


def execute(notebook: nbformat.NotebookNode, folder: pathlib.Path) -> nbformat.NotebookNode:
    """A copy of the notebook, executed in static mode in a fresh kernel that starts in `folder`, normalised."""
    notebook = nbformat.from_dict(json.loads(json.dumps(notebook)))
    environment = dict(os.environ, EXPLORER_STATIC="1", TRANSFORMER_PROJECTOR="")
    client = NotebookClient(
        notebook,
        kernel_name="python3",
        timeout=CELL_SECONDS,
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(env=environment)
    return normalise(notebook)


def normalise(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Drop all that differs between machines and runs; join split streams; number the code cells 1 … n."""
    notebook.metadata = nbformat.from_dict({"kernelspec": KERNEL, "language_info": LANGUAGE})
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    number = 0
    for cell in notebook.cells:
        kept = {key: cell.metadata[key] for key in ("tags", "jupyter") if cell.metadata.get(key)}
        cell.metadata = nbformat.from_dict(kept)
        if cell.cell_type != "code":
            continue
        number += bool(cell.source.strip())
        cell.execution_count = number if cell.source.strip() else None
        cell.outputs = _joined(cell.outputs)
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = cell.execution_count
    return notebook


def _joined(outputs: list) -> list:
    """Neighbouring pieces of one stream become one output: how a kernel splits them is chance."""
    joined = []
    for output in outputs:
        last = joined[-1] if joined else None
        if last and output.output_type == last.output_type == "stream" and output.name == last.name:
            last.text += output.text
        else:
            joined.append(output)
    return joined


def pictures(notebook: nbformat.NotebookNode) -> dict[str, tuple[bytes, str]]:
    """{name: (PNG bytes, alt text)} of the named pictures in a notebook's outputs."""
    found = {}
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            about = output.get("metadata", {}).get("image/png", {})
            if "name" not in about:
                continue
            if about["name"] in found:
                raise ValueError(f"two figures of one notebook are called {about['name']!r}: give each its own name")
            found[about["name"]] = (base64.b64decode(output.data["image/png"]), about["alt"])
    return found


def write_figures(notebooks: dict[str, nbformat.NotebookNode], figures: pathlib.Path) -> None:
    """Write the pictures of these notebooks ({stem: notebook}) and the index; delete their figures of before."""
    figures.mkdir(exist_ok=True)
    path = figures / INDEX
    index = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for stem, notebook in notebooks.items():
        drawn = {f"{stem}_{name}.png": picture for name, picture in pictures(notebook).items()}
        for old in [name for name in index if name.startswith(f"{stem}_") and name not in drawn]:
            (figures / old).unlink(missing_ok=True)
            del index[old]
        for name, (data, alt) in drawn.items():
            write(figures / name, data)
            index[name] = alt
    write(path, (json.dumps(dict(sorted(index.items())), ensure_ascii=False, indent=1) + "\n").encode())


def write(path: pathlib.Path, data: bytes) -> None:
    """Write a file whole or not at all; leave it untouched when nothing changes."""
    if path.exists() and path.read_bytes() == data:
        return
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        pathlib.Path(name).unlink(missing_ok=True)
        raise


def build(path: pathlib.Path, figures: pathlib.Path) -> None:
    """Execute one notebook and store it, and its figures."""
    notebook = execute(nbformat.read(path, as_version=4), path.parent)
    pictures(notebook)  # refuse equal names before anything is written
    nbformat.validate(notebook)
    write(path, (nbformat.writes(notebook).rstrip("\n") + "\n").encode())
    write_figures({path.stem: notebook}, figures)


def select(folder: pathlib.Path, names: list[str]) -> list[pathlib.Path]:
    """The notebooks whose file names begin with one of the names; all where none is given."""
    paths = sorted(p for p in folder.glob("*.ipynb") if p.name.startswith(tuple(names) or ("",)))
    for name in names:
        if not any(p.name.startswith(name) for p in paths):
            raise FileNotFoundError(f"no notebook in {folder} begins with {name!r}.")
    return paths


def main(names: list[str], root: pathlib.Path | None = None) -> int:
    """Build the named notebooks below the project's root; returns the number of failures."""
    root = root or pathlib.Path(__file__).resolve().parents[2]
    failures = 0
    for path in select(root / "notebooks", names):
        start = time.perf_counter()
        try:
            build(path, root / "figures")
            print(f"{path.name}: {time.perf_counter() - start:.0f} s, {path.stat().st_size / 1e6:.2f} MB", flush=True)
        except (*FAILURES, ValueError) as error:
            failures += 1
            print(f"{path.name}: not stored:\n{error}", file=sys.stderr, flush=True)
    return failures


if __name__ == "__main__":
    try:
        sys.exit(1 if main(sys.argv[1:]) else 0)
    except FileNotFoundError as error:
        sys.exit(str(error))

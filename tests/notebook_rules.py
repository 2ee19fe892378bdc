"""What a finished notebook must keep to, as rules: each takes (notebook, path) and returns complaints, in sentences."""

import itertools
import re

from transformer_lib.lessons.build import FIRST_CELL
from transformer_lib.lessons.claims import unclaimed_numbers

LARGEST = 1_500_000
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
HERE = re.compile(r"(?<![\w.])/(?:home|Users|root|work|tmp|opt|mnt|private)/\w|\b[A-Z]:\\\w")
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)[^)]*\)")


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs(notebook):
    return [output for cell in code_cells(notebook) for output in cell.outputs]


def prose(notebook) -> str:
    return "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")


def marks(notebook, key: str) -> list:
    """What lesson tools (claims, checks, predictions) left in the outputs' metadata."""
    kept = [output.get("metadata", {}).get("transformer_lib", {}) for output in outputs(notebook)]
    return [about[key] for about in kept if key in about]


def pictures(notebook, kind: str) -> list[str]:
    about = [output.get("metadata", {}).get("image/png", {}) for output in outputs(notebook)]
    return [a["name"] for a in about if a.get("kind") == kind]


def counts_in_order(notebook, path):
    counts = [cell.execution_count for cell in code_cells(notebook)]
    wanted = list(range(1, len(counts) + 1))
    return [] if counts == wanted else [f"execution counts are {counts}, not 1 … {len(counts)}"]


def kernel_python3(notebook, path):
    name = notebook.metadata.get("kernelspec", {}).get("name")
    return [] if name == "python3" else [f"the kernel is called {name!r}, not 'python3'"]


def no_errors(notebook, path):
    bad = [o for o in outputs(notebook) if o.output_type == "error" or o.get("name") == "stderr"]
    return [f"an error or warning is stored: {str(o.get('text', o.get('evalue')))[:80]}" for o in bad]


def no_widget_state(notebook, path):
    found = ["metadata.widgets is stored"] if "widgets" in notebook.metadata else []
    return found + ["a widget view is stored" for o in outputs(notebook) if WIDGET_VIEW in o.get("data", {})]


def no_absolute_path(notebook, path):
    texts = [cell.source for cell in notebook.cells]
    texts += [str(o.get("text", "")) + str(o.get("data", {}).get("text/plain", "")) for o in outputs(notebook)]
    return [f"a path of one machine: {m[0]}…" for text in texts for m in HERE.finditer(text)]


def small_enough(notebook, path):
    size = path.stat().st_size
    return [] if size <= LARGEST else [f"the file has {size:,} bytes; at most {LARGEST:,} are allowed"]


def every_image_has_alt(notebook, path):
    about = [o.get("metadata", {}).get("image/png", {}) for o in outputs(notebook) if "image/png" in o.get("data", {})]
    found = ["an output image without alt text" for a in about if len(a.get("alt", "").split()) < 3]
    found += [f"an image without alt text: {m[3]}" for m in LINK.finditer(prose(notebook)) if m[1] and not m[2].strip()]
    images = re.findall(r"<img[^>]*>", prose(notebook))
    return found + [f"an image without alt text: {tag}" for tag in images if not re.search(r'alt="[^"]+', tag)]


def broken_links(text, folder):
    """Relative links of a Markdown text that lead to no file."""
    targets = [m[3] for m in LINK.finditer(text)] + re.findall(r'(?:src|href)="([^"]+)"', text)
    local = [t.split("#")[0] for t in targets if not re.match(r"[a-z]+:|#", t)]
    return [f"a link to nothing: {t}" for t in local if not (folder / t).exists()]


def links_resolve(notebook, path):
    return broken_links(prose(notebook), path.parent)


def outline(notebook, path):
    text = re.sub(r"```.*?```", "", prose(notebook), flags=re.DOTALL)
    levels = [len(m[1]) for m in re.finditer(r"^(#{1,6})\s", text, re.MULTILINE)]
    if not levels or levels[0] != 1 or levels.count(1) != 1:
        return [f"one first-level heading is wanted, at the top; the levels are {levels}"]
    return [f"a heading of level {b} follows one of level {a}" for a, b in itertools.pairwise(levels) if b > a + 1]


def header_and_footer(notebook, path):
    first, last = notebook.cells[0], notebook.cells[-1]
    found = [] if first.cell_type == "markdown" else ["the first cell is not text"]
    for word in (r"\d+\s+minutes", r"\d+\s+seconds", r"\]\(\.\./README\.md"):
        if not re.search(word, first.source):
            found.append(f"the header lacks {word}")
    return found + ([] if "](../README.md" in last.source else ["the last cell has no link to the README"])


def _between(number, low, high, what):
    return [] if low <= number <= high else [f"{number:,} {what}; {low:,} to {high:,} are wanted"]


def measures(notebook, path):
    words = len(re.findall(r"[\w'’-]*[A-Za-z][\w'’-]*", re.sub(r"```.*?```", "", prose(notebook), flags=re.DOTALL)))
    figures = [name for name in pictures(notebook, "figure") if name != "map"]
    found = _between(len(notebook.cells), 20, 45, "cells") + _between(words, 1200, 2500, "words")
    found += _between(len(figures), 4, 8, "figures") + _between(len(pictures(notebook, "explorer")), 2, 8, "explorers")
    found += _between(len(set(marks(notebook, "exercise"))), 3, 6, "exercises")
    found += _between(len(marks(notebook, "question")), 2, 4, "predictions")
    return found + ([] if "map" in pictures(notebook, "figure") else ["the block map at the top is missing"])


def exercises_solved(notebook, path):
    """Each exercise: first a cell that is not tried yet, later a collapsed solution that is right, and nothing else."""
    verdicts = {}
    found = []
    for cell in code_cells(notebook):
        solution = "solution" in cell.metadata.get("tags", [])
        if solution and not cell.metadata.get("jupyter", {}).get("source_hidden"):
            found.append("a solution is not collapsed")
        for output in cell.outputs:
            about = output.get("metadata", {}).get("transformer_lib", {})
            if "exercise" in about:
                verdicts.setdefault(about["exercise"], []).append((solution, about["status"]))
    wanted = [(False, "open"), (True, "right")]
    return found + [f"exercise {name}: {v}, not {wanted}" for name, v in verdicts.items() if v != wanted]


def claimed_numbers(notebook, path):
    return [f"no claim states the number {number}" for number in unclaimed_numbers(notebook)]


def first_cell_says_what_is_missing(notebook, path):
    fine = code_cells(notebook)[0].source.startswith(FIRST_CELL)
    return [] if fine else ["the first code cell does not begin with lessons.build.FIRST_CELL"]


def unique_ids(notebook, path):
    ids = [cell.get("id") for cell in notebook.cells]
    return [] if all(ids) and len(set(ids)) == len(ids) else ["cell ids are missing or not unique"]


RULES = (
    counts_in_order,
    kernel_python3,
    no_errors,
    no_widget_state,
    no_absolute_path,
    small_enough,
    every_image_has_alt,
    links_resolve,
    outline,
    header_and_footer,
    measures,
    exercises_solved,
    claimed_numbers,
    first_cell_says_what_is_missing,
    unique_ids,
)

"""The package reads like the course: a module uses only what stands above it. And importing it stays light and safe."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import transformer_lib

PACKAGE = Path(transformer_lib.__file__).parent
# The order in which a forward pass meets them, then what is built on a model; a folder stands for all of its modules.
ORDER = [
    "values", "config", "taps", "checks", "bpe", "tokenizer", "fused", "positions", "attention", "norms", "mlp",
    "kv_cache", "accounting", "model", "recording", "devices", "distributed", "decoding", "generation", "grammar",
    "story_plots", "storyteller", "corpus", "losses", "checkpoint", "train_config", "runs", "training", "head_scores",
    "ledger", "gradients", "toy", "neurons", "translation", "pretrained", "relatives", "plots", "explorers", "lessons",
    "experiments", "doctor", "bench", "cli", "__main__",
]  # fmt: skip


def modules() -> dict[str, Path]:
    """Dotted name below transformer_lib -> file; the package's own __init__ aside."""
    names = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    del names[""]
    return names


MODULES = modules()


def imported(path: Path, everywhere: bool = True) -> set[str]:
    """The modules of this package that a file imports, inside functions too if `everywhere`."""
    tree, found = ast.parse(path.read_text(encoding="utf-8")), set()
    for node in ast.walk(tree) if everywhere else tree.body:
        if isinstance(node, ast.Import):
            found |= {
                alias.name.removeprefix("transformer_lib").removeprefix(".")
                for alias in node.names
                if owned(alias.name)
            }
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}, line {node.lineno}: imports are absolute"
            if owned(node.module):
                module = node.module.removeprefix("transformer_lib").removeprefix(".")
                names = {".".join(filter(None, (module, alias.name))) for alias in node.names}
                found |= {name if name in MODULES else module for name in names}
    return found


def owned(name: str) -> bool:
    return name.split(".")[0] == "transformer_lib"


def top(name: str) -> str:
    return name.split(".")[0]


def test_every_module_has_its_place():
    assert {top(name) for name in MODULES} <= set(ORDER), "a new module needs its place in the order"


@pytest.mark.parametrize("name", MODULES)
def test_a_module_imports_only_from_those_above_it(name):
    for other in imported(MODULES[name]):
        assert other, f"{name} imports from the package itself: name the module instead"
        above = ORDER.index(top(other)) < ORDER.index(top(name))
        assert above or top(other) == top(name), f"{name} imports {other}, which stands below it"


def test_no_module_needs_itself():
    """Inside a folder too, what is imported at import time forms no circle; a folder's __init__ counts as a module."""
    graph = {name: imported(path, everywhere=False) - {name} for name, path in MODULES.items()}
    assert list(TopologicalSorter(graph).static_order())


def test_no_module_is_long():
    lengths = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in MODULES.items()}
    assert not {name: length for name, length in lengths.items() if length > 300}


def test_nothing_is_executed_or_unpickled():
    """Files are data: nothing that is read can run."""
    for name, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            where = f"{name}, line {getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
                assert not {"pickle", "dill", "joblib", "shelve", "marshal"} & {n.split(".")[0] for n in names}, where
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in ("exec", "eval", "compile"), where
                if called == "torch.load":
                    assert any(k.arg == "weights_only" and ast.unparse(k.value) == "True" for k in node.keywords), where
                allow = [k for k in node.keywords if k.arg == "allow_pickle"]
                assert all(ast.unparse(k.value) == "False" for k in allow), where


def test_importing_the_library_is_light():
    """A script that only builds a model does not wait for plots, widgets, tokenizers or training tools."""
    heavy = ["matplotlib", "sentencepiece", "tokenizers", "ipywidgets", "IPython", "transformers", "gguf", "tqdm"]
    code = (
        "import sys, torch; before = set(sys.modules); import transformer_lib; "
        f"print([name for name in {heavy} if name in set(sys.modules) - before])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_all_public_names_exist():
    assert all(hasattr(transformer_lib, name) for name in transformer_lib.__all__)
    assert {"generate", "record", "edit", "pick_device", "KVCache"} <= set(transformer_lib.__all__)

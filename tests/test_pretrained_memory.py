"""Loading holds one copy of the weights: measured as the growth of a fresh process, its peak included."""

import subprocess
import sys

import pytest
import torch
from test_pretrained_gguf import write as write_gguf

from transformer_lib import Transformer, TransformerConfig
from transformer_lib.pretrained import save_huggingface, save_llama2c
from transformer_lib.tokenizer import Tokenizer

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads a process's peak as Linux tells it")

# 105 million bytes of float32 weights, none of whose tensors is above a tenth of them.
CFG = TransformerConfig(vocab_size=512, d_model=512, n_layers=8, n_heads=8, d_ff=1408, max_seq_len=64, norm_eps=1e-5)
MEASURE = r"""
import re, sys, torch
from transformer_lib import Transformer, TransformerConfig
from transformer_lib.pretrained import load_pretrained
from transformer_lib.tokenizer import Tokenizer
with torch.device("meta"):  # brings in what torch loads late
    Transformer(TransformerConfig(vocab_size=5, d_model=4, n_layers=1, n_heads=2, max_seq_len=8))
import safetensors.torch
memory = lambda name: 1024 * int(re.search(name + r":\s+(\d+) kB", open("/proc/self/status").read())[1])
tokenizer = Tokenizer.load(sys.argv[2])
before = memory("VmRSS")
model, _ = load_pretrained(sys.argv[1], tokenizer=tokenizer)
assert all(float(parameter.abs().sum()) > 0 for parameter in model.parameters())
print(memory("VmHWM") - before)
"""


@pytest.mark.parametrize("form", ["llama2c", "huggingface", "gguf"])
def test_one_copy(tmp_path, form):
    torch.manual_seed(3)
    model = Transformer(CFG)
    Tokenizer.train("a b c d e f g\n" * 50, 270).save(tmp_path / "tokens.model")
    path = tmp_path / "model.gguf"
    if form == "llama2c":
        save_llama2c(model, path := tmp_path / "model.bin")
    elif form == "gguf":
        write_gguf(path, model)
    else:
        save_huggingface(model, None, path := tmp_path / "folder")
    weights = 4 * sum(parameter.numel() for parameter in model.parameters())
    assert weights > 100e6
    del model
    run = subprocess.run(
        [sys.executable, "-c", MEASURE, str(path), str(tmp_path / "tokens.model")], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    growth = int(run.stdout)
    assert 0.9 * weights < growth < 1.35 * weights, f"{growth / weights:.2f} times the weights"

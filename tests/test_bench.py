"""The bench: ratios the wrong way round, rounds that are not rounds, peers that are other models, figures that are not
measured. Nothing here is timed: the clocks are ours, the sizes tiny."""

import itertools
import json
import sys
from types import SimpleNamespace

import nbformat
import pytest
import torch
from small import build, random_ids, small
from torch.utils.flop_counter import FlopCounterMode

from transformer_lib import __main__
from transformer_lib.accounting import count_parameters
from transformer_lib.bench import (
    batch,
    decode,
    explorers,
    keys,
    models,
    prefill,
    profile,
    start,
    text,
    threads,
    timing,
    train,
)
from transformer_lib.bench.ceilings import products, reading
from transformer_lib.bench.models import PEERS, Size, shape
from transformer_lib.bench.report import Row, rate_row, table
from transformer_lib.bench.timing import Times, in_turns
from transformer_lib.cli.bench import SECTIONS

TINY = Size(shape(512, 64, 2, 2, max_seq_len=96), context=8, batch_size=2)
OPTIONS = SimpleNamespace(quick=True, rounds=2, clock="wall", notebooks=None)


ONE_EXPLORER = """
import ipywidgets as widgets
from transformer_lib.explorers.base import Explorer

def build(fig):
    (line,) = fig.add_subplot().plot([0, 1], [0, 1])
    def update(n):
        line.set_ydata([0, n / 3])
        return f"n is {n}"
    return update

Explorer(build, {"n": widgets.IntSlider(1, 0, 3, description="n")}, title="One line", name="line")
"""


@pytest.fixture
def tiny(monkeypatch):
    """Every size is tiny, and all lengths are short."""
    for size in ("S", "M", "L"):
        monkeypatch.setitem(models.SIZES, size, TINY)
    monkeypatch.setattr(decode, "NEW", 40)
    monkeypatch.setattr(decode, "CONTEXTS", (8, 16, 32, 64))
    monkeypatch.setattr(decode, "reading", lambda: reading(1_000_000))
    monkeypatch.setattr(prefill, "TOKENS", 32)
    monkeypatch.setattr(batch, "NEW", 4)


# --- Timing ---


def test_runs_take_turns_and_nobody_is_always_first(monkeypatch):
    order, ticks = [], itertools.count()
    monkeypatch.setitem(timing.CLOCKS, "wall", lambda: next(ticks))
    times = in_turns({name: lambda name=name: order.append(name) for name in "abc"}, rounds=3)
    assert "".join(order) == "abc" + "abc" + "bca" + "cab", "once to warm up, then in turns"
    assert all(time.seconds == (1, 1, 1) for time in times.values())
    with pytest.raises(ValueError, match="'sun'"):
        in_turns({}, clock="sun")


def test_ratios_are_of_neighbours_and_spread_is_honest():
    slow, fast = (
        Times((2.0, 20.0, 3.0)),
        Times((1.0, 10.0, 1.0)),
    )  # the machine was slow in the second round
    assert slow.over(fast) == 2.0 and fast.over(slow) == 0.5
    assert slow.rate(6) == (2.0, 0.3, 3.0)
    row = rate_row(slow, 6, "tokens/s", section="s", case="c", what="w")
    assert (row.value, row.low, row.high) == (2.0, 0.3, 3.0)


def test_bars_are_read_the_right_way_round():
    at_least, at_most = {"section": "s", "case": "c", "what": "w", "bar": 2.0}, {"at_most": True}
    assert Row(**at_least, ratio=2.1).reached is True and Row(**at_least, ratio=1.9).reached is False
    assert (
        Row(**at_least, **at_most, ratio=1.9).reached is True and Row(**at_least, **at_most, value=2.1).reached is False
    )
    assert Row(**at_least, value=9.0, ratio=1.0).reached is False, "a ratio goes before the value"
    assert Row(**at_least).reached is None and Row(section="s", case="c", what="w", value=1.0).reached is None
    shown = table([Row(**at_least, ratio=1.9), Row(section="s", case="c", what="x", note="not installed")])
    assert "✗" in shown and "≥ 2" in shown and "not installed" in shown
    assert shown.count("\n") == 3 and len({line for line in shown.splitlines() if line.startswith("s ")}) == 1


# --- Ceilings and peers ---


@pytest.mark.parametrize("tie", [False, True])
def test_the_products_are_those_of_the_model(tie):
    cfg = small(tie_embeddings=tie)
    run, flops = products(cfg, rows=7)
    assert flops == 2 * 7 * count_parameters(cfg).multiplying
    with FlopCounterMode(display=False) as counter:
        run()
    assert counter.get_total_flops() == flops
    assert reading(2**20)[1] == 2**20


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in PEERS for name in PEERS[kind]])
def test_a_peer_has_the_shape_and_looks_at_nothing_ahead(kind, name):
    cfg = TINY.config if kind == "Llama-shaped" else TINY.gpt2()
    peer, why = models.made(PEERS[kind][name], cfg)
    if peer is None:
        pytest.skip(why)
    ids = random_ids(2, 9, vocab_size=512)
    other = ids.clone()
    other[:, -1] = (ids[:, -1] + 1) % 512
    with torch.no_grad():
        a, b = peer.eval()(ids), peer(other)
    assert a.shape == (2, 9, 512)
    torch.testing.assert_close(a[:, :-1], b[:, :-1])
    n_weights = sum(weight.numel() for weight in peer.parameters())
    assert n_weights == pytest.approx(count_parameters(cfg).total, rel=0.02)


def test_a_peer_that_is_missing_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "x_transformers", None)
    assert models.made(models.x_transformers, TINY.config) == (None, models.INSTALL)
    monkeypatch.setitem(models.SIZES, "S", TINY)
    rows = list(train.compare("S", "Llama-shaped", TINY.config, TINY, OPTIONS))
    assert [row.note for row in rows if row.what == "x-transformers"] == [models.INSTALL]


# --- Sections ---


@pytest.mark.parametrize("section", [train, profile, decode, prefill, batch])
def test_every_section_measures_what_it_names(section, tiny, monkeypatch):
    monkeypatch.setattr(prefill, "peak_bytes", lambda name, length: 1000 * length)
    rows = list(section.run(OPTIONS))
    assert rows and all(row.value is None or row.value > 0 for row in rows)
    assert all(row.note for row in rows if row.value is None)
    if section is decode:
        assert {row.what for row in rows} >= {"this library", "reading the weights", "with the cache", "without"}
    if section is profile:
        assert {row.what for row in rows} >= {"this library", "torch.nn.TransformerEncoder"}
        for row in rows:
            parts = [float(part.split()[-1].replace(",", "")) for part in row.note.split(", ")]
            assert len(parts) == 3 and sum(parts) == pytest.approx(row.value, abs=1.5)
    if section is prefill:
        assert [row.ratio for row in rows if "peak" in row.case] == [None, 2.0, 2.0]
        assert [row.reached for row in rows if "peak" in row.case] == [None, None, True]


def test_the_peak_of_a_prefill_grows_with_its_length_and_not_with_its_square():
    """Eight times the tokens: a T × T tensor of one head alone would take 64 times as much."""
    few, many = (prefill.peak_bytes("S", length) for length in (512, 4096))
    assert 0 < many < 12 * max(few, 8_000_000)


def test_the_text_section_writes_and_reads_stories(monkeypatch):
    monkeypatch.setattr(text.corpus, "story_text", lambda n, write=text.corpus.story_text: write(60_000))
    monkeypatch.setattr(text, "VOCABULARY", 400)
    rows = {row.what: row for row in text.run(OPTIONS)}
    assert set(rows) == {"writing stories", "learning a vocabulary", "encoding", "encoding, sentencepiece alone"}


def test_starting_is_measured_in_new_processes():
    importing, counting = start.run(SimpleNamespace(rounds=1, clock="wall"))
    assert 0 < importing.value < 60 and 0 < counting.value < 60 and importing.at_most


def test_thread_settings_reach_the_process_and_a_busy_one_ends(monkeypatch):
    seen = []

    def measured(n, environment, seconds):
        seen.append((n, environment))
        return 100.0 * n

    monkeypatch.setattr(threads, "tokens_per_second", measured)
    rows = list(threads.run(OPTIONS))
    assert len(rows) == 2 * len(threads.settings(2)) == len(seen)
    assert {row.ratio for row in rows if row.what.startswith("1 ")} == {1.0}
    judged = [row for row in rows if row.bar is not None]
    assert [row.case for row in judged] == ["beside a busy process"] and "choice" in judged[0].what
    with threads.busy_process(True):
        pass


def test_explorers_are_found_in_a_notebook_and_read_back(monkeypatch):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(ONE_EXPLORER)])
    monkeypatch.setattr("transformer_lib.lessons.build.select", lambda *_: [explorers.NOTEBOOKS / "99_test.ipynb"])
    monkeypatch.setattr(nbformat, "read", lambda *_, **__: notebook)
    rows = list(explorers.run(OPTIONS))
    assert [(row.case, row.what) for row in rows] == [("99_test: One line", "median"), ("99_test: One line", "95%")]
    assert 0 < rows[0].value <= rows[1].value <= rows[0].high


# --- The command ---


def test_the_command_prints_a_table_and_writes_the_figures(tmp_path, monkeypatch, capsys):
    row = Row(section="start", case="c", what="w", value=1.0, unit="s", bar=2.0, at_most=True)
    monkeypatch.setattr(start, "run", lambda options: [row])
    out = tmp_path / "figures.json"
    assert __main__.main(["bench", "start", "--out", str(out), "--threads", "1"]) == 0
    assert "✓" in capsys.readouterr().out
    figures = json.loads(out.read_text())
    assert figures["rows"][0]["what"] == "w" and figures["rows"][0]["reached"] is True
    assert figures["options"]["threads"] == 1 and figures["machine"]["torch"] == torch.__version__


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "no section 'nothing'"),
        (["--threads", "0"], "from 1 to"),
        (["--rounds", "0"], "from 1 to"),
        (["--clock", "cpu", "--threads", "2"], "--threads 1"),
    ],
)
def test_what_cannot_be_measured_is_refused(arguments, message, capsys):
    assert __main__.main(["bench", *arguments]) == 1
    assert message in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_refused_at_once_and_none_is_left_empty(tmp_path, monkeypatch, capsys):
    def stopped(options):
        raise KeyboardInterrupt

    monkeypatch.setattr(start, "run", stopped)
    assert __main__.main(["bench", "start", "--out", str(tmp_path / "figures.json")]) != 0
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(start, "run", lambda options: pytest.fail("measured all the same"))
    assert __main__.main(["bench", "start", "--out", str(tmp_path / "none" / "figures.json")]) != 0


def test_the_help_names_every_section(capsys):
    with pytest.raises(SystemExit):
        __main__.main(["bench", "--help"])
    words = capsys.readouterr().out.split()
    assert all(name in words for name in SECTIONS)


def test_ours_is_the_model_that_is_measured():
    model = models.ours(TINY.config)
    assert sum(w.numel() for w in model.parameters()) == count_parameters(TINY.config).total
    assert torch.equal(models.ours(TINY.config).embedding.weight, model.embedding.weight)
    assert build(small()).cfg != TINY.config


def test_keys_says_what_it_lacks_and_measures_each_explorer(monkeypatch):
    """The timing itself is tried in test_browser.py, on an explorer that works and on a dead one."""
    with monkeypatch.context() as m:
        m.setitem(sys.modules, "playwright", None)
        (row,) = keys.run(OPTIONS)
        assert row.value is None and "playwright is missing" in row.note
    driver = SimpleNamespace(chromium=lambda: None)
    monkeypatch.setattr(keys, "import_driver", lambda: driver)
    (row,) = keys.run(OPTIONS)
    assert row.value is None and "apt-get install chromium" in row.note
    driver.chromium = lambda: "/usr/bin/chromium"
    seen = [("02", "slow", [140.0, 150.1, 200.0]), ("02", "fast", [10.0, 20.0, 900.0])]
    monkeypatch.setattr(keys, "pressed", lambda driver, names, presses: seen if names == ["02_attention.ipynb"] else [])
    slow, fast = keys.run(OPTIONS)
    assert (slow.value, slow.reached, fast.value, fast.reached) == (150.1, False, 20.0, True)

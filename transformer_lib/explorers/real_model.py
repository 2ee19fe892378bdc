"""Explorers of notebook 12: heads knocked out by the dozen, and what every block of a deep model adds and predicts."""

import functools

import ipywidgets as widgets
import torch

from transformer_lib.explorers.base import HtmlExplorer, clip_text
from transformer_lib.explorers.drawing import Drawing
from transformer_lib.explorers.ledger import LENGTH, PUSH
from transformer_lib.explorers.stacking import word
from transformer_lib.explorers.tokens import chips
from transformer_lib.generation import generate
from transformer_lib.ledger import credits, ledger, unembed
from transformer_lib.losses import token_losses
from transformer_lib.plots.style import COLOURS
from transformer_lib.plots.tokens import readable
from transformer_lib.recording import edit, zero_head

LONGEST, NEW = 40, 12  # tokens of a typed text that are used, and tokens that continue it
DEPTH_LONGEST = 24  # tokens that can be chosen from
ROW = 19  # the height of a block's line
SUM, PULL, WORD, SHARE = 176, 330, 430, 560  # where the bars of attention and MLP, the words and the shares stand


def echoes(ids) -> dict[int, int]:
    """{query: key}: where an induction head should look, the token after the last earlier occurrence of this one."""
    last, found = {}, {}
    for i, token in enumerate(ids):
        if token in last:
            found[i] = last[token] + 1
        last[token] = i
    return found


def without(heads) -> dict:
    """Changes for `edit`: these (layer, head) write nothing."""
    by_layer: dict[int, list[int]] = {}
    for layer, head in heads:
        by_layer.setdefault(layer, []).append(head)
    return {f"blocks.{layer}.attention.heads": zero_head(*numbers) for layer, numbers in by_layer.items()}


def knock_out_lab(model, tokenizer, text: str, orders: dict, count: int = 8, most: int = 24) -> HtmlExplorer:
    """A text, its loss token by token and its continuation, whole and with some heads knocked out.

    orders: {name: [(layer, head), …]}, the heads with the highest score for a job first; `count` of them go out.
    """

    @functools.lru_cache(maxsize=64)
    @torch.no_grad()
    def run(typed: str, which: str, count: int):
        """(ids of the text and what follows it, the loss of each but the first)"""
        ids = torch.tensor([tokenizer.encode(typed)[:LONGEST]])  # (1, T)
        with edit(model, without(orders[which][:count])):
            ids = generate(model, ids, max_new_tokens=NEW)  # (1, T + NEW)
            return ids[0].tolist(), token_losses(model(ids)[0, :-1], ids[0, 1:]).tolist()

    def draw(sentence, which, count):
        typed, note = clip_text(sentence, instead=text)
        n = len(tokenizer.encode(typed))
        if n > LONGEST:
            note += f" (only the first {LONGEST} of {n} tokens are used)"
        n = min(n, LONGEST)
        whole, damaged = run(typed, which, 0), run(typed, which, count)
        seen = [i for i in echoes(whole[0][: n - 1]) if i]  # the next token can be copied from an earlier place
        means = [sum(loss[i] for i in seen) / len(seen) if seen else 0.0 for _, loss in (whole, damaged)]
        again = f"Where a token came before, the next one costs {means[0]:.2f} → {means[1]:.2f} nats. " if seen else ""
        words = tokenizer.decode(damaged[0][n:]).strip()
        summary = f"{count} heads out ({which}). {again}It goes on: {' '.join(words.split())}{note}"
        return knock_drawing(tokenizer, n, whole, damaged, count, which), summary

    controls = {
        "sentence": widgets.Text(text, description="your text"),
        "which": widgets.ToggleButtons(options=list(orders), value=next(iter(orders)), description="heads"),
        "count": widgets.IntSlider(count, 0, most, description="how many, best first", continuous_update=False),
    }
    return HtmlExplorer(draw, controls, title="Take heads out, and read what is left", name="knock_out_lab")


def knock_drawing(tokenizer, n: int, whole, damaged, count: int, which: str) -> Drawing:
    """The text with what each token's loss gains, then both continuations with their probabilities."""
    drawing = Drawing(800, 0)
    drawing.text(8, 14, "your text; below: what the knock-out adds to the loss of a token (nats)", anchor="start",
                 bold=True)  # fmt: skip
    parts = []
    for i, token in enumerate(whole[0][:n]):
        old, new = (losses[i - 1] if i else 0.0 for _, losses in (whole, damaged))
        gain = new - old
        tint = COLOURS["red"] if gain > 0 else COLOURS["blue"]
        fill = mixed(tint, min(abs(gain) / 8, 0.75))
        below = f"{gain:+.1f}".replace("-", "−") if abs(gain) >= 0.3 else " "
        parts.append((word(tokenizer, token), below, fill, "none", f"loss {old:.2f} → {new:.2f}" if i else "first"))
    y = chips(drawing, parts, 28)
    out = f"{count} heads out: {which}" if count else "nothing knocked out"
    for title, (ids, losses) in (("the whole model", whole), (out, damaged)):
        drawing.text(8, y + 12, f"it goes on ({title}); below: the probability of each token", anchor="start",
                     bold=True)  # fmt: skip
        shares = torch.tensor(losses[n - 1 :]).neg().exp().tolist()
        parts = [
            (word(tokenizer, token), f"{share:.2f}", mixed(COLOURS["green"], 0.6 * share), "none", f"{share:.1%}")
            for token, share in zip(ids[n:], shares, strict=True)
        ]
        y = chips(drawing, parts, y + 26)
    drawing.height = y
    return drawing


def mixed(colour: str, share: float) -> str:
    """`colour` on white, as #RRGGBB."""
    parts = [round(255 - share * (255 - int(colour[i : i + 2], 16))) for i in (1, 3, 5)]
    return "#" + "".join(f"{part:02X}" for part in parts)


def depth_ledger(model, tokenizer, text: str) -> HtmlExplorer:
    """One line per block, for one token: what its attention and its MLP wrote, and what the lens says after it."""
    heads = model.cfg.n_heads

    @functools.lru_cache(maxsize=1)
    @torch.no_grad()
    def look(typed: str):
        """(ids, ledger, probabilities under the lens (L + 1, T, V))"""
        ids = tokenizer.encode(typed)[:DEPTH_LONGEST]
        book = ledger(model, torch.tensor([ids]))
        return ids, book, unembed(model, book.streams[:, 0]).softmax(-1)

    def draw(sentence, measure, row):
        typed, note = clip_text(sentence, instead=text)
        ids, book, shares = look(typed)
        if len(tokenizer.encode(typed)) > len(ids):
            note += f" (only the first {len(ids)} tokens are read)"
        row = min(row, len(ids) - 1)
        at = shares[:, row]  # (L + 1, V)
        final = int(at[-1].argmax())
        ranks = (at > at[:, final, None]).sum(-1).tolist()  # (L + 1,)
        names = [readable(piece) for piece in tokenizer.pieces(typed)[: len(ids)]]
        writes = book.writes[1:, 0, row].unflatten(0, (-1, heads + 1))  # (L, H + 1, d_model): the heads, then the MLP
        if measure == PUSH:
            parts = credits(model, book, final)[1:, 0, row].unflatten(0, (-1, heads + 1))  # (L, H + 1)
            attention = parts[:, :-1].sum(dim=1)  # (L,)
        else:
            parts, attention = writes.norm(dim=-1), writes[:, :-1].sum(dim=1).norm(dim=-1)
        lens = [(word(tokenizer, int(p.argmax())), float(p.max())) for p in at]
        settled = next(k for k in range(len(ranks)) if not any(ranks[k:]))
        since = f"stays first from block {settled - 1} on" if settled else "is first from the embedding on"
        summary = (
            f"After {names[row]} ({row}) the model says {lens[-1][0]}, probability {lens[-1][1]:.2f}. Under the lens "
            f"it {since}; the embedding alone ranks it {ranks[0] + 1:,} of {at.shape[1]:,}."
        )
        what = f"push towards {word(tokenizer, final)}" if measure == PUSH else "length of the write"
        context = f"after … {' '.join(names[max(0, row - 3) : row + 1])}  ({row})"
        drawing = depth_drawing(
            attention.tolist(), parts.tolist(), lens, ranks, context, what, f"{word(tokenizer, final)}'s rank"
        )
        return drawing, summary + note

    controls = {
        "sentence": widgets.Text(text, description="your sentence"),
        "measure": widgets.ToggleButtons(options=[PUSH, LENGTH], value=PUSH, description="show"),
        "row": widgets.IntSlider(len(look(text)[0]) - 1, 0, DEPTH_LONGEST - 1, description="number of the token"),
    }
    return HtmlExplorer(draw, controls, title="Thirty blocks, one after the other", name="depth_ledger")


def depth_drawing(attention, parts, lens, ranks, context: str, what: str, final: str) -> Drawing:
    """attention: L numbers; parts: L times those of the heads and of the MLP; lens: (word, probability) per stream."""
    drawing = Drawing(800, 62 + ROW * len(lens))
    drawing.text(8, 14, context, anchor="start", bold=True)
    drawing.text(WORD, 14, f"bars: {what}", anchor="start", bold=True)
    for x, words in ((SUM, "attention"), (PULL, "MLP")):
        drawing.text(x, 38, words, bold=True)
    for x, words, anchor in ((WORD, "the lens says", "start"), (SHARE, "its share", "start"), (796, final, "end")):
        drawing.text(x, 38, words, anchor=anchor, bold=True)
    largest = max(*map(abs, attention), *(abs(line[-1]) for line in parts), 1e-9)
    for k, ((said, share), rank) in enumerate(zip(lens, ranks, strict=True)):
        y = 56 + ROW * k
        drawing.text(92, y + ROW / 2, f"block {k - 1}" if k else "embedding", anchor="end", size=13.5)
        if k:
            *heads, mlp = parts[k - 1]
            most = sorted(range(len(heads)), key=lambda h: -abs(heads[h]))[:3]
            words = ", ".join(f"head {h} {heads[h]:+.2f}" for h in most)
            hover = f"block {k - 1}, attention: {attention[k - 1]:+.2f}; most: {words}"
            draw_bar(drawing, SUM, y, attention[k - 1], largest, hover)
            draw_bar(drawing, PULL, y, mlp, largest, f"block {k - 1}, MLP: {mlp:+.2f}")
        colour = COLOURS["green"] if rank == 0 else COLOURS["black"]
        drawing.text(WORD, y + ROW / 2, said, anchor="start", size=13.5, bold=rank == 0, colour=colour)
        drawing.rect(SHARE, y + 2, 130, ROW - 4, fill="#EEEEEE")
        drawing.rect(SHARE, y + 2, max(130 * share, 0.5), ROW - 4, fill=COLOURS["green" if rank == 0 else "sky"],
                     hover=f"{said}: {share:.3f}")  # fmt: skip
        drawing.text(SHARE + 138, y + ROW / 2, f"{share:.2f}", anchor="start", size=13.5)
        drawing.text(796, y + ROW / 2, f"{rank + 1:,}", anchor="end", size=13.5)
    return drawing


def draw_bar(drawing: Drawing, middle: float, y: float, value: float, largest: float, hover: str) -> None:
    """A bar from a middle line, to the right where positive."""
    reach = 62 * abs(value) / largest
    drawing.rect(middle - 64, y + 2, 128, ROW - 4, fill="#F4F4F4", hover=hover)
    left = middle if value >= 0 else middle - reach
    drawing.rect(left, y + 2, max(reach, 0.5), ROW - 4, fill=COLOURS["red"] if value >= 0 else COLOURS["blue"],
                 hover=hover)  # fmt: skip
    drawing.line(middle, y, middle, y + ROW, COLOURS["grey"], 1)

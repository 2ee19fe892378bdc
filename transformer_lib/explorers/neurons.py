"""Two looks into the toy's MLPs: what one neuron answers to and promotes, and what silencing neurons costs."""

import functools

import ipywidgets as widgets
import torch

from transformer_lib.explorers.base import HtmlExplorer, clip_text
from transformer_lib.explorers.drawing import Drawing, colour_at
from transformer_lib.losses import token_losses
from transformer_lib.neurons import Moments, promoted
from transformer_lib.plots.style import COLOURS, DIVERGING
from transformer_lib.plots.tokens import readable
from transformer_lib.recording import edit, record

LONGEST = 24  # tokens of the learner's sentence that are drawn
SHOWN = 8  # moments, and promoted tokens
BEFORE = 3  # tokens of context
PROMOTED = 50  # a neuron "promotes" so many tokens, in the summary
MOST = 12.0  # nats at the end of the bars


def neuron_browser(model, tokenizer, found: Moments, text: str) -> HtmlExplorer:
    """One neuron of any layer: the moments of `found` that excite it, the next tokens it promotes, the typed text."""
    layers = range(model.cfg.n_layers)
    order = [found.loudness(model, i).argsort(descending=True) for i in layers]
    raised = [promoted(model, i) for i in layers]
    words = functools.cache(lambda i: readable(tokenizer.decode([i]) or "∅"))

    @functools.lru_cache(maxsize=1)
    def look(typed: str):
        with torch.no_grad(), record(model) as seen:
            model(torch.tensor([tokenizer.encode(typed)[:LONGEST]]))
        pieces = tokenizer.pieces(typed)
        return pieces[:LONGEST], [seen[f"blocks.{i}.mlp.hidden"][0] for i in layers], cut_note(len(pieces))

    def draw(sentence, layer, rank, sign):
        typed, note = clip_text(sentence, instead=text)
        tokens, hidden, cut = look(typed)
        neuron, side = int(order[layer][rank - 1]), 1 if sign == "positive" else -1
        moments = distinct(found, layer, neuron, side)
        effect = side * raised[layer][:, neuron]  # (V,)
        best = effect.topk(PROMOTED)
        follows = [int(found.following[n]) in best.indices.tolist() for _, n in moments]
        mine = hidden[layer][:, neuron]  # (T,)
        drawing = Drawing(800, 0)  # as high as the sentence makes it
        draw_moments(drawing, found, moments, follows, words)
        draw_promoted(drawing, [words(int(i)) for i in best.indices[:SHOWN]], best.values[:SHOWN].tolist())
        drawing.height = draw_sentence(drawing, tokens, mine.tolist(), largest(moments, mine))
        peak = int(mine.abs().argmax())
        summary = (
            f"Layer {layer}, neuron {neuron}, number {rank} of {len(order[layer])} by loudness, {sign} side: it "
            f"promotes {', '.join(words(int(i)) for i in best.indices[:3])}. At {sum(follows)} of these "
            f"{len(moments)} moments the next token is among the {PROMOTED} it promotes most. On your text it is "
            f"strongest at {readable(tokens[peak])} ({float(mine[peak]):.1f}).{note or cut}"
        )
        return drawing, summary.replace("(-", "(−")

    controls = {
        "sentence": widgets.Text(text, description="your sentence"),
        "layer": widgets.ToggleButtons(options=layers, value=layers[-1], description="layer"),
        "rank": widgets.IntSlider(1, 1, model.cfg.ff_width, description="neuron, by loudness"),
        "sign": widgets.ToggleButtons(options=("positive", "negative"), description="side"),
    }
    title = "One neuron: what excites it, and what it says comes next"
    return HtmlExplorer(draw, controls, title=title, name="neuron_browser")


def cut_note(n_tokens: int) -> str:
    return f" (only the first {LONGEST} of {n_tokens} tokens are drawn)" if n_tokens > LONGEST else ""


def distinct(found: Moments, layer: int, neuron: int, side: int) -> list[tuple[float, int]]:
    """[(activation, n)]: the strongest moments on that side, each wording once."""
    signed = side * found.hidden[layer, :, neuron]  # (N,)
    seen, chosen = set(), []
    for n in signed.topk(min(300, len(signed))).indices.tolist():
        wording = context(found, n)
        if wording not in seen:
            seen.add(wording)
            chosen.append((side * float(signed[n]), n))
        if len(chosen) == SHOWN:
            break
    return chosen


def context(found: Moments, n: int) -> tuple[str, str]:
    """(the few tokens before, the token itself) of moment n, as one reads them."""
    pieces, at = found.pieces[int(found.row[n])], int(found.at[n])
    return "".join(map(readable, pieces[max(0, at - BEFORE) : at])), readable(pieces[at])


def largest(moments, mine) -> float:
    """The activation that gets the full colour."""
    return max(*(abs(value) for value, _ in moments), float(mine.abs().max()), 1e-6)


def tint(share: float) -> str:
    """From white to red for positive activations, to blue for negative ones; share is between −1 and 1."""
    return colour_at(DIVERGING, 0.5 + 0.27 * share)


def draw_moments(drawing, found, moments, follows, words) -> None:
    """The left half: a line per moment, its token on the neuron's colour, and what came next."""
    drawing.text(8, 16, "key: its strongest moments in fresh stories", anchor="start", bold=True)
    drawing.text(438, 16, "next", bold=True)
    top = max((abs(value) for value, _ in moments), default=1.0) or 1.0
    for line, ((value, n), right) in enumerate(zip(moments, follows, strict=True)):
        y = 46 + 31 * line
        before, token = context(found, n)
        drawing.text(236, y, before[-24:], anchor="end", colour="#444444")
        drawing.rect(242, y - 13, 92, 26, fill=tint(value / top), radius=4, hover=f"activation {value:.2f}")
        drawing.text(288, y, token, bold=True)
        drawing.text(394, y, f"{value:.1f}".replace("-", "−"), anchor="end")
        following = words(int(found.following[n]))
        drawing.text(438, y, following, colour=COLOURS["green"] if right else COLOURS["black"], bold=right)


def draw_promoted(drawing, names, logits) -> None:
    """The right half: a bar per promoted token."""
    drawing.text(500, 16, "value: next tokens it promotes", anchor="start", bold=True)
    most = max(*logits, 1e-6)
    for line, (name, logit) in enumerate(zip(names, logits, strict=True)):
        y = 46 + 31 * line
        drawing.text(588, y, name, anchor="end")
        drawing.rect(596, y - 9, max(1.0, 186 * logit / most), 18, fill=COLOURS["green"], radius=3,
                     hover=f"{name}: logit +{logit:.2f} per unit of activation, norm aside")  # fmt: skip


def draw_sentence(drawing, tokens, activations, top) -> float:
    """Below: the learner's tokens in rows, coloured by the activation. Returns where they end."""
    drawing.text(8, 306, "on your sentence", anchor="start", bold=True)
    x, y = 8.0, 322.0
    for token, value in zip(tokens, activations, strict=True):
        name = readable(token)
        width = 9.5 * len(name) + 14
        if x + width > 792:
            x, y = 8.0, y + 29
        drawing.rect(x, y, width, 26, fill=tint(value / top), stroke="#BBBBBB", radius=4, hover=f"{name}: {value:.2f}")
        drawing.text(x + width / 2, y + 13, name)
        x += width + 4
    return y + 34


def silence(columns: torch.Tensor):
    """An edit of "….mlp.hidden", (B, T, d_ff): these neurons write nothing."""

    def change(hidden):
        hidden[..., columns] = 0
        return hidden

    return change


def knock_out(model, tokenizer, found: Moments, text: str) -> HtmlExplorer:
    """Silence neurons of one MLP and see the loss of each token of the learner's text, and what the model would say."""
    layers, d_ff = range(model.cfg.n_layers), model.cfg.ff_width
    order = [found.loudness(model, i).argsort(descending=True) for i in layers]
    steps = [k for k in (0, 1, 2, 4, 8, 16, 32, 64, 128, 256) if k < d_ff] + [d_ff]
    words = functools.cache(lambda i: readable(tokenizer.decode([i]) or "∅"))

    def run(ids, changes):
        """Losses (T − 1,) of the tokens after the first, and the model's best guesses for them."""
        with torch.no_grad(), edit(model, changes):
            logits = model(ids)[0, :-1]  # (T - 1, V)
        return token_losses(logits, ids[0, 1:]).tolist(), logits.argmax(dim=-1).tolist()

    def draw(sentence, layer, count, first):
        typed, note = clip_text(sentence, instead=text)
        full = tokenizer.encode(typed)
        ids = torch.tensor([[*tokenizer.encode("\n"), *full[:LONGEST]]])  # (1, T)
        chosen = order[layer][:count] if first == "loudest" else order[layer][d_ff - count :]
        before, guess = run(ids, {})
        after, guess_after = run(ids, {f"blocks.{layer}.mlp.hidden": silence(chosen)})
        tokens = [words(i) for i in ids[0, 1:].tolist()]
        drawing = Drawing(800, 40 + 21 * len(tokens))
        for x, title, anchor in ((118, "token", "end"), (130, "loss in nats: whole (grey), silenced (red)", "start"),
                                 (578, "guess", "start"), (682, "silenced", "start")):  # fmt: skip
            drawing.text(x, 14, title, anchor=anchor, bold=True)
        for line, (token, *rest) in enumerate(zip(tokens, before, after, guess, guess_after, strict=True)):
            draw_token(drawing, 40 + 21 * line, token, *rest[:2], *(words(g) for g in rest[2:]))
        jump = [b - a for a, b in zip(before, after, strict=True)]
        worst = jump.index(max(jump))
        summary = (
            f"Layer {layer}: {count} of {d_ff} neurons silenced, {first} first. Mean loss on this text "
            f"{mean(before):.2f} → {mean(after):.2f} nats per token; changed most: {tokens[worst]} "
            f"({before[worst]:.2f} → {after[worst]:.2f}).{note or cut_note(len(full))}"
        )
        return drawing, summary

    controls = {
        "sentence": widgets.Text(text, description="your sentence"),
        "layer": widgets.ToggleButtons(options=layers, value=layers[-1], description="layer"),
        "count": widgets.SelectionSlider(options=steps, value=d_ff, description="neurons silenced"),
        "first": widgets.ToggleButtons(options=("loudest", "quietest"), description="first the"),
    }
    return HtmlExplorer(draw, controls, title="What does the model lose without them?", name="knock_out")


def mean(numbers) -> float:
    return sum(numbers) / len(numbers)


def draw_token(drawing, y, token, before, after, guess, guess_after) -> None:
    """One row: the loss before and after as two bars, the best guess before and after; green where it is right."""
    drawing.text(118, y, token, anchor="end")
    for value, dy, colour in ((before, -8, "#9A9A9A"), (after, 0, COLOURS["red"])):
        drawing.rect(130, y + dy, max(1.0, 430 * min(value, MOST) / MOST), 8, fill=colour,
                     hover=f"{token}: {before:.3f} whole, {after:.3f} silenced")  # fmt: skip
    for x, word in ((578, guess), (682, guess_after)):
        right = word == token
        drawing.text(x, y, word, anchor="start", colour=COLOURS["green"] if right else COLOURS["black"], bold=right)

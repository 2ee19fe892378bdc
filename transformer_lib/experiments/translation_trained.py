"""Lesson 08: does the model of 2017 learn to translate, and does its cross-attention find the right words?"""

from __future__ import annotations

from dataclasses import replace

from transformer_lib import translation
from transformer_lib.experiments.stories import curve
from transformer_lib.training import train

TITLE = "The encoder-decoder of 2017 on a small language with known alignments"
VARIANTS = ("2017",)
SECONDS = 40
N_HELD_OUT = 500


def recipe(variant: str, steps: int | None) -> str:
    return f"{translation.MODEL} {training(steps)}"


def training(steps: int | None):
    return translation.TRAINING if steps is None else replace(translation.TRAINING, steps=steps)


def run(variant: str, seed: int, steps: int | None) -> dict:
    model = translation.new_translator(seed)
    held_out = translation.draw_pairs(N_HELD_OUT, seed=1, held_out=True)
    before = translation.alignment_scores(model.eval(), held_out)  # (L, H)
    config = replace(training(steps), seed=seed)
    history = train(
        model, translation.translation_batches, config, loss_fn=translation.translation_loss, progress=False
    )
    scores = translation.alignment_scores(model.eval(), held_out)  # (L, H)
    return {
        "accuracy": translation.accuracy(model, held_out),
        "alignment_best_head": float(scores.max()),
        "alignment_mean": float(scores.mean()),
        "alignment_untrained": float(before.max()),
        "alignment_chance": translation.chance_alignment(held_out),
        "alignment_heads": scores.tolist(),
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "steps": history.step,
        "seconds": round(history.seconds, 1),
        "curve": curve(history),
    }

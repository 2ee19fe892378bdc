"""`python -m transformer_lib COMMAND`: train, generate, count, claims, bench, doctor. Each has its own --help."""

from __future__ import annotations

import argparse
import os
import sys

from transformer_lib.values import printable, shown


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit status: 0, 1 for what cannot be done, 2 for wrong options, 130 for Ctrl-C."""
    if hasattr(sys.stdout, "reconfigure"):  # a terminal that cannot write a letter gets its number, not a traceback
        sys.stdout.reconfigure(errors="backslashreplace")
    options = parser().parse_args(arguments)
    try:
        return options.run(options)
    except KeyboardInterrupt as stop:
        print(f"\n{stop}" if str(stop) else "\nStopped.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever read our output has had enough
        sys.stderr.close()
        return 1
    except (ValueError, TypeError, OSError, FloatingPointError, LookupError, MemoryError, RuntimeError) as error:
        print(printable(sentence(error)), file=sys.stderr)
        return 1


def sentence(error: Exception) -> str:
    """What a user is told about an error; a bug (whatever is no ordinary bad input) is raised again, to be seen."""
    text = str(error)
    if isinstance(error, MemoryError) or ("alloc" in text and "memory" in text) or "out of memory" in text:
        return "Out of memory: take a smaller model, --batch-size or --context, or end other programs."
    if type(error) is RuntimeError or not text:
        raise error
    if isinstance(error, OSError) and error.strerror:
        return f"{shown(error.filename)} cannot be read or written ({error.strerror})."
    return str(error.args[0]) if isinstance(error, LookupError) else text


class Parser(argparse.ArgumentParser):
    """Says what is wrong with an option on one line, whatever letters were typed."""

    def error(self, message: str):
        super().error(printable(message))


def parser() -> argparse.ArgumentParser:
    """All options of all commands."""
    top = Parser(
        prog="python -m transformer_lib", description="Train small Transformers, generate text, count parameters."
    )
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    add_train(commands.add_parser("train", help="train the toy on stories, or a model on a text of yours"))
    add_generate(commands.add_parser("generate", help="continue a prompt"))
    add_count(commands.add_parser("count", help="print the parameter table of a model"))
    add_experiments(commands.add_parser("experiments", help="train what the notebooks compare"))
    add_claims(commands.add_parser("claims", help="list every number that the notebooks state"))
    add_bench(commands.add_parser("bench", help="measure how fast this is, beside other libraries and the machine"))
    commands.add_parser("doctor", help="say what this machine has and what is missing").set_defaults(run=run_doctor)
    return top


def add_train(command: argparse.ArgumentParser) -> None:
    command.description = "Train the course's toy on its stories; with --text, a small model on any UTF-8 text."
    command.add_argument("--text", metavar="FILE", help="a text of yours, UTF-8, of 1,000 characters or more")
    command.add_argument("--out", metavar="FOLDER", help="where checkpoints go; an interrupted run goes on from there")
    for name, kind, text in (
        ("steps", int, "updates of the weights"),
        ("batch-size", int, "sequences per step"),
        ("context", int, "tokens per sequence"),
        ("learning-rate", float, "its largest value"),
        ("vocabulary", int, "pieces to learn from the text"),
        ("width", int, "d_model"),
        ("layers", int, "number of blocks"),
        ("heads", int, "attention heads per block"),
        ("seed", int, "of weights and batches"),
        ("threads", int, "of the CPU"),
    ):
        command.add_argument(f"--{name}", type=kind, metavar="X" if kind is float else "N", help=text)
    command.add_argument("--device", help="cpu, cuda or mps (default: a CUDA GPU where there is one)")
    command.add_argument("--precision", help="float32 (default) or bf16: faster for large models and on GPUs")
    command.epilog = (
        "Several processes or GPUs: torchrun --nproc-per-node=N -m transformer_lib train … (N divides --batch-size)."
    )
    command.set_defaults(run=run_train)


def add_generate(command: argparse.ArgumentParser) -> None:
    command.description = "Continue a prompt with the toy (trained first if need be), a run of yours or another model."
    command.add_argument("prompt", nargs="?", default="", help="how the text begins (default: a new story or line)")
    source = command.add_mutually_exclusive_group()
    source.add_argument("--run", dest="folder", metavar="FOLDER", help="a folder that `train` has written")
    source.add_argument("--model", metavar="PATH", help="a Hugging Face folder, a .bin or .gguf file, or smollm2-135m")
    command.add_argument(
        "--max-new-tokens", type=int, metavar="N", help="default: 200, or as many as there is room for"
    )
    command.add_argument("--temperature", type=float, default=0.8, metavar="X", help="0: always the likeliest (0.8)")
    command.add_argument("--top-k", type=int, metavar="N", help="draw from the N likeliest")
    command.add_argument("--top-p", type=float, metavar="X", help="draw from the likeliest that sum to X")
    command.add_argument("--seed", type=int, metavar="N", help="the same draws every time")
    command.add_argument(
        "--chat", action="store_true", help="the prompt is a question; print the answer (smollm2-135m)"
    )
    command.set_defaults(run=run_generate)


def add_count(command: argparse.ArgumentParser) -> None:
    command.add_argument("preset", help="llama2-7b, gpt2-small, paper-base, smollm2-135m or toy")
    command.add_argument("changes", nargs="*", metavar="FIELD=VALUE", help="for example n_layers=4 tie_embeddings=true")
    training = command.add_argument_group("what training it takes", "with --training, instead of the table")
    training.add_argument("--training", action="store_true", help="FLOPs, memory per device, tokens per day")
    training.add_argument("--tokens", type=float, default=2e12, metavar="N", help="to train on (2e12, as Llama 2)")
    training.add_argument("--devices", type=int, default=1, metavar="N", help="that share each batch (1)")
    training.add_argument("--flops", type=float, metavar="X", help="per second and device (default: measured here)")
    training.add_argument("--batch-size", type=int, default=1, metavar="N", help="sequences per device (1)")
    command.set_defaults(run=run_count)


def add_experiments(command: argparse.ArgumentParser) -> None:
    command.description = "Train what the notebooks compare; what is done is kept, and is not done again."
    command.add_argument("--only", nargs="+", metavar="NAME", help="some of the experiments (--list names them)")
    command.add_argument("--seeds", type=int, default=3, metavar="N", help="runs of every variant (3)")
    command.add_argument("--workers", type=int, metavar="N", help="runs at a time (default: one per CPU core)")
    command.add_argument("--steps", type=int, metavar="N", help="shorter runs, to try it out; needs --out")
    command.add_argument("--out", metavar="FILE", help="default: figures/experiments.json")
    command.add_argument("--list", action="store_true", help="say what there is, how long it takes, what is done")
    command.set_defaults(run=run_experiments)


def add_claims(command: argparse.ArgumentParser) -> None:
    command.add_argument("--recompute", action="store_true", help="run every notebook and compare anew")
    command.add_argument("--notebooks", default=None, metavar="FOLDER", help="where the notebooks are")
    command.set_defaults(run=run_claims)


def add_bench(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Measure speed. All that is compared takes turns, so that whatever else the machine does falls on all alike; "
        "the table gives medians, their spread from the slowest to the fastest round, and ratios: how many times "
        "faster the library is than what the row names, unless the row says otherwise. A bar is what the course asks "
        "for. Leave the machine alone meanwhile; where that cannot be, --clock cpu counts the process's own seconds."
    )
    command.add_argument("sections", nargs="*", metavar="SECTION", help="train profile decode prefill batch tokenizer "
                         "start threads explorers keys (default: all; the last three take minutes)")  # fmt: skip
    command.add_argument("--quick", action="store_true", help="small sizes only, about two minutes: to try it out")
    command.add_argument("--rounds", type=int, default=5, metavar="N", help="turns that everything gets (5)")
    command.add_argument("--threads", type=int, metavar="N", help="of the CPU, for all alike (default: all cores)")
    command.add_argument(
        "--clock", choices=("wall", "cpu"), default="wall", help="wall (default), or cpu with 1 thread"
    )
    command.add_argument("--notebooks", nargs="+", metavar="NN", help="whose explorers (default: of all notebooks)")
    command.add_argument("--out", default="bench.json", metavar="FILE", help="the figures as JSON (bench.json)")
    command.set_defaults(run=run_bench)


def run_train(options) -> int:
    from transformer_lib.cli.train import run

    return run(options)


def run_generate(options) -> int:
    from transformer_lib.cli.generate import run

    return run(options)


def run_count(options) -> int:
    from transformer_lib.cli.count import run

    return run(options)


def run_experiments(options) -> int:
    from transformer_lib.cli.experiments import run

    return run(options)


def run_claims(options) -> int:
    from pathlib import Path

    from transformer_lib.lessons.claims import ClaimError, collect, table

    folder = options.notebooks or Path(__file__).resolve().parent.parent / "notebooks"
    try:
        print(table(collect(folder, recompute=options.recompute)))
    except ClaimError as wrong:
        raise ValueError(str(wrong)) from None
    return 0


def run_bench(options) -> int:
    from transformer_lib.cli.bench import run

    return run(options)


def run_doctor(options) -> int:
    from transformer_lib.doctor import main

    return main()


if __name__ == "__main__":
    status = main()
    if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun has started this process
        from transformer_lib.distributed import leave

        leave(status)
    sys.exit(status)

"""The commands of `python -m transformer_lib`: each module adds its options, and runs when it is chosen.

A module has a function `run(arguments) -> exit status` and imports what it needs inside it, so that `--help` does not
wait for torch.
"""

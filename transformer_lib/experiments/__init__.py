"""The trained comparisons that are too long for a notebook: `python -m transformer_lib experiments`.

A module per experiment; each has

    TITLE                      one line: the question
    VARIANTS                   the names of what is compared
    SECONDS                    about how long one run takes on one CPU core
    recipe(variant, steps)     everything that decides the result, as text; steps=None: as many as it was made for
    run(variant, seed, steps)  trains once; returns a dict of numbers, texts and lists: what is stored

`runner.py` makes the runs and stores each as soon as it is done; `results.py` reads them, with mean and spread over
seeds.
"""

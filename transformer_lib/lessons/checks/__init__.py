"""The exercises, one module per notebook (`attention_02.py`, …), each with a list `EXERCISES`."""

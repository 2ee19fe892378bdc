"""How fast the library is: beside what people would use instead, and beside what this machine can do.

timing      runs in turns, medians with their spread, ratios
report      rows, the table, the JSON file
models      the sizes S, M and L, the same models in other libraries
ceilings    what the machine can do: matrix products of a model's own shapes, reading memory
training, decode, prefill, batch, text, start, threads, explorers     one section each
"""

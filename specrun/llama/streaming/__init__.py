"""Weights that do not fit into RAM, read by specrun while llama.cpp computes, instead of by page faults (Linux).

Streamed layers take turns in a few slots of memory, which stand in place of their pages in llama.cpp's mapping of the
file. Threads fill the slots; llama.cpp's eval callback holds a pass until the next layer is there (docs/streaming.md).
"""

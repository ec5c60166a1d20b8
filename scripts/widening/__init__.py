"""The parts of `scripts/widen_gguf.py`: sources, sizes, and what the wider model is and computes."""

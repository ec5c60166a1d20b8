"""The parts of `scripts/widen_gguf.py`: what can be widened, what the wider model is, and whether it computes the same."""

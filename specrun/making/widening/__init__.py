"""The parts that widen a GGUF model without changing what it computes (docs/widening.md)."""

"""Models that are made wider and deeper without changing what they compute, and heads for them (docs/widening.md)."""

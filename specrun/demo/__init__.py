"""`specrun demo`: the embedded pair at the cost of a real one, and the same text written plainly and with `auto`."""

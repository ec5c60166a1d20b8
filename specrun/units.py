"""Numbers as people read them."""

from __future__ import annotations


def rate_text(tokens_per_second: float) -> str:
    """Tokens per second with about three digits: `6.26`, `30.1`, `1206`."""
    return f"{tokens_per_second:.{2 if tokens_per_second < 10 else 1 if tokens_per_second < 1000 else 0}f}"


def size_text(n_bytes: float) -> str:
    """A size in decimal units, which the hub and disk vendors use: `8.99 GB`, `676 MB`, `12 kB`."""
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if n_bytes >= factor:
            value = n_bytes / factor
            return f"{value:.2f} {unit}" if unit == "GB" and value < 100 else f"{value:.0f} {unit}"
    return f"{n_bytes:.0f} bytes"

"""GBNF expressions for the integers between two bounds."""

from __future__ import annotations

from collections.abc import Iterator

MAX_DIGITS = 15  # integers of so many digits are exact in float64, which many JSON readers use
_LARGEST = 10**MAX_DIGITS - 1


def integer_between(low: int | None, high: int | None) -> str | None:
    """A GBNF expression for the JSON integers from `low` to `high`, or None if there is no such integer.

    A bound of None, or beyond 15 digits, means the smallest or largest integer with 15 digits.
    """
    low = -_LARGEST if low is None else max(low, -_LARGEST)
    high = _LARGEST if high is None else min(high, _LARGEST)
    alternatives = []
    if low < 0 and low <= high:
        alternatives.append(f'"-" ({" | ".join(_naturals(max(1, -high), -low))})')
    if high >= 0 and low <= high:
        alternatives += _naturals(max(low, 0), high)
    return " | ".join(alternatives) or None


def _naturals(low: int, high: int) -> Iterator[str]:
    """GBNF alternatives for the integers n with 0 <= low <= n <= high, one for each number of digits."""
    for n_digits in range(len(str(low)), len(str(high)) + 1):
        smallest = 10 ** (n_digits - 1) if n_digits > 1 else 0
        yield _same_length(str(max(low, smallest)), str(min(high, 10**n_digits - 1)))


def _same_length(low: str, high: str) -> str:
    """A GBNF expression for the digit strings from `low` to `high`, which have the same length."""
    if low == high:
        return f'"{low}"'
    first, last, rest = int(low[0]), int(high[0]), len(low) - 1
    if first == last:
        return f'"{first}" ({_same_length(low[1:], high[1:])})'
    alternatives = []
    if low[1:] != "0" * rest:
        alternatives.append(f'"{first}" ({_same_length(low[1:], "9" * rest)})')
        first += 1
    if high[1:] != "9" * rest:
        alternatives.append(f'"{last}" ({_same_length("0" * rest, high[1:])})')
        last -= 1
    if first <= last:
        alternatives.append(f"[{first}-{last}]" + (f" [0-9]{{{rest}}}" if rest else ""))
    return " | ".join(alternatives)

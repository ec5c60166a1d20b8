"""Sets of characters, as ranges of code points, and how a grammar writes one of them in a JSON string."""

from __future__ import annotations

from collections.abc import Iterable

Ranges = tuple[tuple[int, int], ...]  # code points from and to, in order, without overlaps

EVERY: Ranges = ((0, 0xD7FF), (0xE000, 0x10FFFF))  # all characters; surrogates are halves of some
_ESCAPED = {0x22: '"', 0x5C: "\\\\", 8: "b", 9: "t", 10: "n", 12: "f", 13: "r"}  # as JSON escapes them
_NOT_PLAIN: Ranges = ((0, 0x1F), (0x22, 0x22), (0x5C, 0x5C), (0x7F, 0x7F))


def union(*parts: Iterable[tuple[int, int]]) -> Ranges:
    """All characters of the parts."""
    result: list[tuple[int, int]] = []
    for first, last in sorted(each for part in parts for each in part):
        if result and first <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(last, result[-1][1]))
        else:
            result.append((first, last))
    return tuple(result)


def without(ranges: Iterable[tuple[int, int]], taken: Iterable[tuple[int, int]]) -> Ranges:
    """The characters of `ranges` that are not in `taken`."""
    result = list(ranges)
    for first, last in taken:
        rest = [((a, min(b, first - 1)), (max(a, last + 1), b)) for a, b in result]
        result = [(a, b) for both in rest for a, b in both if a <= b]
    return tuple(result)


def json_characters(ranges: Ranges) -> str:
    """A GBNF expression for one of these characters in a JSON string. Rare control characters are only there alone."""
    if ranges == EVERY:
        return "char"
    plain = without(ranges, _NOT_PLAIN)
    letters = "".join(letter for code, letter in _ESCAPED.items() if any(a <= code <= b for a, b in ranges))
    parts = [f"[{''.join(_class_part(first, last) for first, last in plain)}]"] if plain else []
    parts += [f'"\\\\" [{letters}]'] if letters else []
    if not parts:
        parts = [f'"\\\\u{code:04x}"' for first, last in ranges for code in range(first, last + 1)]
    return parts[0] if plain and len(parts) == 1 else f"({' | '.join(parts)})"


def _class_part(first: int, last: int) -> str:
    return _in_class(first) if first == last else f"{_in_class(first)}-{_in_class(last)}"


def _in_class(code: int) -> str:
    if code < 0x80:
        return chr(code) if chr(code).isalnum() else f"\\x{code:02X}"
    return f"\\u{code:04X}" if code < 0x10000 else f"\\U{code:08X}"

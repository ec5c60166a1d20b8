"""Bounds of a grammar, checked before llama.cpp reads it, whose parser takes all memory or crashes beyond them."""

from __future__ import annotations

import re
from itertools import accumulate

from specrun.errors import UsageError

_MOST_NESTED, _MOST_RULES = 1000, 10_000  # llama.cpp's parser recurses and would overflow the stack far beyond these
_LONGEST_NUMBER = 19  # digits that surely fit the 64 bits of llama.cpp's parser
# Literals, classes of characters, names of tokens and comments, in which no sign means anything to the parser.
_PLAIN = re.compile(r'"(?:\\.|[^"\\])*"?|\[(?:\\.|[^\]\\])*\]?|<[^>]*>?|#[^\r\n]*', re.DOTALL)
_REPETITION = re.compile(r"\{\s*([0-9]+)\s*(?:,\s*([0-9]+)\s*)?\}")
_NO_BREAK = re.compile(r"[^\n]")


def check_bounds(gbnf: str) -> None:
    """Raise UsageError for a grammar with too many groups in each other or rules, or impossible repetitions."""
    signs = _PLAIN.sub(lambda plain: _NO_BREAK.sub(" ", plain[0]), gbnf)
    deepest = max(accumulate((char == "(") - (char == ")") for char in signs), default=0)
    if deepest > _MOST_NESTED or signs.count("::=") > _MOST_RULES:
        raise UsageError(f"the grammar has more than {_MOST_NESTED} groups in each other, or {_MOST_RULES} rules")
    for found in _REPETITION.finditer(signs):
        least, most = found[1], found[2] or found[1]
        line = gbnf[: found.start()].count("\n") + 1
        if max(len(least), len(most)) > _LONGEST_NUMBER:
            raise UsageError(f"the grammar asks for more repetitions than llama.cpp can count (line {line})")
        if int(least) > int(most):  # llama.cpp would make rules without end
            asked = f"at least {int(least)} and at most {int(most)} repetitions"
            raise UsageError(f"the grammar asks for {asked} (line {line}); swap the numbers")

"""What a grammar may ask for is told by its structure, whatever its literals, classes, names and comments hold."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specrun.constraints.rules import check_bounds
from specrun.errors import UsageError
from specrun.llama.grammar import check_grammar

# Characters that mean something to the parser, in places where they mean nothing.
SIGNS = st.text(st.sampled_from('(){},0123456789 "[]<>#:=\\\n'), max_size=12)


@pytest.mark.slow
@given(SIGNS, SIGNS, SIGNS, st.integers(0, 30), st.one_of(st.none(), st.integers(0, 30)))
def test_only_repetitions_that_end_below_their_beginning_are_refused(
    literal: str, members: str, comment: str, least: int, most: int | None
) -> None:
    def escaped(text: str, *ends: str) -> str:
        for sign in ("\\", *ends):
            text = text.replace(sign, f"\\{sign}")
        return text

    comment = comment.replace("\n", " ")
    amount = f"{{ {least} }}" if most is None else f"{{{least}, {most}}}"
    inner = f'"{escaped(literal, chr(34))}" [x{escaped(members, "[", "]")}] # {comment}\n ("a"){amount}'
    gbnf = f"root ::= ({inner})"
    if most is not None and most < least:
        with pytest.raises(UsageError, match=f"at least {least} and at most {most} repetitions"):
            check_grammar(gbnf)
    else:
        assert check_grammar(gbnf) == gbnf


@given(st.text(st.sampled_from('(){},019 "[]<>#:=\\\n*+?|a'), max_size=60))
def test_any_text_is_looked_at(text: str) -> None:
    with suppress(UsageError):
        check_bounds(text)


@pytest.mark.parametrize("sign", ['"', "[", "<", "#", "{", "(", "\\", '"\\', "{ ", "{1", "[\\"])
def test_a_long_text_is_looked_at_in_one_go(sign: str) -> None:
    """Quadratic time would be minutes."""
    text = sign * 100_000
    if sign == "(":
        with pytest.raises(UsageError, match="groups in each other"):
            check_bounds(text)
    else:
        check_bounds(text)


@pytest.mark.parametrize("members", ["z-a", "^z-a", "a-z9-0", r"\x41-\x40", r"\]-\[", "\u00e9-a"])
def test_a_range_without_a_character_is_refused_with_its_line(members: str) -> None:
    with pytest.raises(UsageError, match=r"range .* \(line 2\); swap its ends"):
        check_bounds(f'root ::= "[z-a]" # [z-a]\n  [{members}]')


@pytest.mark.parametrize("members", ["a-z", "a-", "-a", "^-a", "a-a", r"\[-\]", r"\t-\n", "z-", "a-z-"])
def test_other_classes_are_taken(members: str) -> None:
    check_bounds(f"root ::= [{members}]")

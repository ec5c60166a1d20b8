"""Numbers between bounds, and multiples, as regular languages of their digits."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

from specrun.constraints.patterns import pattern_language
from specrun.constraints.regular import Languages

MAX_DIGITS = 15  # numbers of so many digits are told apart by float64, which many JSON readers use
_GRID = Decimal(1).scaleb(-MAX_DIGITS)  # all numbers are multiples of it
_BEYOND = Decimal(10) ** (MAX_DIGITS + 1)  # no number that is written is as large
_INTEGER = f"0|[1-9][0-9]{{0,{MAX_DIGITS - 1}}}"
# Of 15 digits together, most before the point or most behind it.
_DECIMAL = (
    rf"0(?:\.[0-9]{{1,{MAX_DIGITS}}})?|[1-9][0-9]{{0,3}}(?:\.[0-9]{{1,11}})?"
    r"|[1-9][0-9]{4,8}(?:\.[0-9]{1,6})?|[1-9][0-9]{9,14}"
)

_FRACTION = r"(?:\.[0-9]+)?"

Bound = tuple[Decimal, bool]  # and whether the bound itself is left out


def numbers_between(languages: Languages, is_integer: bool, low: Bound | None, high: Bound | None) -> int:
    """The JSON numbers of up to 15 digits, without exponents, from `low` to `high`; None is no bound."""
    unsigned = _language(languages, _INTEGER if is_integer else _DECIMAL)
    plus = minus = unsigned
    zero: Bound = (Decimal(0), True)
    if low is not None:
        number, is_open = _on_grid(low, ROUND_CEILING)
        if number >= 0:
            plus, minus = languages.all_of([plus, _at_least(languages, (number, is_open))]), languages.nothing
        else:
            minus = languages.all_of([minus, _at_most(languages, (-number, is_open))])
    if high is not None:
        number, is_open = _on_grid(high, ROUND_FLOOR)
        if number < 0:
            plus, minus = languages.nothing, languages.all_of([minus, _at_least(languages, (-number, is_open))])
        else:
            plus = languages.all_of([plus, _at_most(languages, (number, is_open))])
    below_zero = languages.all_of([minus, _at_least(languages, zero)])  # no -0
    return languages.any_of([plus, languages.sequence([languages.literal("-"), below_zero])])


def multiples_of(languages: Languages, divisor: Decimal) -> int | None:
    """JSON numbers that are multiples of an integer or of a power of ten; None for other divisors."""
    sign, digits, exponent = divisor.normalize().as_tuple()
    assert isinstance(exponent, int)
    if sign or not any(digits) or len(digits) + abs(exponent) > MAX_DIGITS:
        return None
    if exponent < 0:
        fraction = rf"^-?[0-9]+(?:\.[0-9]{{1,{-exponent}}})?$"
        return pattern_language(languages, fraction) if digits == (1,) else None
    zeros = languages.literal("0" * exponent)
    whole = languages.multiples(int("".join(map(str, digits))))
    nonzero = languages.sequence([languages.times(languages.literal("-"), 0, 1), whole, zeros])
    return languages.any_of([nonzero, languages.literal("0")])


def _on_grid(bound: Bound, rounding: str) -> Bound:
    """The same bound for all numbers that are written, with no more digits than they have behind the point."""
    number = max(min(bound[0], _BEYOND), -_BEYOND).quantize(_GRID, rounding, Context(prec=1000))
    return number, bound[1] and number == bound[0]


def _language(languages: Languages, expression: str) -> int:
    return pattern_language(languages, f"^(?:{expression})$")


def _digits(bound: Decimal) -> tuple[str, str]:
    """The digits before and behind the point."""
    whole, _, fraction = f"{bound:f}".partition(".")
    return whole, fraction.rstrip("0")


def _at_least(languages: Languages, bound: Bound) -> int:
    """Digits, perhaps with a fraction, whose number is at least a bound of 0 or more."""
    (whole, fraction), is_open = _digits(bound[0]), bound[1]
    longer = f"[1-9][0-9]{{{len(whole)},}}{_FRACTION}"
    if fraction:
        from_here = rf"{whole}\.{fraction}[0-9]*" + ("[1-9][0-9]*" if is_open else "")
    else:
        from_here = rf"{whole}\.[0-9]*[1-9][0-9]*" if is_open else whole + _FRACTION
    return _language(languages, "|".join([longer, *_differing(whole, fraction, is_larger=True), from_here]))


def _at_most(languages: Languages, bound: Bound) -> int:
    """Digits, perhaps with a fraction, whose number is at most a bound of 0 or more."""
    (whole, fraction), is_open = _digits(bound[0]), bound[1]
    shorter = [f"[0-9]{{1,{len(whole) - 1}}}{_FRACTION}"] if len(whole) > 1 else []
    cut = [rf"{whole}\.{fraction[:n]}" if n else whole for n in range(len(fraction))]
    up_to_here = [rf"{whole}\.{fraction}0*" if fraction else rf"{whole}(?:\.0+)?"] if not is_open else []
    return _language(
        languages, "|".join([*shorter, *_differing(whole, fraction, is_larger=False), *cut, *up_to_here]) or "(?!)"
    )


def _differing(whole: str, fraction: str, is_larger: bool) -> Iterator[str]:
    """Expressions for the numbers with as many digits before the point, by the first digit that differs."""
    for i, digit in enumerate(whole + fraction):
        first, last = (int(digit) + 1, 9) if is_larger else (0, int(digit) - 1)
        if first > last:
            continue
        n_before = len(whole) - i - 1
        before = whole[:i] if n_before >= 0 else rf"{whole}\.{fraction[: i - len(whole)]}"
        yield f"{before}[{first}-{last}]" + (f"[0-9]{{{n_before}}}{_FRACTION}" if n_before >= 0 else "[0-9]*")

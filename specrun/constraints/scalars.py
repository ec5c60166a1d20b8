"""Strings and numbers of a schema: what restricts them becomes a regular language, which becomes grammar rules.

Formats are regular expressions that allow no more than their standards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from functools import lru_cache
from math import gcd
from typing import Any

from specrun.constraints.keywords import KEYWORDS, refuse, whole
from specrun.constraints.patterns import PatternError, pattern_language
from specrun.constraints.regular import MOST_WORK, Languages, TooManyRules
from specrun.constraints.rules import Rules, counted

_MOST = 1000  # characters or items that a schema may ask for at least; and items that it may allow
_LONGEST_STRING = 1_000_000  # characters that are allowed; a schema that allows more gets no more
_LONGEST_PATTERN = 2000  # characters
# Where patterns, formats and lengths together take too many rules, texts have no more characters than one of these.
_SHORTER = (250, 100)
# An address by its parts: only the count of its last characters makes it long, which llama.cpp does by itself.
_URI_TAIL, _URI_FRAGMENT, _LONGEST_URI = 500, 100, 2000
_LONGEST_WEB = 2083  # pydantic's HttpUrl says so, and does not say that it is one

_Costly = tuple[dict[str, str] | None, int]  # rules by name, none where there is no text, and their work


def string_expression(schema: Mapping[str, Any], at: str, rules: Rules) -> str:
    """A GBNF expression for the strings that a schema allows; what it needs is added to `rules`. Raises UsageError."""
    least, most = lengths(schema, at)
    patterns = schema.get("pattern", [])
    patterns = patterns if isinstance(patterns, list) else [patterns]
    for pattern in patterns:
        if not isinstance(pattern, str):
            refuse(at, "pattern must be a string")
        if len(pattern) > _LONGEST_PATTERN:
            refuse(at, f"pattern has more than {_LONGEST_PATTERN} characters")
    form = schema.get("format")
    form = FORMATS.get(form) if isinstance(form, str) else None
    patterns = [pattern for pattern in patterns if not (form == FORMATS["hostname"] and pattern == ZOD_HOST)]
    if not patterns and not form:
        return rf'"\"" {counted("char", least, most)} "\""' if least or most is not None else "string"
    if not patterns and form == FORMATS["uri"] and least <= len("a://b") and (most is None or most >= _LONGEST_URI):
        return rf'"\"" {_uri_expression(rules, is_web=most == _LONGEST_WEB)} "\""'
    if form == FORMATS["hostname"] and (least or most is not None):
        if most is not None and most >= _LONGEST_HOST and not least:
            most = None
        elif least <= _LONGEST_LABEL:
            form, most = _SHORT_HOSTS, min(_LONGEST_LABEL, _LONGEST_LABEL if most is None else most)
    expressions = (*patterns, *([form] if form else []))
    return rf'"\"" {_regular(rules, at, _string_rules, expressions, least, most)} "\""'


def lengths(schema: Mapping[str, Any], at: str) -> tuple[int, int | None]:
    """The smallest and the largest number of characters of the strings; None for no upper bound. Raises UsageError."""
    return counts(schema, "minLength", "maxLength", at, _LONGEST_STRING)


def number_expression(kind: str, schema: Mapping[str, Any], at: str, rules: Rules) -> str:
    """A GBNF expression for the numbers of a type that a schema allows, with up to 15 digits. Raises UsageError."""
    given: dict[str, Decimal] = {}
    for key in KEYWORDS[kind] & schema.keys():
        if isinstance(schema[key], bool) or not isinstance(schema[key], int | float):
            refuse(at, f"{key} must be a number")
        given[key] = Decimal(repr(schema[key]))
    low = [(given[key], key != "minimum") for key in ("minimum", "exclusiveMinimum") if key in given]
    high = [(given[key], key == "maximum") for key in ("maximum", "exclusiveMaximum") if key in given]
    divisor = given.get("multipleOf")
    if not given:
        return kind
    if divisor is not None and multiples_of(Languages(), divisor) is None:
        refuse(at, f"multipleOf must be more than 0, and have at most {MAX_DIGITS} digits")
    upper = (min(high)[0], not min(high)[1]) if high else None
    return _regular(rules, at, _number_rules, kind == "integer", max(low, default=None), upper, divisor)


def counts(
    schema: Mapping[str, Any], least_key: str, most_key: str, at: str, most_allowed: int = _MOST
) -> tuple[int, int | None]:
    """The smallest and the largest count that a schema allows; None for no upper bound."""
    for key, bound in ((least_key, _MOST), (most_key, None if most_allowed > _MOST else _MOST)):
        count = whole(schema.get(key, 0))
        if isinstance(count, bool) or not isinstance(count, int) or count < 0 or (bound is not None and count > bound):
            refuse(at, f"{key} must be an integer from 0{'' if bound is None else f' to {bound}'}")
    least, most = int(schema.get(least_key, 0)), schema.get(most_key)
    most = None if most is None else min(int(most), most_allowed)
    if most is not None and least > most:
        refuse(at, f"{least_key} is more than {most_key}")
    return least, most


def _regular(rules: Rules, at: str, make: Callable[..., _Costly], *arguments: Any) -> str:
    """Add the rules of a language, once for all places that ask for the same, and return the name of the first one."""
    prefix = f"x{hashlib.sha256(repr((make.__name__, arguments)).encode()).hexdigest()[:12]}-"
    if f"{prefix}0" in rules.named:
        return f"{prefix}0"
    try:
        if sum(rules.work.costs.values()) >= MOST_WORK:
            raise TooManyRules
        made, cost = make(prefix, *arguments)
    except PatternError as error:
        refuse(at, f"pattern {error}")
    except (TooManyRules, RecursionError):
        rules.work.costs[prefix] = MOST_WORK
        refuse(at, "pattern, format and bounds take too many rules; give simpler ones")
    rules.work.costs[prefix] = cost
    if made is None:
        is_number = make is _number_rules
        what = f"number of up to {MAX_DIGITS} digits" if is_number else "text of this length, pattern and format"
        refuse(at, f"no {what} is allowed")
    for name, rule in made.items():
        rules.put(name, rule)
    return f"{prefix}0"


@lru_cache(64)
def _string_rules(prefix: str, expressions: tuple[str, ...], least: int, most: int | None) -> _Costly:
    shorter = [length for length in _SHORTER if (most is None or length < most) and length >= least]
    work = 0
    for length in (most, *shorter):
        languages = Languages(work)
        try:
            parts = [pattern_language(languages, expression) for expression in expressions]
            if least or length is not None:
                parts.append(languages.times(languages.character, least, length))
            return languages.rules(languages.all_of(parts), prefix), languages.work
        except TooManyRules:
            work = languages.work
    raise TooManyRules


@lru_cache(64)
def _number_rules(
    prefix: str, is_integer: bool, low: Bound | None, high: Bound | None, divisor: Decimal | None
) -> _Costly:
    languages = Languages()
    language = numbers_between(languages, is_integer, low, high)
    multiples = None if divisor is None else multiples_of(languages, divisor)
    every = language if multiples is None else languages.all_of([language, multiples])
    return languages.rules(every, prefix), languages.work


def _uri_expression(rules: Rules, is_web: bool) -> str:
    """An expression for addresses of at most 2,000 characters. is_web: whether they begin with http or https."""
    scheme, label, port, other, part = (
        _regular(rules, "#", _string_rules, (f"^(?:{expression})$",), 0, None)
        for expression in ("https?://" if is_web else _URI_SCHEME, _LABEL, _URI_PORT, _URI_WITHOUT_HOST, _URI_CHARACTER)
    )
    tail = f"{part}{{0,{_URI_TAIL}}}"
    host = f'{scheme} {label} ("." {label}){{0,4}} ({port})? ([/?] {tail})?'
    return f'({host}{"" if is_web else f" | {other} {tail}"}) ("#" {part}{{0,{_URI_FRAGMENT}}})?'


MAX_DIGITS = 15  # numbers of so many digits are told apart by float64, which many JSON readers use
_GRID = Decimal(1).scaleb(-MAX_DIGITS)  # all numbers are multiples of it
_BEYOND = Decimal(10) ** (MAX_DIGITS + 1)  # no number that is written is as large
_INTEGER = f"0|[1-9][0-9]{{0,{MAX_DIGITS - 1}}}"
# Of 15 digits together, most before the point or most after it.
_DECIMAL = (
    rf"0(?:\.[0-9]{{1,{MAX_DIGITS}}})?|[1-9][0-9]{{0,3}}(?:\.[0-9]{{1,11}})?"
    r"|[1-9][0-9]{4,8}(?:\.[0-9]{1,6})?|[1-9][0-9]{9,14}"
)

Bound = tuple[Decimal, bool]  # and whether the bound itself is left out


def numbers_between(languages: Languages, is_integer: bool, low: Bound | None, high: Bound | None) -> int:
    """The JSON numbers of up to 15 digits, without exponents, from `low` to `high`; None is no bound."""
    unsigned = pattern_language(languages, f"^(?:{_INTEGER if is_integer else _DECIMAL})$")
    below_zero = languages.all_of([unsigned, _at_least(languages, (Decimal(0), True))])  # no -0
    parts = [languages.any_of([unsigned, languages.sequence([languages.literal("-"), below_zero])])]
    if low is not None:
        parts.append(_at_least(languages, _on_grid(low, ROUND_CEILING)))
    if high is not None:
        number, is_open = _on_grid(high, ROUND_FLOOR)
        parts.append(languages.none_of(_at_least(languages, (number, not is_open))))
    return languages.all_of(parts)


def multiples_of(languages: Languages, divisor: Decimal) -> int | None:
    """JSON numbers that are multiples of a divisor, with as many decimals as it has; None for one of 0 or less, or of
    too many digits.
    """
    sign, digits, exponent = divisor.normalize().as_tuple()
    assert isinstance(exponent, int)
    if sign or not any(digits) or len(digits) + abs(exponent) > MAX_DIGITS:
        return None
    number, sign_text = int("".join(map(str, digits))), languages.times(languages.literal("-"), 0, 1)
    if exponent < 0:
        return languages.sequence([sign_text, languages.any_of(_decimals(languages, number, -exponent))])
    nonzero = languages.sequence([sign_text, languages.multiples(number), languages.literal("0" * exponent)])
    return languages.any_of([nonzero, languages.literal("0")])


def _decimals(languages: Languages, divisor: int, places: int) -> Iterator[int]:
    """The multiples of a divisor that has so many decimals, by the number of decimals that are written.

    divisor: without its point. A text of n decimals, without its point too, then is a multiple of a part of it.
    """
    digit = languages.one_of(((ord("0"), ord("9")),))
    for n in range(places + 1):
        part = divisor // gcd(divisor, 10 ** (places - n))
        if n == 0:
            yield languages.multiples(part)
            continue
        before = {0: languages.times(digit, 1, None)}
        if 10**n % part:  # else all that counts is after the point
            before = {rest: languages.multiples(part, wanted=rest) for rest in range(part)}
        for rest, front in before.items():
            behind = languages.all_of([languages.multiples(part, rest), languages.times(digit, n, n)])
            yield languages.sequence([front, languages.literal("."), behind])


def _on_grid(bound: Bound, rounding: str) -> Bound:
    """The same bound for all numbers that are written, with no more digits than they have after the point."""
    number = max(min(bound[0], _BEYOND), -_BEYOND).quantize(_GRID, rounding, Context(prec=1000))
    return number, bound[1] and number == bound[0]


def _at_least(languages: Languages, bound: Bound) -> int:
    """Digits, perhaps with a fraction or a sign, whose number is at least a bound; and, below 0, texts of no number."""
    if bound[0] < 0:
        smaller = languages.none_of(_at_least(languages, (-bound[0], not bound[1])))
        minus = languages.sequence([languages.literal("-"), smaller])
        return languages.any_of([_at_least(languages, (Decimal(0), False)), minus])
    whole, _, fraction = f"{bound[0]:f}".partition(".")
    fraction, is_open = fraction.rstrip("0"), bound[1]
    found = [f"[1-9][0-9]{{{len(whole)},}}(?:\\.[0-9]+)?"]  # more digits before the point
    for i, digit in enumerate(whole):  # as many, and the first one that differs is larger
        if digit < "9":
            found.append(rf"{whole[:i]}[{int(digit) + 1}-9][0-9]{{{len(whole) - i - 1}}}(?:\.[0-9]+)?")
    for i, digit in enumerate(fraction):
        if digit < "9":
            found.append(rf"{whole}\.{fraction[:i]}[{int(digit) + 1}-9][0-9]*")
    if is_open:
        found.append(rf"{whole}\.{fraction}[0-9]*[1-9][0-9]*")
    else:
        found.append(rf"{whole}\.{fraction}[0-9]*" if fraction else rf"{whole}(?:\.[0-9]+)?")
    return pattern_language(languages, f"^(?:{'|'.join(found)})$")


_LEAP = r"(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DAYS_31, _DAYS_30 = r"(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])", r"(?:0[469]|11)-(?:0[1-9]|[12]\d|30)"
# No year 0000: RFC 3339 has it, Python has not.
_DATE = rf"(?!0000)(?:\d{{4}}-(?:{_DAYS_31}|{_DAYS_30}|02-(?:0[1-9]|1\d|2[0-8]))|{_LEAP}-02-29)"
_HOUR = r"(?:[01]\d|2[0-3])"
_TIME = rf"{_HOUR}:[0-5]\d:[0-5]\d(?:\.\d{{1,6}})?(?:Z|[+-]{_HOUR}:[0-5]\d)"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,29}[A-Za-z0-9])?"  # up to 63 are allowed, of 253 together
_LONGEST_HOST = 4 * 31 + 3  # characters of what follows
_SHORT_LABEL = "[A-Za-z0-9]+(?:-+[A-Za-z0-9]+)*"
_SHORT_HOST = rf"{_SHORT_LABEL}(?:\.{_SHORT_LABEL})*"
_MAIL_NAME = r"[A-Za-z0-9_%+-]+(?:\.[A-Za-z0-9_%+-]+)*"
_MAIL_HOST = r"(?:[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*\.)+[A-Za-z]{2,}"
_BYTE = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_GROUP = "[0-9a-fA-F]{1,4}"
_IPV6 = "|".join(
    [f"(?:{_GROUP}:){{7}}{_GROUP}", f":(?::{_GROUP}){{1,7}}", "::"]
    + [f"(?:{_GROUP}:){{{n}}}(?::{_GROUP}){{1,{7 - n}}}" for n in range(1, 7)]
    + [f"(?:{_GROUP}:){{1,7}}:"]
)
# Addresses: what has a host, and what has none (mailto:, urn:).
_URI_CHARACTER = r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})"
_URI_SCHEME, _URI_PORT = r"[A-Za-z][A-Za-z0-9+.-]{0,20}://", r":[1-9]\d{0,3}"
_URI_WITHOUT_HOST = r"(?!https?:)[A-Za-z][A-Za-z0-9+.-]{0,20}:[A-Za-z0-9]"
_URI = (
    rf"(?:[A-Za-z][A-Za-z0-9+.-]*://{_SHORT_HOST}(?:{_URI_PORT})?(?:[/?]{_URI_CHARACTER}*)?"
    rf"|(?!https?:)[A-Za-z][A-Za-z0-9+.-]*:[A-Za-z0-9]{_URI_CHARACTER}*)(?:#{_URI_CHARACTER}*)?"
)
_SOME = r"\d{1,6}"
_CLOCK = rf"T(?=\d)(?:{_SOME}H)?(?:{_SOME}M)?(?:{_SOME}S)?"
_DURATION = rf"P(?=\d|T\d)(?:{_SOME}W|(?:{_SOME}Y)?(?:{_SOME}M)?(?:{_SOME}D)?(?:{_CLOCK})?)"
_HEX = "[0-9a-fA-F]"


def _uuid(version: str = _HEX, variant: str = _HEX) -> str:
    return f"{_HEX}{{8}}-{_HEX}{{4}}-{version}{_HEX}{{3}}-{variant}{_HEX}{{3}}-{_HEX}{{12}}"


FORMATS = {
    name: f"^(?:{expression})$"
    for name, expression in {
        "date": _DATE,
        "time": _TIME,
        "date-time": f"{_DATE}T{_TIME}",
        "duration": _DURATION,
        "email": f"{_MAIL_NAME}@{_MAIL_HOST}",
        "hostname": rf"{_LABEL}(?:\.{_LABEL}){{0,3}}",
        "ipv4": rf"(?:{_BYTE}\.){{3}}{_BYTE}",
        "ipv6": _IPV6,
        "uri": _URI,
        "uuid": _uuid(),
        # As pydantic names them.
        **{f"uuid{version}": _uuid(str(version), "[89abAB]") for version in range(1, 9)},
    }.items()
}

# Host names that are right as long as they are no longer than one label may be, for which nothing has to be counted.
_LONGEST_LABEL = 63
_SHORT_HOSTS = f"^(?:{_SHORT_HOST})$"
# What Zod writes beside the format. It says nothing more, and to count to 253 as well takes too many rules.
ZOD_HOST = (
    r"^(?=.{1,253}\.?$)[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
    r"(?:\.[a-zA-Z0-9](?:[-0-9a-zA-Z]{0,61}[0-9a-zA-Z])?)*\.?$"
)

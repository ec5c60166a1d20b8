"""Numbers between bounds as digits, by trying all of a few."""

from __future__ import annotations

import random
import re
from decimal import Decimal

import pytest

from specrun.constraints.regular import Languages
from specrun.constraints.scalars import multiples_of, numbers_between
from specrun.llama import LlamaModel
from tests.constraints.test_patterns import is_in
from tests.constraints.walks import check_texts, lets_through

_TEXTS = [f"{Decimal(i).scaleb(-n):f}" for n in range(3) for i in range(-130, 131)]
_TEXTS += ["", "-", "-0", "0.0", "-0.0", "00", "01", "-01", "+1", "1.", ".5", "1e3", "1.000", "-100.00"]
_TEXTS += ["123456789012345", "-123456789012345", "0.000000000000001", "1234.12345678901"]
_TOO_LONG = ["1234567890123456", "0.0000000000000001", "12345.1234567"]
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?")


def _random_bound(rng: random.Random) -> Decimal:
    size = rng.randint(0, 3)
    return Decimal(rng.randint(-(10**size), 10**size)).scaleb(-rng.choice([0, 0, 1, 2, 3]))


def _is_expected(
    text: str, is_integer: bool, low: tuple[Decimal, bool] | None, high: tuple[Decimal, bool] | None
) -> bool:
    if not _NUMBER.fullmatch(text) or text in _TOO_LONG or (is_integer and "." in text):
        return False
    value = Decimal(text)
    above = low is None or (value > low[0] if low[1] else value >= low[0])
    below = high is None or (value < high[0] if high[1] else value <= high[0])
    return above and below and not (text.startswith("-") and value == 0)


def test_numbers_are_those_between_random_bounds() -> None:
    rng = random.Random(1)
    for _ in range(60):
        low, high = ((_random_bound(rng), rng.random() < 0.5) if rng.random() < 0.7 else None for _ in range(2))
        is_integer, languages = rng.random() < 0.4, Languages()
        language = numbers_between(languages, is_integer, low, high)
        for text in _TEXTS + _TOO_LONG:
            expected = _is_expected(text, is_integer, low, high)
            assert is_in(languages, language, text) == expected, (text, is_integer, low, high)


@pytest.mark.parametrize("divisor", ["1", "2", "5", "7", "10", "60", "0.1", "0.01", "0.5", "0.25", "1.5", "0.3", "2.4"])
def test_multiples(divisor: str) -> None:
    languages = Languages()
    language = multiples_of(languages, Decimal(divisor))
    assert language is not None
    for text in _TEXTS:
        if _NUMBER.fullmatch(text) and len(text.partition(".")[2]) <= len(divisor.partition(".")[2]):
            assert is_in(languages, language, text) == (Decimal(text) % Decimal(divisor) == 0), text


@pytest.mark.parametrize("divisor", ["0", "-1", "1e300", "0.1234567890123456"])
def test_other_divisors_are_not_expressed(divisor: str) -> None:
    assert multiples_of(Languages(), Decimal(divisor)) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (
            {"type": "number", "minimum": 0.5, "maximum": 9.75},
            ["0.5", "1", "9.75", "9.7499"],
            ["0.49", "9.751", "10", "-1"],
        ),
        ({"type": "number", "exclusiveMinimum": 0}, ["0.1", "7", "0.000001"], ["0", "0.0", "-1"]),
        ({"type": "number", "maximum": 1e-300}, ["0", "-3.5"], ["0.1", "1"]),
        ({"type": "number", "minimum": -3.4e38, "maximum": 3.4e38}, ["0", "-3.5", "1000000.5"], ["01"]),
        ({"type": "number", "exclusiveMaximum": -2.5}, ["-2.51", "-3"], ["-2.5", "-2", "0", "3"]),
        ({"type": "number", "multipleOf": 0.01, "minimum": 0}, ["0.07", "12", "3.1"], ["0.001", "-1"]),
        ({"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 100}, ["0", "5", "100"], ["3", "105", "5.0"]),
        ({"type": "integer", "minimum": -9007199254740991, "maximum": 9007199254740991}, ["0", "-17"], ["0.5"]),
        ({"type": "integer", "exclusiveMinimum": 1.5, "exclusiveMaximum": 4}, ["2", "3"], ["1", "4"]),
        ({"type": ["number", "null"], "minimum": 0.3}, ["0.3", "null"], ["0.29"]),
        ({"type": "integer", "minimum": 5, "exclusiveMinimum": 5}, ["6"], ["5"]),
    ],
    ids=str,
)
def test_schemas_of_numbers(model: LlamaModel, schema: dict[str, object], good: list[str], bad: list[str]) -> None:
    check_texts(model, schema, 20)
    expected = dict.fromkeys(good, True) | dict.fromkeys(bad, False)
    assert {text: lets_through(model, schema, text) for text in expected} == expected

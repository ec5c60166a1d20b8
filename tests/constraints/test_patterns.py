"""Regular expressions as regular languages: the texts that Python's own search finds something in."""

from __future__ import annotations

import re
from itertools import product

import pytest

from specrun.constraints.patterns import PatternError, pattern_language
from specrun.constraints.regular import Languages, TooManyRules
from specrun.llama import LlamaModel
from tests.constraints.walks import check_texts, lets_through

TEXTS = ["".join(text) for n in range(5) for text in product("abA1_ \n", repeat=n)]
PATTERNS = [
    *("", "a", "^", "$", "^$", "^a", "b$", "^ab?$", "^(?:a|b)*$", "a|^b|1$", "^(a|^b)", "^a+?b*?$", "^[ab]{2,3}$"),
    *(
        "^.{2}$",
        "^[^a]$",
        r"^\d$",
        r"^[\w]+$",
        r"\s",
        r"^[^\s\d]*$",
        r"^\x61b$",
        r"^[a-b1-]+$",
        "^(?=.*a)(?=.*b)",
        "^(?!a)",
    ),
    *(
        "^(?!.*1).{3}$",
        "a(?=b)",
        "a(?!b)",
        "^(a(?=b)b?)?1$",
        "^(?:a$|b)",
        "(a*)*b",
        "^((a|b)(a|b)){2}$",
        r"^[\D]$",
        r"\W",
    ),
    *(
        "^(?P<one>a)(?<two>b)$".replace("?<", "?P<").replace("?PP", "?P"),
        "a{0}",
        "^(|a)b",
        "^a{,2}$".replace("{,", "{0,"),
    ),
]


def is_in(languages: Languages, language: int, text: str) -> bool:
    for char in text:
        language = languages.after(language, ord(char))
    return languages.has_empty(language)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_texts_are_those_that_python_finds(pattern: str) -> None:
    languages = Languages()
    language = pattern_language(languages, pattern)
    found = re.compile(pattern.replace("$", r"\Z"))
    assert [t for t in TEXTS if is_in(languages, language, t)] == [t for t in TEXTS if found.search(t)]


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        (r"(a)\1", r"\1 (character 4)"),
        (r"a\b", r"\b (character 2)"),
        (r"\p{L}", r"\p (character 1)"),
        (r"a\Z", r"\Z (character 2)"),
        ("\\", "\\ (character 1)"),
        ("(?i)a", "(?i) (character 1)"),
        ("(?<=a)b", "(?<= (character 1)"),
        ("(?<!a)b", "(?<! (character 1)"),
        ("a^", "^ after something else (character 2)"),
        ("a{2", "no number of times (character 2)"),
        ("a{3,2}", "{3,2} (character 2)"),
        ("a{1001}", "{1001} (character 2)"),
        ("*", "* after nothing"),
        ("a**", "* after a repetition (character 3)"),
        ("^*", "a repeated anchor"),
        ("(^a)*", "a group with an anchor"),
        ("(a", "a ( without ) (character 1)"),
        ("a)", "a ) without ( (character 2)"),
        ("[a", "a [ without ] (character 1)"),
        ("[b-a]", "a range without an end"),
        ("[[:alpha:]]", "a [: class"),
        (r"\u12", r"\u without the number"),
        (r"\ud800", r"\u without the number"),
    ],
)
def test_what_is_not_understood_is_told_by_its_place(pattern: str, why: str) -> None:
    with pytest.raises(PatternError) as refused:
        pattern_language(Languages(), pattern)
    assert why in str(refused.value)


def test_characters_on_which_expressions_disagree_are_left_out(model: LlamaModel) -> None:
    for pattern, good, bad in (
        (r"^\d$", "1", "\u0663"),
        (r"^\D$", "\u00e9", "\u0663"),
        (r"^\w$", "a", "\u00e9"),
        (r"^\W$", "-", "\u00e9"),
    ):
        assert lets_through(model, {"pattern": pattern}, f'"{good}"')
        assert not lets_through(model, {"pattern": pattern}, f'"{bad}"')


@pytest.mark.slow
@pytest.mark.parametrize(
    "pattern", [r'^["\\\n]{1,3}$', r"^[^\x00-\x1f]{0,3}\t$", "^\x01$", r"^[\s\S]a$", "^[\u00e0-\U0001f600]+$"]
)
def test_texts_are_escaped_as_json_asks(model: LlamaModel, pattern: str) -> None:
    check_texts(model, {"type": "string", "pattern": pattern}, 10)


def test_the_rules_of_equal_languages_are_the_same() -> None:
    results = []
    for pattern in ("^(?:a|ab)c?$", "^a(?:b)?(?:c)?$", "^(?:(?:ac|a)|(?:abc|ab))$"):
        languages = Languages()
        results.append(languages.rules(pattern_language(languages, pattern), "r"))
    assert results[0] == results[1] == results[2]


def test_no_text_and_too_many_rules() -> None:
    languages = Languages()
    assert languages.rules(pattern_language(languages, "^a(?!)$"), "r") is None
    with pytest.raises(TooManyRules):
        languages.rules(pattern_language(languages, "(a|b)*a(a|b){20}"), "r")

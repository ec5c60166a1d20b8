"""Tokens to text: characters that are split over tokens, and stop strings that are."""

from __future__ import annotations

import random

import pytest

from specrun.decoding.completion import TextStream


def pushed(tokens: list[bytes], stops: list[str] | None = None) -> list[str]:
    """The piece that each token sets free, and last what `finish` gives; ends at a stop string."""
    stream = TextStream(tokens.__getitem__, stops or [])
    pieces = []
    for token in range(len(tokens)):
        pieces.append(stream.push(token))
        if stream.stopped:
            break
    return [*pieces, stream.finish()]


def random_split(data: bytes, rng: random.Random) -> list[bytes]:
    cuts = sorted(rng.sample(range(len(data) + 1), rng.randint(0, min(6, len(data)))))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def test_text_comes_out_at_once() -> None:
    assert pushed([b"one", b" two"]) == ["one", " two", ""]


def test_a_character_waits_for_its_last_byte() -> None:
    assert pushed([b"a\xf0\x9f", b"\x99", b"\x82b"]) == ["a", "", "🙂b", ""]


def test_bytes_that_are_no_character_are_replaced() -> None:
    assert pushed([b"a\xff", b"b"]) == ["a�", "b", ""]
    assert pushed([b"a\xc3"]) == ["a", "�"]


def test_a_stop_string_over_three_tokens_is_never_shown() -> None:
    assert pushed([b"text<", b"|end", b"|>rest", b"more"], ["<|end|>"]) == ["text", "", "", ""]


def test_what_only_began_like_a_stop_string_comes_out_later() -> None:
    assert pushed([b"a<", b"|en", b"d of it"], ["<|end|>"]) == ["a", "", "<|end of it", ""]
    assert pushed([b"a<|"], ["<|end|>"]) == ["a", "<|"]


def test_a_stop_string_may_begin_inside_of_a_failed_one() -> None:
    assert "".join(pushed([b"a", b"a", b"a", b"b", b"c"], ["aab"])) == "a"


def test_the_earliest_of_several_stop_strings_wins() -> None:
    assert "".join(pushed([b"one two three"], ["three", "two"])) == "one "


def test_an_empty_stop_string_stops_nothing() -> None:
    assert "".join(pushed([b"text"], [""])) == "text"


@pytest.mark.parametrize("seed", range(200))
def test_any_split_into_tokens_gives_the_same_text(seed: int) -> None:
    rng = random.Random(seed)
    text = "".join(rng.choices("aab<|é🙂\n", k=rng.randint(1, 30)))
    stops = ["".join(rng.choices("aab<|é🙂", k=rng.randint(1, 4))) for _ in range(rng.randint(0, 2))]
    ends = [text.find(stop) for stop in stops if stop in text]
    pieces = pushed(random_split(text.encode(), rng), stops)
    assert "".join(pieces) == text[: min(ends, default=len(text))]


@pytest.mark.parametrize("seed", range(50))
def test_no_piece_needs_to_be_taken_back(seed: int) -> None:
    rng = random.Random(seed)
    text = "".join(rng.choices("ab<|é", k=30))
    shown = ""
    for piece in pushed(random_split(text.encode(), rng), ["<|b"]):
        shown += piece
        assert text.startswith(shown)
        assert "<|b" not in shown

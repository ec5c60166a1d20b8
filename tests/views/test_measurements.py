"""The report of a profile says what to expect of a text, and of which kind."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specrun.profiles.profile import Profile
from specrun.views import measurements, output
from tests.profiles.test_profile import made


def expecting(**forecast: object) -> Profile:
    """The profile whose first plan, a tree that is expected to write 2.5 times as much as plain decoding, has this."""
    profile = made()
    return replace(profile, plans=[replace(profile.plans[0], **forecast), *profile.plans[1:]])


def test_a_range_of_texts_is_expected_and_more_where_they_repeat_themselves() -> None:
    profile = expecting(ratio_range=(1.84, 3.3))
    said = measurements.sentence(profile, profile.plans[0])
    assert "18.4 to 33.0 tokens/s, 1.8 to 3.3 times plain decoding on most texts, more where they repeat" in said


def test_the_report_has_each_kind_that_was_written(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(measurements.render(expecting(ratio_by_kind={"edit": 6.123, "chat": 1.9})))
    assert "by kind of text: chat 1.90, edit 6.12 times plain decoding" in capsys.readouterr().out


def test_without_texts_it_is_the_mean_with_its_error() -> None:
    said = measurements.sentence(made(), made().plans[0])
    assert "22.0 to 28.0 tokens/s, 2.50 times plain decoding, 3.1 tokens a pass" in said


def test_where_nothing_pays_what_trees_would_write_is_no_faster_than_plain_decoding() -> None:
    """The forecast of texts, which is of runs that leave trees where these lose, said 154 to 269 beside 160 to 180."""
    profile = made()
    off = replace(profile.plans[1], ratio_range=(0.9, 1.6))
    said = measurements.sentence(profile, off)
    assert "off: 9.50 to 10.5 tokens/s (the best with it, chain of 2: 8.00 to 10.0 tokens/s)" in said

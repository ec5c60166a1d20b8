"""The report of a profile says what to expect of a text, and of which kind."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specrun.profiles.profile import Profile
from specrun.views import measurements, output
from specrun.views.output import LiteralConsole
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


def test_the_list_has_a_line_for_each_profile_in_80_columns() -> None:
    """Files whose names say nothing are named by their folders, too."""
    texts = replace(expecting(ratio_range=(1.84, 3.3)), folders=("qwen-14b", "qwen-0.5b"), regime="in RAM")
    learned = replace(made(), target="Llama-3.3-70B-Q4_K_M.gguf", draft="Llama-3.2-1B-Instruct-Q8_0.gguf", regime="")
    off = replace(texts, plans=[texts.plans[1]], draft="Qwen2.5-0.5B-Q8_0.gguf")
    alone = replace(texts, draft="", costs=replace(texts.costs, draft=None))
    console = LiteralConsole(force_terminal=True, color_system=None, width=80)
    with console.capture() as shown:
        console.print(
            measurements.profiles_table([texts, replace(learned, origin="learned"), off, alone]), soft_wrap=False
        )
    lines = [line.split() for line in shown.get().splitlines() if line.strip()]
    when = measurements.when(made()).split()
    assert lines[2:] == [
        ["qwen-14b/target.gguf"],
        ["qwen-0.5b/draft.gguf", *when, "in", "RAM", "18.4-33.0", "1.8-3.3"],
        ["Qwen2.5-0.5B-Q8_0.gguf", *when, "in", "RAM", "9.50-10.5", "off"],
        ["none", *when, "in", "RAM", "10.0", "plain"],
        ["Llama-3.3-70B-Q4_K_M.gguf,", "learned", "while", "writing"],
        ["Llama-3.2-1B-Instruct-Q8_0.gguf", *when, "22.0-28.0", "2.50"],
        ["left", "out", "in", "this", "width:", "profile,", "plan"],
    ]


def test_without_texts_it_is_the_mean_with_its_error() -> None:
    said = measurements.sentence(made(), made().plans[0])
    assert "22.0 to 28.0 tokens/s, 2.50 times plain decoding, 3.1 tokens a pass" in said


def test_where_nothing_pays_what_trees_would_write_is_no_faster_than_plain_decoding() -> None:
    """The forecast of texts, which is of runs that leave trees where these lose, said 154 to 269 beside 160 to 180."""
    profile = made()
    off = replace(profile.plans[1], ratio_range=(0.9, 1.6))
    said = measurements.sentence(profile, off)
    assert "off: 9.50 to 10.5 tokens/s (the best with it, chain of 2: 8.00 to 10.0 tokens/s)" in said

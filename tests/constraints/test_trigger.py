"""Where a grammar begins to count does not depend on how the text is cut into tokens."""

from __future__ import annotations

import pytest

from specrun.constraints.rules import Trigger

THINK = ("<think>", "</think>")


@pytest.mark.parametrize(
    ("trigger", "text", "behind"),
    [
        (Trigger("<call>"), b"a <cal <call> b <call>", b" b <call>"),
        (Trigger("<call>"), b"a <cal", None),
        (Trigger("<call>", THINK), b" <think> <call> </think> a <call>b", b"b"),
        (Trigger("<call>", THINK), b"<think> <call> never", None),
        (Trigger("<call>", THINK), b"no <think> <call>b", b"b"),
        (Trigger("<call>", THINK, is_open=True), b"<call> </think><call>b", b"b"),
        (Trigger("", THINK, is_open=True), b"hm </think>\n{", b"\n{"),
        (Trigger("", THINK), b"a", b"a"),
        (Trigger("|m|", ("|c|an", "|e|")), b"|c|an|m|hm|e||c|fi json|m|{", b"{"),
        (Trigger("|m|", ("|c|an", "|e|")), b"|c|fi|m|{", b"{"),
    ],
)
def test_where_the_grammar_begins(trigger: Trigger, text: bytes, behind: bytes | None) -> None:
    for size in range(1, len(text) + 1):
        progress, rest = trigger.start, b""
        for i in range(0, len(text), size):
            if progress.is_reached:
                rest += text[i : i + size]
            else:
                progress, rest = trigger.after(progress, text[i : i + size])
        assert (rest if progress.is_reached else None) == behind, size

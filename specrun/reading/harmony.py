"""The channels of gpt-oss ("harmony"): analysis, final, and commentary, which has the calls of tools.

    <|channel|>analysis<|message|>I need the weather.<|end|><|start|>assistant
    <|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Oslo"}<|call|>

The markers are control tokens, whose text must be shown to the reader.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from specrun.reading.calls import CallReader
from specrun.reading.deltas import Delta, content, reasoning

CHANNEL, MESSAGE, START, END, CONSTRAIN = "<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|constrain|>"
# How the answer's own channel begins, with and without the format of its text.
FINAL_HEADERS = tuple(
    f"{CHANNEL}final{form}{MESSAGE}" for form in ("", " json", f" {CONSTRAIN}json", f"{CONSTRAIN}json")
)
_MARKERS = (CHANNEL, START, END, "<|call|>", "<|return|>")
_HEADERS = (*_MARKERS, MESSAGE, "to=")  # what a header begins with
_CALLED = re.compile(r"to=functions\.([^\s<]+)")


class HarmonyReader(CallReader):
    """Reads an answer in channels. A text without channels is the answer itself.

    header: the beginning of the first message's header, where the prompt ends with it.
    """

    def __init__(self, header: str = "") -> None:
        super().__init__()
        self._held = header

    def _read(self) -> Iterator[Delta | None]:
        is_going_on = True
        while is_going_on:
            tell: Callable[[str], list[Delta]] = content
            if (yield from self._follows(*_HEADERS)):
                while MESSAGE not in self._held:
                    yield None  # a header that is not complete adds nothing
                header, _, self._held = self._held.partition(MESSAGE)
                if header.partition(CHANNEL)[2].lstrip().startswith("analysis"):
                    tell = reasoning
                if called := _CALLED.search(header):
                    yield self._begin(called[1])
                    tell = self._more
            is_going_on = yield from self._tell_until(tell, *_MARKERS)
            n_blanks = len(self._held) - len(self._held.lstrip())
            yield from tell(self._take(n_blanks))

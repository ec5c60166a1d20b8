"""Models that think between <think> and </think> before they answer: Qwen3, QwQ, DeepSeek-R1 and others."""

from __future__ import annotations

from collections.abc import Iterator

from specrun.serving.reading.deltas import Delta, Reader, reasoning

OPEN, CLOSE = "<think>", "</think>"


class ThinkingReader(Reader):
    """Reads the reasoning at the beginning of an answer; the rest is for another reader.

    answer: reads what comes after the reasoning, or everything if there is none.
    is_open: whether the prompt ended with <think>, as some templates let it.
    """

    def __init__(self, answer: Reader, is_open: bool) -> None:
        super().__init__()
        self._answer = answer
        self._is_open = is_open

    def finish(self) -> list[Delta]:
        return super().finish() + self._answer.finish()

    def _read(self) -> Iterator[Delta | None]:
        if self._is_open or (yield from self._follows(OPEN)):
            if not self._is_open:
                self._skip(OPEN)
            yield from self._skip_blanks()
            yield from self._tell_until(reasoning, CLOSE)
            self._skip(CLOSE)
            yield from self._skip_blanks()
        while True:
            yield from self._answer.push(self._take(len(self._held)))
            yield None

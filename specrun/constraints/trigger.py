"""Where a grammar begins to apply: a model may reason or talk before it writes what must be well-formed."""

from __future__ import annotations

from dataclasses import dataclass

# Before the reasoning, in it, after it, and where the grammar applies.
_BEGINNING, _REASONING, _FREE, _BOUND = range(4)


@dataclass(frozen=True)
class Trigger:
    """Where a grammar begins to apply: after `text`, or after one of `others`, which end as it does."""

    text: str  # if empty, the grammar applies at once, or directly after the reasoning that the prompt began
    reasoning: tuple[str, str] | None = None  # the markers around reasoning at the beginning, where `text` is ignored
    is_open: bool = False  # whether the prompt ended within the reasoning
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class Progress:
    """How far a text has come. held: bytes at its end that may be the beginning of a marker."""

    stage: int
    held: bytes = b""

    @property
    def is_reached(self) -> bool:
        """Whether the grammar applies from here on."""
        return self.stage == _BOUND


class TriggerReader:
    """Follows texts, in bytes, up to a trigger."""

    def __init__(self, trigger: Trigger) -> None:
        self._text = trigger.text.encode()
        self._texts = [self._text, *(text.encode() for text in trigger.others)]
        markers = trigger.reasoning or ("", "")
        self._open, self._close = markers[0].encode(), markers[1].encode()
        self.start = Progress(_BEGINNING) if self._open and self._text else self._behind_reasoning()
        if trigger.is_open:
            self.start = Progress(_REASONING)

    @property
    def last_byte(self) -> int:
        """The byte that completes the trigger."""
        return (self._text or self._close)[-1]

    def after(self, progress: Progress, data: bytes) -> tuple[Progress, bytes]:
        """The progress after further bytes, and the bytes that are after the trigger, if it was reached."""
        stage, data = progress.stage, progress.held + data
        if stage == _BEGINNING:
            begun = data.lstrip()
            if begun.startswith(self._open):
                stage, data = _REASONING, begun[len(self._open) :]
            elif self._open.startswith(begun):
                return Progress(stage, data), b""
            else:
                stage = _FREE
        if stage == _REASONING:
            before, close, rest = data.partition(self._close)
            if not close:
                return Progress(stage, _tail(before, self._close)), b""
            stage, data = self._behind_reasoning().stage, rest
        if stage == _FREE:
            at, text = min(((at, text) for text in self._texts if (at := data.find(text)) >= 0), default=(-1, b""))
            if at < 0:
                return Progress(stage, _tail(data, max(self._texts, key=len))), b""
            stage, data = _BOUND, data[at + len(text) :]
        return Progress(stage), data

    def _behind_reasoning(self) -> Progress:
        return Progress(_FREE if self._text else _BOUND)


def _tail(data: bytes, marker: bytes) -> bytes:
    """The end of `data` in which the marker may begin."""
    return data[max(len(data) - len(marker) + 1, 0) :]

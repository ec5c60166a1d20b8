"""What a reader makes of a text, for comparing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from specrun.reading.deltas import Delta, Reader


@dataclass
class Told:
    """All additions together. calls: (name, arguments) of each."""

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)

    def add(self, deltas: Iterable[Delta]) -> None:
        for delta in deltas:
            assert delta.content or delta.reasoning or delta.call, "an addition of nothing"
            self.content += delta.content
            self.reasoning += delta.reasoning
            call = delta.call
            if call and call.name is not None:
                assert (call.index, bool(call.id)) == (len(self.calls), True)
                self.calls.append((call.name, call.arguments))
            elif call:
                assert (call.index, call.id, bool(call.arguments)) == (len(self.calls) - 1, None, True)
                name, arguments = self.calls[-1]
                self.calls[-1] = (name, arguments + call.arguments)


def told(new_reader: Callable[[], Reader], *pieces: str, is_cut: bool = False) -> Told:
    """What a reader tells of a text in these pieces. is_cut: whether the text was cut off."""
    reader, result = new_reader(), Told()
    for piece in pieces:
        result.add(reader.push(piece))
    result.add(reader.finish(is_cut))
    return result


def told_however_cut(new_reader: Callable[[], Reader], text: str, is_cut: bool = False) -> Told:
    """The same for every cut of `text` into two pieces, and into single characters; it must not depend on the cut."""
    whole = told(new_reader, text, is_cut=is_cut)
    for i in range(len(text)):
        assert told(new_reader, text[:i], text[i:], is_cut=is_cut) == whole, (text[:i], text[i:])
    assert told(new_reader, *text, is_cut=is_cut) == whole
    assert told(new_reader, *(part for character in text for part in ("", character)), is_cut=is_cut) == whole
    return whole

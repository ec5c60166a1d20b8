"""The findings of `specrun doctor` as a table of a terminal, and as lines of a pipe."""

from __future__ import annotations

from rich.console import Console

from specrun.doctor import Finding
from specrun.views import doctor_view

FINDINGS = [
    Finding("memory", "ok", "20.00 GB of 32.00 GB free"),
    Finding("hub", "warn", "no connection to http://127.0.0.1:9 (refused); only models that are here", "curl -I [x]"),
]


def test_a_narrow_terminal_loses_nothing() -> None:
    console = Console(width=40, color_system=None)
    with console.capture() as captured:
        console.print(doctor_view.as_table(FINDINGS))
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= 40
    assert lines[0].split() == ["ok", "memory", "20.00", "GB", "of", "32.00", "GB", "free"]
    assert "-> curl -I [x]" in captured.get(), "brackets are no markup"


def test_in_a_pipe_a_finding_is_a_line() -> None:
    first, second, fix = doctor_view.lines(FINDINGS).splitlines()
    assert first == "ok    memory: 20.00 GB of 32.00 GB free"
    assert second.startswith("warn  hub: no connection")
    assert fix == "      -> curl -I [x]"

"""Grammars that llama.cpp would follow for hours end in one line."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from specrun.errors import UsageError
from specrun.llama import grammar_watch
from specrun.llama.grammar_watch import watched
from tests.conftest import Specrun, SpecrunHere

USAGE = 2  # exit code

# Every rule is read as one of the next, or as two.
EXPONENTIAL = (
    "root ::= r0\n" + "\n".join(f"r{i} ::= r{i + 1} | r{i + 1} r{i + 1}" for i in range(40)) + '\nr40 ::= "x"\n'
)
# A left recursion behind a rule that is empty through another one, which llama.cpp does not see.
RECURSIVE = 'root ::= b root "z" | "x"\nb ::= c\nc ::= | "y"\n'
HUGE = 'root ::= "' + "a" * 1_000_000 + '"{2000}\n'


@pytest.mark.parametrize("grammar", [RECURSIVE, HUGE, EXPONENTIAL], ids=["recursive", "huge", "exponential"])
def test_a_grammar_without_end_ends_the_command(specrun: Specrun, tmp_path: Path, script: Path, grammar: str) -> None:
    (tmp_path / "grammar").write_text(grammar)
    result = specrun("generate", "x", "-m", script, "--grammar", tmp_path / "grammar")
    result.assert_fails(USAGE, "the grammar takes too much time or memory")


def test_a_long_call_is_an_error_and_a_short_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with watched():
        pass
    monkeypatch.setattr(grammar_watch, "_LONG_SECONDS", -1.0)
    with pytest.raises(UsageError, match="too much time or memory"), watched():
        pass


def test_calls_of_other_threads_are_told_apart() -> None:
    entered, may_leave = threading.Event(), threading.Event()

    def other_call() -> None:
        with watched():
            entered.set()
            may_leave.wait()

    other = threading.Thread(target=other_call)
    with watched():
        other.start()
        entered.wait()
        assert len(grammar_watch._started_at) == 2
    assert list(grammar_watch._started_at) == [other.ident]
    may_leave.set()
    other.join()
    assert not grammar_watch._started_at


@pytest.mark.slow
def test_a_device_is_not_read_without_end(here: SpecrunHere, script: Path) -> None:
    for option in ("--grammar", "--json-schema"):
        here("generate", "x", "-m", script, option, "/dev/zero").assert_fails(USAGE, "more than 16 MiB")

"""What happens before a head learns, without PyTorch: gathering that goes on, its bounds, and what is said before."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from scripts.make_head import gathering, making
from scripts.make_head.making import make_head
from scripts.make_head.records import Records
from specrun.catalog import embedded, made
from specrun.errors import SpecrunError, UsageError
from specrun.long_run import Run
from tests.scripts.make_head.orders import order

pytestmark = pytest.mark.long


class GatheredError(Exception):
    """The texts are gathered."""


@pytest.fixture(autouse=True)
def gathers_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def learned(*_: object) -> None:
        raise GatheredError

    monkeypatch.setattr(making, "_learned", learned)
    monkeypatch.setattr(making, "_check_torch", lambda: None)
    monkeypatch.setattr(gathering, "_WRITTEN", 24)
    monkeypatch.setattr(gathering, "_ROUNDS", 1)


def texts() -> Records:
    return Records.read(made.unfinished_head(embedded.TARGET))


def test_it_says_before_it_begins_what_it_takes() -> None:
    notes: list[str] = []
    with pytest.raises(GatheredError):
        make_head(order(), Run(note=notes.append))
    estimate, gain = notes
    assert "tokens a pass with a" in gain
    assert "as this target has no profile" in gain
    assert "for texts of the target, about" in estimate
    assert "on disk, in " in estimate
    assert estimate.endswith("for the head")


def test_gathering_goes_on_where_it_was() -> None:
    interrupted = iter([False] * 60)
    with pytest.raises(KeyboardInterrupt):
        make_head(order(seconds=60), Run(interrupted=lambda: next(interrupted, True)))
    before = texts().texts
    assert before
    notes: list[str] = []
    with pytest.raises(GatheredError):
        make_head(order(seconds=1), Run(note=notes.append))
    assert notes[0].startswith("going on with ")
    assert texts().texts[: len(before)] == before


def test_texts_take_no_more_room_than_they_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "_MOST_BYTES", 10**6)
    with pytest.raises(GatheredError):
        make_head(order(seconds=3600), Run())
    assert 10**6 <= texts().n_bytes < 4 * 10**6, "it ends with the part that reaches the bound"


def test_an_unfinished_head_of_another_order_is_not_gone_on_with() -> None:
    with pytest.raises(GatheredError):
        make_head(order(), Run())
    with pytest.raises(UsageError, match=r"begun with other --texts or --vocab; .* --forget"):
        make_head(order(n_vocab=100), Run())
    assert made.forget_unfinished_head(embedded.TARGET)
    assert not made.home(embedded.TARGET).exists()
    assert not made.forget_unfinished_head(embedded.TARGET)


def test_a_full_disk_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Records, "add", full)
    with pytest.raises(SpecrunError, match="No space left on device; free some room, and the same command goes on"):
        make_head(order(), Run())


def test_two_processes_do_not_make_the_same_head(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = made.unfinished_head(embedded.TARGET)
    folder.mkdir(parents=True)
    monkeypatch.setattr("specrun.locations._LOCK_SECONDS", 0.01)
    holding = (
        "import pathlib, sys; from specrun.locations import locked\n"
        "with locked(pathlib.Path(sys.argv[1])): print(flush=True); input()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", holding, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ
    )
    assert other.stdout
    other.stdout.readline()
    try:
        with pytest.raises(SpecrunError, match="another specrun has been writing there"):
            make_head(order(), Run())
    finally:
        other.communicate(b"\n")


def test_impossible_orders() -> None:
    for wrong, message in (
        ({"hours": 0.0}, "--hours must be above 0; got 0"),
        ({"hours": float("nan")}, "--hours must be above 0; got nan"),
        ({"n_vocab": 0}, "--vocab must be above 0; got 0"),
        ({"output": Path("nowhere/head.gguf")}, "a folder that does not exist"),
    ):
        with pytest.raises(UsageError, match=message):
            make_head(replace(order(), **wrong), Run())
    assert not made.folder().exists()

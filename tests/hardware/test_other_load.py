"""What counts as the load of other programs."""

from __future__ import annotations

import subprocess
import sys

from specrun.hardware import other_load

_COMPUTES = "for _ in range(30): sum(range(1_000_000))"


def test_a_child_that_has_ended_is_none_of_the_other_programs() -> None:
    before = other_load._own_seconds()
    subprocess.run([sys.executable, "-c", _COMPUTES], check=True)
    assert other_load._own_seconds() - before > 0.2

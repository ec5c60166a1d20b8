"""A driver that crashes costs the process of the first pass, not the answer.

Mesa's device in software keeps the memory of a device in a file, and dies of a signal where that cannot grow.
"""

from __future__ import annotations

import resource
import subprocess

import pytest

from specrun.hardware.machine import Device
from tests.conftest import Specrun

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

_MOST_BYTES = 3_000_000  # of any file: less than the weights of the embedded pair, more than what specrun writes
_ASK = ("generate", "--raw", "--temp", "0", "-n", "8", "--no-learn", "def read_config(path):")


def limited(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, with a driver that dies of the first model that it is given."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (_MOST_BYTES, _MOST_BYTES))

    command = Specrun.command(*arguments)
    return subprocess.run(command, preexec_fn=limit, capture_output=True, text=True, check=False)


def test_it_is_named_left_out_and_remembered(gpu: Device, specrun: Specrun) -> None:
    if "llvmpipe" not in gpu.description:
        pytest.skip("only Mesa's device in software can be made to crash")
    expected = specrun(*_ASK, "-ngl", "0", "-ngld", "0")
    for _ in range(2):
        crashed = limited(*_ASK)
        assert (crashed.returncode, crashed.stdout) == (0, expected.stdout), crashed
        assert crashed.stderr.count("crashed with layers on a GPU") == 1, crashed
    decided = limited(*_ASK, "-ngl", "all", "-ngld", "0")
    assert (decided.returncode, decided.stdout) == (6, "")
    assert decided.stderr.count("\n") == 1
    assert "give -ngl 0" in decided.stderr

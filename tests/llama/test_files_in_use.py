"""Model files that are changed while they are in use, and loading that is interrupted."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from specrun.llama import LlamaModel
from specrun.llama_settings import LlamaSettings
from tests.conftest import Specrun
from tests.waiting import TIMEOUT_S


@pytest.mark.skipif(not hasattr(signal, "SIGBUS"), reason="a system without SIGBUS does not let files be cut short")
@pytest.mark.parametrize("share", [0.5, 0.0])
def test_a_mapped_file_that_is_cut_short_ends_in_one_line(
    specrun: Specrun, endless: Path, tmp_path: Path, share: float
) -> None:
    model = Path(shutil.copy(endless, tmp_path / "model.gguf"))
    process = specrun.start("generate", "x", "-m", model, "-c", "16000", "--speculate", "off", "-lm", "mmap")
    assert process.stdout
    first = process.stdout.read(3)
    os.truncate(model, int(share * model.stat().st_size))
    stdout, stderr = process.communicate(timeout=TIMEOUT_S)
    message = f"specrun: {model} was cut short while it was in use; download it again\n"
    assert (process.returncode, stderr.decode()) == (6, message)
    text = (first + stdout).decode().removesuffix("\n")
    assert ("la lo " * 16000).startswith(text)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGBUS"), reason="needs SIGBUS")
def test_a_handler_of_the_program_stays(random_model: Path) -> None:
    program = """
import ctypes, faulthandler, signal, sys
from pathlib import Path
faulthandler.enable()
from specrun.llama import LlamaModel
install = ctypes.CDLL(None).signal
install.restype, install.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.c_void_p]
def handler():
    now = install(signal.SIGBUS, None)
    install(signal.SIGBUS, now)
    return now
before = handler()
LlamaModel(Path(sys.argv[1])).close()
assert before and handler() == before
"""
    subprocess.run([sys.executable, "-c", program, str(random_model)], check=True)


def test_a_file_that_was_written_to_is_told_from_one_that_was_replaced(random_model: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(random_model, tmp_path / "model.gguf"))
    with LlamaModel(path) as model:
        assert model.overwritten is None
        with path.open("r+b") as file:
            file.write(b"GGUF")
        os.utime(path, ns=(0, 0))
        assert model.overwritten == path
        other = Path(shutil.copy(random_model, tmp_path / "other.gguf"))
        other.replace(path)
        assert model.overwritten is None
        path.unlink()
        assert model.overwritten is None


def test_weights_that_were_read_into_memory_stay_what_they_are(random_model: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(random_model, tmp_path / "model.gguf"))
    with LlamaModel(path, LlamaSettings(load_mode="none")) as model:
        os.utime(path, ns=(0, 0))
        assert model.overwritten is None


def test_ctrl_c_while_llama_cpp_loads_ends_it(random_model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shares: list[float] = []

    def loaded(share: float) -> None:
        shares.append(share)
        if len(shares) == 1:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        LlamaModel(random_model, progress=loaded)
    assert capfd.readouterr().err == ""
    assert shares[-1] < 1

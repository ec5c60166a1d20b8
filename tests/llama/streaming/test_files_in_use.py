"""What happens to a file, or who else uses it, while its layers are streamed."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from specrun.llama import LlamaModel
from specrun.llama.streaming.address_space import CannotStreamError
from tests.models import random_llama, split
from tests.streams import streamed_context, written
from tests.waiting import TIMEOUT_S

# Streams the model of argument 1, says when it is ready, waits, and says what it computed.
_OTHER_PROCESS = """
import hashlib, sys
from pathlib import Path
from tests.streams import streamed_context, written
with streamed_context(Path(sys.argv[1]), 1) as streamed:
    print("ready", flush=True)
    sys.stdin.readline()
    print(hashlib.sha256(b"".join(written(streamed))).hexdigest())
"""


@pytest.mark.slow
def test_a_file_that_is_replaced_in_use_is_read_on_as_it_was(
    tmp_path: Path, model: Path, expected: list[bytes]
) -> None:
    path = tmp_path / "m.gguf"
    shutil.copy(model, path)
    other = random_llama(tmp_path / "other.gguf", n_layer=7, seed=5)
    with streamed_context(path, 1) as streamed:
        other.replace(path)
        assert written(streamed) == expected


@pytest.mark.slow
def test_a_file_that_is_deleted_in_use_is_read_on(tmp_path: Path, model: Path, expected: list[bytes]) -> None:
    path = tmp_path / "m.gguf"
    shutil.copy(model, path)
    with streamed_context(path, 1) as streamed:
        path.unlink()
        assert written(streamed) == expected


@pytest.mark.slow
def test_a_later_shard_that_is_replaced_before_streaming_is_refused(tmp_path: Path, model: Path) -> None:
    path = split(tmp_path / "m.gguf", model, 3)
    last = max(tmp_path.glob("m-*.gguf"))
    original = LlamaModel.__init__

    def replacing(*arguments: object) -> None:
        original(*arguments)  # type: ignore[arg-type]
        shutil.copy(last, tmp_path / "copy")
        (tmp_path / "copy").replace(last)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LlamaModel, "__init__", replacing)
        with pytest.raises(CannotStreamError, match="did not map"), streamed_context(path):
            pass


@pytest.mark.slow
def test_two_processes_stream_one_file(model: Path, expected: list[bytes]) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _OTHER_PROCESS, str(model)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
        cwd=Path(__file__).parents[3],
    ) as other:
        assert other.stdout
        assert other.stdout.readline() == "ready\n"
        with streamed_context(model, 2) as streamed:
            assert other.stdin
            other.stdin.write("go\n")
            other.stdin.flush()
            for _ in range(3):
                assert written(streamed) == expected
        answer, _ = other.communicate(timeout=TIMEOUT_S)
    assert other.returncode == 0
    assert answer.strip() == hashlib.sha256(b"".join(expected)).hexdigest()


@pytest.fixture
def in_ram() -> Iterator[Path]:
    """A folder on a file system that has no disk."""
    mounts = [Path(part.mountpoint) for part in psutil.disk_partitions(all=True) if part.fstype == "tmpfs"]
    found = next((mount for mount in mounts if mount.is_dir() and os.access(mount, os.W_OK)), None)
    if found is None:
        pytest.skip("no tmpfs that may be written to")
    folder = found / f"specrun-test-{os.getpid()}"
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


@pytest.mark.slow
def test_a_file_system_without_a_disk_is_read_all_the_same(in_ram: Path, model: Path, expected: list[bytes]) -> None:
    path = in_ram / "m.gguf"
    shutil.copy(model, path)
    with streamed_context(path, 1) as streamed:
        assert written(streamed) == expected

"""The storage under a file."""

from __future__ import annotations

from pathlib import Path

from specrun.hardware.storage import Storage, read_bandwidth


def test_a_large_file_is_measured(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(b"weights!" * (5 * 2**20 + 123))
    storage = Storage.read(path)
    assert storage.device
    assert storage.file_system
    assert storage.bytes_per_second is not None
    assert storage.bytes_per_second > 2**20


def test_what_cannot_be_known_is_none(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.write_bytes(b"x" * 2**20)
    assert read_bandwidth(small) is None
    assert read_bandwidth(tmp_path / "none") is None

"""Facts come back as they were; what is damaged is as if it had never been."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specrun.remembered import recall, remember


def number(value: Any) -> int:
    return int(value["number"])


def test_what_is_remembered_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "fact.json"
    assert recall(path, number) is None
    remember(path, {"number": 3})
    assert recall(path, number) == 3
    remember(path, {"number": 4})
    assert recall(path, number) == 4
    assert [file.name for file in path.parent.iterdir()] == ["fact.json"]


@pytest.mark.parametrize(
    "damaged", [b"", b'{"number": 3', b"\xff", b"3", b"[]", b"{}", b'{"number": "x"}', b"[" * 100_000, b"null"]
)
def test_what_is_damaged_is_no_fact(tmp_path: Path, damaged: bytes) -> None:
    path = tmp_path / "fact.json"
    path.write_bytes(damaged)
    assert recall(path, number) is None


def test_a_disk_that_refuses_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    remember(tmp_path / "file" / "fact.json", {"number": 3})
    assert recall(tmp_path / "file" / "fact.json", number) is None

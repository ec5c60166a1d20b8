"""Memory of huge pages for reading, and whether it really is that."""

from __future__ import annotations

from pathlib import Path

import pytest

from specrun.llama.streaming.read_buffer import ReadBuffer, _is_huge

SMAPS = """\
7f0000000000-7f0000400000 rw-p 00000000 00:00 0
Size:               4096 kB
Rss:                4096 kB
AnonHugePages:      {huge} kB
VmFlags: rd wr mr mw me ac sd hg
7f0000400000-7f0000600000 r--p 00000000 08:01 1234  /models/AnonHugePages: 4096 kB
Rss:                2048 kB
AnonHugePages:         0 kB
"""


@pytest.mark.parametrize(
    ("address", "huge", "expected"),
    [(0, 4096, True), (0x3FFFFF, 4096, True), (0, 2048, False), (0, 0, False), (0x400000, 4096, False)],
)
def test_all_memory_in_use_must_be_huge_pages(tmp_path: Path, address: int, huge: int, expected: bool) -> None:
    smaps = tmp_path / "smaps"
    smaps.write_text(SMAPS.format(huge=huge))
    assert _is_huge(0x7F0000000000 + address, smaps) == expected


def test_an_address_that_is_mapped_nowhere(tmp_path: Path) -> None:
    smaps = tmp_path / "smaps"
    smaps.write_text(SMAPS.format(huge=4096))
    assert not _is_huge(0x1000, smaps)


def test_a_buffer_has_the_size_that_was_asked_for() -> None:
    memory = ReadBuffer(3 * 2**20 + 4096).memory
    if memory is None:
        pytest.skip("this system gives no huge pages")
    assert len(memory) == 3 * 2**20 + 4096
    memory[-1] = 7
    assert memory[-1] == 7

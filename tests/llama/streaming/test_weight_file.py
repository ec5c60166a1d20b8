"""Reading a file past the page cache, and finding where it is mapped."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specrun.errors import LlamaError
from specrun.llama.streaming import weight_file
from specrun.llama.streaming.address_space import PAGE, CannotStreamError, Mapping, address_of, mappings_of
from specrun.llama.streaming.weight_file import WeightFile

CONTENT = os.urandom(3 * PAGE + 100)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(CONTENT)
    return path


def _refusing_direct(preadv: Callable[..., int]) -> Callable[..., int]:
    """preadv on a file system that lets a file be opened with O_DIRECT, but not read."""

    def refusing(descriptor: int, *rest: Any) -> int:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return preadv(descriptor, *rest)

    return refusing


@pytest.fixture(params=[True, False], ids=["buffered", "unbuffered"])
def buffered(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A buffer of usual pages, as a system may give no huge ones; or none."""
    monkeypatch.setattr(weight_file, "_buffer", weight_file._Buffer())
    monkeypatch.setattr(weight_file, "huge_pages", lambda n: memoryview(mmap.mmap(-1, n)) if request.param else None)


@pytest.mark.usefixtures("buffered")
@pytest.mark.parametrize("direct", [True, False])
def test_the_last_page_is_read_as_far_as_the_file_goes(
    path: Path, direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not direct:
        monkeypatch.setattr(os, "preadv", _refusing_direct(os.preadv))
    file = WeightFile(path)
    assert direct or not file.is_direct
    with mmap.mmap(-1, 2 * PAGE) as memory:
        assert file.read(memoryview(memory), 2 * PAGE) == PAGE + 100
        assert memory[: PAGE + 100] == CONTENT[2 * PAGE :]
        assert not any(memory[PAGE + 100 :])
    file.close()
    file.close()


def cached_pages(path: Path) -> int:
    """Pages of a file that are in the page cache."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as memory:
        pages = (ctypes.c_ubyte * -(-len(memory) // PAGE))()
        start = ctypes.c_char.from_buffer(memory)
        assert ctypes.CDLL(None).mincore(ctypes.byref(start), ctypes.c_size_t(len(memory)), pages) == 0
        del start
        return sum(page & 1 for page in bytes(pages))


def test_without_o_direct_what_was_read_is_dropped_from_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "large"
    path.write_bytes(bytes(256 * PAGE))
    with path.open("rb") as written:
        os.fsync(written.fileno())
        os.posix_fadvise(written.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if cached_pages(path):
        pytest.skip("this file system keeps everything in memory")
    monkeypatch.setattr(os, "preadv", _refusing_direct(os.preadv))
    file = WeightFile(path)
    with mmap.mmap(-1, 64 * PAGE) as memory:
        for start in range(0, 256, 64):
            file.read(memoryview(memory), start * PAGE)
    file.close()
    assert cached_pages(path) < 64, "of 256 that were read"


def test_a_file_that_became_shorter_is_an_error(path: Path) -> None:
    file = WeightFile(path)
    os.truncate(path, PAGE)
    with mmap.mmap(-1, PAGE) as memory:
        assert file.read(memoryview(memory), 0) == PAGE
        with pytest.raises(LlamaError, match="cut short"):
            file.read(memoryview(memory), PAGE)
    file.close()


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CannotStreamError, match="gone cannot be read"):
        WeightFile(tmp_path / "gone")
    with pytest.raises(CannotStreamError, match="cannot be read"):
        WeightFile(tmp_path)


def test_a_mapping_of_a_part_of_a_file_is_found(path: Path) -> None:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 2 * PAGE, offset=PAGE, access=mmap.ACCESS_READ) as memory:
        (mapping,) = mappings_of(path)
        assert (mapping.n_bytes, mapping.offset) == (2 * PAGE, PAGE)
        assert address_of([mapping], 2 * PAGE, PAGE) == mapping.address + PAGE
        for offset in (0, 3 * PAGE):
            with pytest.raises(CannotStreamError, match="did not map"):
                address_of([mapping], offset, PAGE)
        assert len(memory) == 2 * PAGE
    assert mappings_of(path) == []


def test_lines_that_continue_each_other_are_one_mapping(tmp_path: Path) -> None:
    name = (tmp_path / "a b\nc").resolve()
    shown = str(name).replace("\n", "\\012")
    maps = tmp_path / "maps"
    maps.write_text(
        f"1000-3000 r--s 00000000 fe:00 7 {shown}\n"
        f"3000-5000 r--s 00002000 fe:00 7 {shown}\n"
        f"5000-6000 rw-p 00000000 00:00 0 \n"
        f"6000-7000 r--s 00005000 fe:00 7 {shown}\n"
        f"7000-8000 r--s 00000000 fe:00 7 {shown} (deleted)\n"
        f"8000-9000 r--s 00000000 fe:00 7 {shown}c\n"
    )
    assert mappings_of(name, maps) == [Mapping(0x1000, 0x4000, 0), Mapping(0x6000, 0x1000, 0x5000)]


@pytest.mark.parametrize(("setting", "given"), [("always [madvise] never", True), ("always madvise [never]", False)])
def test_huge_pages_are_used_where_the_system_gives_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, given: bool
) -> None:
    enabled = tmp_path / "enabled"
    monkeypatch.setattr(weight_file, "_WHO_GETS_HUGE", enabled)
    assert weight_file.huge_pages(PAGE) is None, "a system that does not tell"
    enabled.write_text(setting)
    memory = weight_file.huge_pages(3 * 2**20 + PAGE)
    if memory is None and given:
        pytest.skip("this kernel has no huge pages")
    assert (len(memory) if memory else 0) == (3 * 2**20 + PAGE if given else 0)

"""This process's mappings of a model file, whose pages can be replaced in place (Linux)."""

from __future__ import annotations

import ctypes
import mmap
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

PAGE = mmap.PAGESIZE

_MAPS = Path("/proc/self/maps")
# Python's mmap does not have these two. The first replaces whatever is there.
_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_MAP_FAILED = ctypes.c_void_p(-1).value


class CannotStreamError(Exception):
    """This system, file or model cannot be streamed; `str(error)` is the reason, as it stands behind "because"."""


@dataclass(frozen=True)
class Mapping:
    """A part of a file at an address."""

    address: int
    n_bytes: int
    offset: int  # in the file


def mappings_of(path: Path, maps: Path = _MAPS) -> list[Mapping]:
    """Where this process has mapped the file, in order of addresses. maps: lists all mappings.

    A file that was deleted or replaced after it was mapped is not found. Raises CannotStreamError if nothing is listed.
    """
    try:
        lines = maps.read_bytes().splitlines()
    except OSError as error:
        raise CannotStreamError(f"this system does not tell what is mapped ({error.strerror})") from error
    # The kernel writes a line break in a name as \012, and all other bytes as they are.
    name = os.fsencode(path.resolve()).replace(b"\n", b"\\012")
    found: list[Mapping] = []
    for line in lines:
        fields = line.split(maxsplit=5)
        if len(fields) < 6 or fields[5] != name:
            continue
        start, end = (int(address, 16) for address in fields[0].split(b"-"))
        offset = int(fields[2], 16)
        last = found[-1] if found else None
        if last and (last.address + last.n_bytes, last.offset + last.n_bytes) == (start, offset):
            found[-1] = Mapping(last.address, last.n_bytes + end - start, last.offset)
        else:
            found.append(Mapping(start, end - start, offset))
    return found


def address_of(mappings: list[Mapping], offset: int, n_bytes: int) -> int:
    """The address of these bytes of a file. Raises CannotStreamError if they are mapped nowhere, or twice."""
    end = offset + n_bytes
    found = [one for one in mappings if one.offset <= offset and end <= one.offset + one.n_bytes]
    if len(found) != 1:
        raise CannotStreamError("another model in this process uses the file" if found else "llama.cpp did not map it")
    return found[0].address + offset - found[0].offset


def view(address: int, n_bytes: int) -> memoryview:
    """The memory at an address, which must be mapped for as long as the view is used."""
    return memoryview((ctypes.c_char * n_bytes).from_address(address)).cast("B")


def start_of(memory: mmap.mmap) -> int:
    """The address of a mapping that can be written to."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def map_memory(address: int, n_bytes: int) -> None:
    """Replace pages by empty pages that belong to this process alone and can be written to."""
    _map(address, n_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0, writable=True)


def map_places(address: int, n_bytes: int) -> None:
    """Replace pages by empty ones that take memory only where something was written; they may be more than there is.

    None of them are huge pages, of which a write to one byte would take 2 MiB.
    """
    _map(address, n_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE, -1, 0, writable=True)
    _libc().madvise(address, n_bytes, mmap.MADV_NOHUGEPAGE)


def give_back(address: int, n_bytes: int) -> None:
    """Free the memory of pages of `map_places`, which are empty then."""
    _libc().madvise(address, n_bytes, mmap.MADV_DONTNEED)


def map_file(address: int, n_bytes: int, descriptor: int, offset: int) -> None:
    """Replace pages by pages of a file, which cannot be written to. `offset` is a multiple of the page."""
    _map(address, n_bytes, mmap.MAP_SHARED, descriptor, offset, writable=False)


def make_read_only(address: int, n_bytes: int) -> None:
    """Let a write to these pages end the process, as it does in the mapping of a file."""
    _libc().mprotect(address, n_bytes, mmap.PROT_READ)


def lock(address: int, n_bytes: int) -> bool:
    """Keep these pages in RAM. Returns False if the system does not allow it (`ulimit -l`)."""
    return bool(_libc().mlock(address, n_bytes) == 0)


def expect_any_order(address: int, n_bytes: int) -> None:
    """Let page faults in these pages read nothing but what they need."""
    _libc().madvise(address, n_bytes, mmap.MADV_RANDOM)


def expect_soon(address: int, n_bytes: int) -> None:
    """Begin to read these pages of a file into the page cache, as far as they are not there."""
    _libc().madvise(address, n_bytes, mmap.MADV_WILLNEED)


def _map(address: int, n_bytes: int, flags: int, descriptor: int, offset: int, writable: bool) -> None:
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    if _libc().mmap(address, n_bytes, protection, flags | _MAP_FIXED, descriptor, offset) == _MAP_FAILED:
        raise CannotStreamError(f"memory cannot be mapped ({os.strerror(ctypes.get_errno())})")


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    pages: list[Any] = [ctypes.c_void_p, ctypes.c_size_t]
    libc.mmap.argtypes = [*pages, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.mmap.restype = ctypes.c_void_p
    libc.mprotect.argtypes = libc.madvise.argtypes = [*pages, ctypes.c_int]
    libc.mlock.argtypes = pages
    return libc

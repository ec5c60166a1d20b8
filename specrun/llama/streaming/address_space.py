"""This process's mappings of a model file, whose pages can be replaced in place, and memory to put there.

This has what only Linux can; all others ask here.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import struct
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

PAGE = mmap.PAGESIZE

_MAPS = Path("/proc/self/maps")
# From linux/mman.h and linux/memfd.h. Python's mmap lacks some of them, and others where it runs on another system.
_PROT_READ, _PROT_WRITE = 1, 2
_MAP_SHARED, _MAP_PRIVATE, _MAP_ANONYMOUS, _MAP_NORESERVE = 0x01, 0x02, 0x20, 0x4000
_MAP_FIXED = 0x10  # replaces whatever is there
_NOT_NEEDED, _HUGE, _NOT_HUGE = 4, 14, 15  # what madvise is told
_CLOSE_ON_EXEC = 1
_MAP_FAILED = ctypes.c_void_p(-1).value

_SYSTEM_CALLS = {"x86_64": 323, "aarch64": 282}  # userfaultfd
_EXEC_CLOSES, _USER_MODE_ONLY = 0o2000000, 1  # with the latter no rights are needed
# From linux/userfaultfd.h. What is registered with write protection, and never protected, works as it did.
_API, _REGISTER, _MOVE = 0xC018AA3F, 0xC020AA00, 0xC028AA05
_VERSION, _CAN_PROTECT, _CAN_MOVE = 0xAA, 1 << 0, 1 << 16
_PROTECTS = 1 << 1
_WAKES_NOBODY, _ALLOWS_HOLES = 1 << 0, 1 << 1


class CannotStreamError(Exception):
    """This system, file or model cannot be streamed; `str(error)` is the reason, as it stands after "because"."""


def check_system() -> None:
    """Raises CannotStreamError on a system that does not let a process arrange its memory in these ways."""
    if sys.platform != "linux":
        raise CannotStreamError("specrun streams weights on Linux only")


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
    _map(address, n_bytes, _MAP_PRIVATE | _MAP_ANONYMOUS)


def map_places(address: int, n_bytes: int) -> None:
    """Replace pages by empty ones that take memory only where something was written; they may be more than there is.

    None of them are huge pages, of which a write to one byte would take 2 MiB.
    """
    _map(address, n_bytes, _MAP_PRIVATE | _MAP_ANONYMOUS | _MAP_NORESERVE)
    libc().madvise(address, n_bytes, _NOT_HUGE)


def give_back(address: int, n_bytes: int) -> None:
    """Free the memory of pages of `map_places`, which are empty then."""
    libc().madvise(address, n_bytes, _NOT_NEEDED)


def map_file(address: int, n_bytes: int, descriptor: int, offset: int) -> None:
    """Replace pages by pages of a file, which cannot be written to. `offset` is a multiple of the page."""
    _map(address, n_bytes, _MAP_SHARED, descriptor, offset)


def _map(address: int, n_bytes: int, flags: int, descriptor: int = -1, offset: int = 0) -> None:
    protection = _PROT_READ if flags & _MAP_SHARED else _PROT_READ | _PROT_WRITE
    if libc().mmap(address, n_bytes, protection, flags | _MAP_FIXED, descriptor, offset) == _MAP_FAILED:
        raise CannotStreamError(f"memory cannot be mapped ({os.strerror(ctypes.get_errno())})")


def make_read_only(address: int, n_bytes: int) -> None:
    """Let a write to these pages end the process, as it does in the mapping of a file."""
    libc().mprotect(address, n_bytes, _PROT_READ)


def lock(address: int, n_bytes: int) -> bool:
    """Keep these pages in RAM. Returns False if the system does not allow it (`ulimit -l`)."""
    return bool(libc().mlock(address, n_bytes) == 0)


def expect_huge(address: int, n_bytes: int) -> None:
    """Let memory that was not used yet consist of huge pages, where the system has some."""
    libc().madvise(address, n_bytes, _HUGE)


@cache
def libc() -> ctypes.CDLL:
    """The system's C library. Its functions keep the number of their error for `ctypes.get_errno`."""
    library = ctypes.CDLL(None, use_errno=True)
    pages: list[Any] = [ctypes.c_void_p, ctypes.c_size_t]
    library.mmap.argtypes = [*pages, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    library.mmap.restype = ctypes.c_void_p
    library.mprotect.argtypes = library.madvise.argtypes = [*pages, ctypes.c_int]
    library.mlock.argtypes = pages
    library.posix_fallocate.argtypes = [ctypes.c_int, ctypes.c_long, ctypes.c_long]
    library.ioctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p]
    return library


class PageMover:
    """Moves pages to places that were registered, as far as the system can (Linux 6.8 or later). Close it after that.

    To clear and map a fresh page takes longer than to fill it: 1.9 against 0.25 microseconds on an AMD EPYC (Zen 5)
    virtual machine. Moving one takes 0.09. `mremap` also moves pages, but divides mappings, of which a process may have
    65,530.
    """

    def __init__(self) -> None:
        number = _SYSTEM_CALLS.get(platform.machine())
        self._descriptor = -1 if number is None else int(libc().syscall(number, _EXEC_CLOSES | _USER_MODE_ONLY))
        if not self._asked(_API, struct.pack("QQQ", _VERSION, _CAN_PROTECT | _CAN_MOVE, 0)):
            self.close()

    def register(self, address: int, n_bytes: int) -> None:
        """Allow moves to pages that belong to this process alone."""
        self._asked(_REGISTER, struct.pack("QQQQ", address, n_bytes, _PROTECTS, 0))  # if this fails, moves fail

    def move(self, source: int, target: int, n_bytes: int) -> bool:
        """Put the memory of pages in place of pages that take none. The former then take none.

        Returns False if that is impossible; some pages may have been moved.
        """
        return self._asked(_MOVE, struct.pack("QQQQq", target, source, n_bytes, _WAKES_NOBODY | _ALLOWS_HOLES, 0))

    def _asked(self, what: int, request: bytes) -> bool:
        """Whether the system did it."""
        if self._descriptor < 0:
            return False
        return bool(libc().ioctl(self._descriptor, what, ctypes.create_string_buffer(request, len(request))) == 0)

    def close(self) -> None:
        """Move nothing any more. Safe to call twice."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class SlotMemory:
    """Memory that is a file without a name, so that it can be mapped again and again. Close it after the ring.

    All of it is taken at once, and it is best made before anything else has filled memory: pages that were free
    together lie together, and reads into such memory are up to twice as fast as into pages from all over, because a
    disk takes a limited number of pieces in one request.

    Raises CannotStreamError if there is no such memory.
    """

    def __init__(self, n_bytes: int) -> None:
        self.descriptor = int(libc().memfd_create(b"specrun ring", _CLOSE_ON_EXEC))
        if self.descriptor < 0:
            raise CannotStreamError(f"this system has no memory without a name ({os.strerror(ctypes.get_errno())})")
        try:
            self._take(n_bytes)
        except BaseException:
            os.close(self.descriptor)
            raise

    def _take(self, n_bytes: int) -> None:
        try:
            os.ftruncate(self.descriptor, n_bytes)
            if error := libc().posix_fallocate(self.descriptor, 0, n_bytes):
                raise OSError(error, os.strerror(error))
            self.mapping = mmap.mmap(self.descriptor, n_bytes)
        except OSError as error:
            raise CannotStreamError(f"there is no memory for reading ahead ({error.strerror})") from error

    def __len__(self) -> int:
        return len(self.mapping)

    def resize(self, n_bytes: int) -> None:
        """Take more of the system's memory, or give back what lies after the first `n_bytes`.

        `mapping` is another object then. What is shown elsewhere stays, and must not be looked at after the end.
        Raises CannotStreamError if there is no such memory.
        """
        before = self.mapping
        self._take(n_bytes)
        with suppress(BufferError):  # see `close`
            before.close()

    def lock(self) -> bool:
        """Keep it in RAM. Returns False if the system does not allow it."""
        return lock(start_of(self.mapping), len(self))

    def close(self) -> None:
        """Give the memory back as soon as nothing shows it or looks at it any more. Safe to call twice."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
        with suppress(BufferError):  # requests of a ring still look at it; it goes when they go
            self.mapping.close()

"""Memory that disks read into fast, from where it is copied to where it is wanted.

A disk takes a limited number of pieces in a request, and memory that was taken page by page is in as many pieces as it
has pages: 1,024 in 4 MiB. Huge pages make that two. Slots cannot consist of huge pages, because most systems give none
to memory that is shown at several addresses.
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from pathlib import Path

from specrun.llama.streaming import address_space

_HUGE = 2 * 2**20  # bytes of a huge page; where they are larger, there is just no buffer
_SMAPS = Path("/proc/self/smaps")


class ReadBuffer:
    """A buffer of one thread. memory: huge pages; None if the system has none, and reading directly is as fast."""

    def __init__(self, n_bytes: int) -> None:
        self.memory: memoryview | None = None
        whole = -(-n_bytes // _HUGE) * _HUGE
        with suppress(OSError):  # no memory, or a system that never gives huge pages
            mapping = mmap.mmap(-1, whole + _HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            mapping.madvise(mmap.MADV_HUGEPAGE)
            start = -address_space.start_of(mapping) % _HUGE
            memory = memoryview(mapping)[start : start + whole]
            for page in range(0, whole, _HUGE):
                memory[page] = 0  # takes the memory
            if _is_huge(address_space.start_of(mapping) + start, _SMAPS):
                self.memory = memory[:n_bytes]


def _is_huge(address: int, smaps: Path) -> bool:
    """Whether the memory in use around an address consists of huge pages. smaps: describes all mappings."""
    found = False
    in_use = 0
    for line in smaps.read_text(errors="replace").splitlines():
        name, _, rest = line.partition(" ")
        if "-" in name:
            if found:
                break
            start, end = (int(bound, 16) for bound in name.split("-"))
            found = start <= address < end
        elif found and name == "Rss:":
            in_use = int(rest.split()[0])
        elif found and name == "AnonHugePages:":
            return int(rest.split()[0]) >= in_use > 0
    return False

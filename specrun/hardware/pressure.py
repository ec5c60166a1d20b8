"""Whether the system runs short of memory while this process holds weights in it."""

from __future__ import annotations

import time
from collections.abc import Callable

from specrun.hardware.memory import Memory
from specrun.hardware.residency import margin_bytes

# Seconds between two looks, of which one takes a millisecond or two. With one a second a process under a cap of 700 MB
# was ended by the system while another took 80 MB a second.
_INTERVAL = 0.25
_SHORT = 0.5  # share of the margin below which memory is short, so that what the plan counted wrongly is no reason yet


class Pressure:
    """What is free now, compared with the margin that the plan of what stays in memory left.

    margin: bytes that should be free. free: says how many are, where the page cache counts as free. clock: seconds.
    """

    def __init__(self, margin: int, free: Callable[[], int], clock: Callable[[], float] = time.monotonic) -> None:
        self._margin = margin
        self._free = free
        self._clock = clock
        self._looked = clock()

    @classmethod
    def watch(cls) -> Pressure:
        """The margin of a plan that is made now, by the limits of this machine and of this process's cgroups."""
        return cls(margin_bytes(_available()), _available)

    def shortage(self) -> int:
        """Bytes that must be given back until the margin is free again; 0 unless less than half of it is.

        Looks at most four times a second, and is 0 in between.
        """
        now = self._clock()
        if now - self._looked < _INTERVAL:
            return 0
        self._looked = now
        free = self._free()
        return self._margin - free if free < _SHORT * self._margin else 0


def _available() -> int:
    return Memory.read().available_bytes

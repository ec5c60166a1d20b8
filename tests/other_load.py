"""Cores that other programs hold, as if they did."""

from __future__ import annotations

from types import ModuleType

import pytest

from specrun.hardware.cpu import LoadWatch, OtherLoad


class Busy:
    """Of two cores, how many others hold."""

    cores = 0.0


def others_hold(cores: float, rooms: tuple[ModuleType, ...], monkeypatch: pytest.MonkeyPatch) -> Busy:
    """What each watch in these modules sees at once; `cores` of the result can be changed."""
    busy = Busy()
    busy.cores = cores

    class Watch(LoadWatch):
        seconds = 1.0  # type: ignore[assignment]

        def so_far(self) -> OtherLoad:
            return OtherLoad(busy.cores, 2, ("make (12)",))

    for room in rooms:
        monkeypatch.setattr(room, "LoadWatch", Watch)
    return busy

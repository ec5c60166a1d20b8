"""Pages move with what they hold, and where the system cannot move them, that is said."""

from __future__ import annotations

import mmap
import platform

import pytest

from specrun.llama.streaming import address_space
from specrun.llama.streaming.address_space import PAGE, PageMover


def test_memory_moves_with_what_it_holds() -> None:
    memory = mmap.mmap(-1, 16 * PAGE)
    address = address_space.start_of(memory)
    address_space.map_places(address, 16 * PAGE)
    mover = PageMover()
    try:
        mover.register(address, 16 * PAGE)
        memory[: 4 * PAGE] = b"a" * 4 * PAGE
        memory[12 * PAGE :] = b"b" * 4 * PAGE
        if not mover.move(address, address + 6 * PAGE, 4 * PAGE):
            pytest.skip("this system moves no pages")
        assert memory[6 * PAGE : 10 * PAGE] == b"a" * 4 * PAGE
        assert memory[: 6 * PAGE] == bytes(6 * PAGE)
        assert not mover.move(address + 6 * PAGE, address + 12 * PAGE, 4 * PAGE), "the place is taken"
        assert memory[6 * PAGE :] == b"a" * 4 * PAGE + bytes(2 * PAGE) + b"b" * 4 * PAGE
    finally:
        mover.close()
    assert not mover.move(address, address + 4 * PAGE, PAGE)


def test_where_pages_cannot_be_moved_nothing_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "unknown")
    mover = PageMover()
    mover.register(0, PAGE)
    assert not mover.move(0, PAGE, PAGE)
    monkeypatch.undo()
    monkeypatch.setattr(address_space, "_CAN_MOVE", 1 << 62)  # an older kernel
    mover = PageMover()
    assert not mover.move(0, PAGE, PAGE)
    mover.close()

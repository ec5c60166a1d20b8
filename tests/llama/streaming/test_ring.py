"""The ring alone: every layer is whole when it is waited for, in any order of reads, releases and ends of passes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from specrun.errors import LlamaError
from specrun.llama.streaming.ring import Ring
from specrun.llama.streaming.weight_file import Request, WeightFile

PAGE = 4096
PARTS = 3  # of every layer


class SlowFile(WeightFile):
    """A file whose reads take a random time."""

    def __init__(self, path: Path, seed: int) -> None:
        super().__init__(path)
        self.rng = np.random.default_rng(seed)
        self.offsets: list[int] = []

    def read(self, into: memoryview, offset: int) -> int:
        self.offsets.append(offset)
        time.sleep(float(self.rng.random()) * 1e-3)
        return super().read(into, offset)


class Layers:
    """A file of layers, each filled with its own byte, and the slots that they take turns in."""

    def __init__(self, folder: Path, n_layers: int, n_slots: int, seed: int = 0) -> None:
        path = folder / "layers"
        path.write_bytes(b"".join(bytes([layer + 1]) * PARTS * PAGE for layer in range(n_layers)))
        self.file = SlowFile(path, seed)
        self.memory = np.zeros((n_slots, PARTS * PAGE), np.uint8)
        self.n_layers, self.n_slots = n_layers, n_slots

    @contextmanager
    def ring(self, n_readers: int = 2, reads_ahead: bool = True) -> Iterator[Ring]:
        self.file.is_direct = False
        requests = [
            [
                Request(
                    self.file,
                    self.memory[layer % self.n_slots].data[part * PAGE : (part + 1) * PAGE],
                    (layer * PARTS + part) * PAGE,
                )
                for part in range(PARTS)
            ]
            for layer in range(self.n_layers)
        ]
        ring = Ring(requests, self.n_slots, n_readers)
        try:
            if reads_ahead:
                ring.read_ahead()
            yield ring
        finally:
            ring.close()
            self.file.close()

    def holds(self, layer: int) -> bool:
        return bool((self.memory[layer % self.n_slots] == layer + 1).all())


@pytest.fixture(autouse=True)
def buffered(monkeypatch: pytest.MonkeyPatch) -> None:
    """numpy's memory does not begin at a page, as O_DIRECT would need."""
    monkeypatch.setattr("specrun.llama.streaming.weight_file.os.O_DIRECT", 0)


@pytest.mark.parametrize(("n_layers", "n_slots", "n_readers"), [(5, 2, 2), (6, 2, 1), (22, 3, 2), (7, 3, 4), (9, 4, 2)])
def test_a_layer_is_whole_from_when_it_was_waited_for_to_its_release(
    tmp_path: Path, n_layers: int, n_slots: int, n_readers: int
) -> None:
    layers = Layers(tmp_path, n_layers, n_slots)
    rng = np.random.default_rng(1)
    with layers.ring(n_readers) as ring:
        for _ in range(8):
            ring.begin_pass()
            for layer in range(n_layers):
                ring.wait_for(layer)
                assert layers.holds(layer)
                time.sleep(float(rng.random()) * 1e-3)
                assert layers.holds(layer)
                ring.release_through(layer)


def test_layers_are_read_in_the_order_in_which_they_are_needed(tmp_path: Path) -> None:
    layers = Layers(tmp_path, 7, 3)
    with layers.ring(n_readers=1) as ring:
        ring.begin_pass()
        for layer in (2, 4, 6):
            for awaited in range(layer - 1, layer + 1):
                ring.wait_for(awaited)
            ring.release_through(layer)
    n = 7 * PARTS
    assert layers.file.offsets[:n] == [part * PAGE for part in range(n)]


@pytest.mark.parametrize("n_slots", [2, 3])
def test_passes_that_end_early_are_begun_again(tmp_path: Path, n_slots: int) -> None:
    layers = Layers(tmp_path, 7, n_slots)
    rng = np.random.default_rng(2)
    with layers.ring() as ring:
        for _ in range(20):
            ring.begin_pass()
            n_computed = int(rng.integers(0, 8))
            for layer in range(n_computed):
                ring.wait_for(layer)
                assert layers.holds(layer)
                if layer < n_computed - 1 or rng.random() < 0.5:
                    ring.release_through(layer)


def test_before_it_reads_ahead_only_the_awaited_layer_is_there(tmp_path: Path) -> None:
    layers = Layers(tmp_path, 5, 2)
    with layers.ring(reads_ahead=False) as ring:
        for _ in range(2):
            ring.begin_pass()
            for layer in range(5):
                assert not any(layers.holds(other) for other in range(5))
                ring.wait_for(layer)
                assert [other for other in range(5) if layers.holds(other)] == [layer]
                ring.release_through(layer)


def test_the_first_layers_of_the_next_pass_are_read_between_passes(tmp_path: Path) -> None:
    layers = Layers(tmp_path, 6, 2)
    with layers.ring() as ring:
        ring.begin_pass()
        for layer in range(6):
            ring.wait_for(layer)
            ring.release_through(layer)
        while ring.bytes_read < 8 * PARTS * PAGE:
            time.sleep(1e-3)
        assert layers.holds(0)
        assert layers.holds(1)


def test_layers_out_of_order_are_an_error_instead_of_a_hang(tmp_path: Path) -> None:
    with Layers(tmp_path, 6, 2).ring() as ring:
        ring.begin_pass()
        with pytest.raises(LlamaError, match="unknown order"):
            ring.wait_for(2)  # layer 0 is in its slot


def test_a_read_error_wakes_whoever_waits_and_the_next_pass_tries_again(tmp_path: Path) -> None:
    layers = Layers(tmp_path, 6, 2)
    failing = threading.Event()
    read = layers.file.read

    def now_and_then(into: memoryview, offset: int) -> int:
        if failing.is_set() and offset >= 3 * PARTS * PAGE:
            raise LlamaError("a read error")
        return read(into, offset)

    layers.file.read = now_and_then  # type: ignore[method-assign]

    def one_pass(ring: Ring) -> None:
        ring.begin_pass()
        for layer in range(6):
            ring.wait_for(layer)
            assert layers.holds(layer)
            ring.release_through(layer)

    with layers.ring() as ring:
        one_pass(ring)
        failing.set()
        for _ in range(2):
            with pytest.raises(LlamaError, match="a read error"):
                one_pass(ring)
        failing.clear()
        one_pass(ring)


def test_closing_ends_the_threads(tmp_path: Path) -> None:
    n_threads = threading.active_count()
    with Layers(tmp_path, 6, 2).ring(n_readers=3) as ring:
        assert threading.active_count() == n_threads + 3
    assert threading.active_count() == n_threads
    ring.close()

"""Passes through the ring give the bits of passes through llama.cpp's mapping, and errors end in one line."""

from __future__ import annotations

import gc
import mmap
import os
import shutil
import signal
import threading
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import psutil
import pytest

from specrun.catalog.layer_states import n_bytes
from specrun.errors import LlamaError
from specrun.hardware.fit import plan_residency
from specrun.hardware.memory import Pressure
from specrun.llama import LlamaModel, TargetContext
from specrun.llama.batch import committed_tokens
from specrun.llama.context import LlamaContext
from specrun.llama.streaming import address_space, weight_file
from specrun.llama.streaming.address_space import CannotStreamError, SlotMemory, mappings_of
from specrun.llama.streaming.ring import Ring
from specrun.llama.streaming.streamed_weights import StreamedWeights
from specrun.llama.streaming.weight_file import HeldPages
from specrun.speculation.tree import TokenTree
from tests.models import edited, random_gemma3, random_llama, random_mamba, random_qwen3_moe, split
from tests.streams import CALM, CONFIG, PROMPT, context, planned, streamed_context, written


@pytest.mark.slow
@pytest.mark.parametrize(("n_resident", "n_slots"), [(0, 2), (1, 2), (3, 2), (0, 3), (1, 3), (0, 4)])
def test_every_pass_has_the_same_bits(model: Path, expected: list[bytes], n_resident: int, n_slots: int) -> None:
    with streamed_context(model, n_resident, n_slots) as streamed:
        assert streamed.weights
        assert streamed.weights.residency.mode == "ring"
        assert written(streamed) == expected


@pytest.mark.slow
def test_several_passes_in_one_call_are_the_same(model: Path) -> None:
    settings = replace(CONFIG.settings, ubatch_size=CONFIG.n_batch, batch_size=2 * CONFIG.n_batch)
    config = replace(CONFIG, settings=settings)
    assert config.n_call == 2 * CONFIG.n_batch
    with context(model, config) as plain:
        expected = written(plain)
    with streamed_context(model, 1, 2, config) as streamed:
        assert written(streamed) == expected


@pytest.mark.slow
@pytest.mark.parametrize("n_readers", [1, 4])
def test_layers_of_several_requests_are_the_same(
    model: Path, expected: list[bytes], monkeypatch: pytest.MonkeyPatch, n_readers: int
) -> None:
    monkeypatch.setattr(HeldPages, "n_readers", n_readers)
    monkeypatch.setattr(HeldPages, "request_bytes", 4096)
    with streamed_context(model, 0, 3) as streamed:
        assert written(streamed) == expected


@pytest.mark.slow
@pytest.mark.parametrize(("n_resident", "n_before", "n_after"), [(3, 2, 4), (1, 4, 2)])
def test_memory_is_given_back_before_more_is_taken(
    model: Path, monkeypatch: pytest.MonkeyPatch, n_resident: int, n_before: int, n_after: int
) -> None:
    """Else both together exceed what there is, and the system ends the process."""
    pages = planned(model).pages
    with streamed_context(model, n_resident, n_before) as streamed:
        weights = streamed.weights
        assert weights
        n_held, taken = held(weights), list[int]()
        other = plan_residency(pages.layer_bytes, n_bytes(pages.others), n_held, n_after)
        assert other
        resize = SlotMemory.resize

        def counted(slots: SlotMemory, n_bytes: int) -> None:
            taken.append(n_bytes + sum(part.n_bytes for part in weights._memory._held))
            resize(slots, n_bytes)

        monkeypatch.setattr(SlotMemory, "resize", counted)
        weights._arrange(other)
        assert len(taken) == 1
        assert taken[0] <= n_held


def held(weights: StreamedWeights) -> int:
    """Memory of resident weights and slots."""
    residency = weights.residency
    return residency.resident_bytes + residency.n_slots * residency.slot_bytes


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["f32", "split", "gemma3", "renamed", "line break"]
)  # gemma3: tied output, sliding windows
def test_other_files_are_the_same(tmp_path: Path, model: Path, kind: str) -> None:
    if kind == "f32":
        path = random_llama(tmp_path / "m.gguf", n_layer=4, weight_type=gguf.GGMLQuantizationType.F32)
    elif kind == "split":
        path = split(tmp_path / "m.gguf", model, 5)
    elif kind == "gemma3":
        path = random_gemma3(tmp_path / "m.gguf", window=16)
    elif kind == "renamed":
        # Other metadata move the weights to other places within their pages.
        path = edited(tmp_path / "a name.gguf", model, {"general.name": "x" * 777})
    else:
        path = tmp_path / "line\nbreak.gguf"
        shutil.copy(model, path)
    with context(path) as plain:
        expected = written(plain)
    with streamed_context(path) as streamed:
        assert written(streamed) == expected


@pytest.mark.slow
def test_a_link_to_the_file_is_followed(tmp_path: Path, model: Path) -> None:
    link = tmp_path / "link.gguf"
    link.symlink_to(model)
    with streamed_context(link) as streamed:
        assert streamed.weights
        assert streamed.weights.residency.mode == "ring"


@pytest.mark.slow
def test_buffered_reads_are_the_same(model: Path, expected: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the file system refuses O_DIRECT."""
    opened = os.open

    def refusing(path: Path, flags: int, *rest: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return opened(path, flags, *rest)

    monkeypatch.setattr(os, "open", refusing)
    with streamed_context(model) as streamed:
        assert written(streamed) == expected


@pytest.mark.slow
@pytest.mark.parametrize("is_huge", [True, False])
def test_reads_through_a_buffer_and_without_one_are_the_same(
    model: Path, expected: list[bytes], monkeypatch: pytest.MonkeyPatch, is_huge: bool
) -> None:
    monkeypatch.setattr(weight_file, "huge_pages", lambda n: memoryview(mmap.mmap(-1, n)) if is_huge else None)
    with streamed_context(model, 2) as streamed:
        assert written(streamed) == expected


@pytest.mark.slow
def test_without_the_right_to_lock_memory_it_works_all_the_same(
    model: Path, expected: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(address_space, "lock", lambda *_: False)
    with streamed_context(model, 2) as streamed:
        assert streamed.weights
        assert not streamed.weights.residency.locked
        assert written(streamed) == expected


@pytest.mark.slow
def test_every_pass_reads_the_streamed_layers_once(model: Path) -> None:
    with streamed_context(model, n_resident=2) as streamed:
        weights = streamed.weights
        assert weights
        target = TargetContext(streamed)
        target.set_prompt([1, 2, 3])
        passes = 4
        before = weights.bytes_read
        for _ in range(passes):
            target.score(TokenTree.root_only(3))
            target.drop_tree()
        read = weights.bytes_read - before
        # The slots may have been empty at first, and may be full in the end.
        residency = weights.residency
        assert abs(read - passes * residency.streamed_bytes) <= residency.n_slots * residency.slot_bytes
        assert weights.wait_seconds > 0


@pytest.mark.slow
def test_everything_is_given_back(model: Path) -> None:
    process = psutil.Process()
    with LlamaModel(model):
        mapped = mappings_of(model)
    for _ in range(3):
        with streamed_context(model) as streamed:
            # Hardly a page of llama.cpp's mapping is left: all weights lie elsewhere.
            assert sum(one.n_bytes for one in mappings_of(model)) < sum(one.n_bytes for one in mapped) / 4
            TargetContext(streamed).set_prompt(PROMPT)
        gc.collect()
        counts = process.num_fds(), threading.active_count(), len(process.memory_maps(grouped=False))
    for _ in range(3):
        with streamed_context(model):
            pass
        gc.collect()
        after = process.num_fds(), threading.active_count(), len(process.memory_maps(grouped=False))
        assert after[:2] == counts[:2]
        assert after[2] <= counts[2] + 4
    assert not mappings_of(model)


@pytest.mark.slow
def test_closing_restores_the_mapping(model: Path, expected: list[bytes]) -> None:
    plans = planned(model)
    with LlamaModel(model) as loaded:
        before = mappings_of(model)
        with StreamedWeights(plans.pages, plans.plan, CALM) as weights:
            weights.stream()
            assert mappings_of(model) != before
        assert mappings_of(model) == before
        with LlamaContext(loaded, CONFIG) as plain:
            assert written(plain) == expected


@pytest.mark.slow
def test_an_array_over_the_file_that_python_has_yet_to_free_is_not_in_the_way(model: Path) -> None:
    gc.disable()
    try:
        cycle: list[object] = [np.memmap(model, np.uint8, "r")]
        cycle.append(cycle)
        del cycle
        assert mappings_of(model)
        with streamed_context(model, 1) as streamed:
            assert streamed.weights
    finally:
        gc.enable()


@pytest.mark.slow
def test_a_file_that_is_cut_short_in_use_ends_in_one_line(tmp_path: Path, model: Path) -> None:
    path = tmp_path / "m.gguf"
    shutil.copy(model, path)
    with streamed_context(path) as streamed:
        target = TargetContext(streamed)
        target.set_prompt(PROMPT[:20])
        os.truncate(path, path.stat().st_size // 2)
        # A pass needs all layers, and only a few were read ahead.
        with pytest.raises(LlamaError, match=r"m\.gguf was cut short") as failed:
            target.score(TokenTree.root_only(target.tokens[-1]))
        assert "\n" not in str(failed.value)


@pytest.mark.slow
def test_after_a_failed_pass_the_next_ones_are_right(
    model: Path, expected: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_for = Ring.wait_for
    with streamed_context(model, 1) as streamed:
        for error in (LlamaError("a read error"), KeyboardInterrupt()):
            for layer in range(5):

                def failing(ring: Ring, place: int, layer: int = layer, error: BaseException = error) -> None:
                    if place == layer:
                        raise error
                    wait_for(ring, place)

                target = TargetContext(streamed)
                monkeypatch.setattr(Ring, "wait_for", failing)
                with pytest.raises(type(error)):
                    target.set_prompt(PROMPT)
                monkeypatch.setattr(Ring, "wait_for", wait_for)
                target.reset()
        assert written(streamed) == expected


@pytest.mark.slow
def test_ctrl_c_in_the_middle_of_a_pass(model: Path, expected: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for = Ring.wait_for
    with streamed_context(model) as streamed:
        target = TargetContext(streamed)
        target.set_prompt(PROMPT)

        def pressed(ring: Ring, place: int) -> None:
            if place == 3:
                signal.raise_signal(signal.SIGINT)
            wait_for(ring, place)

        monkeypatch.setattr(Ring, "wait_for", pressed)
        with pytest.raises(KeyboardInterrupt):
            target.score(TokenTree.root_only(target.tokens[-1]))
        monkeypatch.setattr(Ring, "wait_for", wait_for)
        target.reset()
        assert written(streamed) == expected


class ShortOfMemory(Pressure):
    """Memory that becomes short before the passes of these numbers, by so many bytes."""

    def __init__(self, shortages: dict[int, int]) -> None:
        super().__init__(0, lambda: 0)
        self.n_passes = 0
        self.shortages = shortages

    def shortage(self) -> int:
        self.n_passes += 1
        return self.shortages.get(self.n_passes, 0)


@pytest.mark.slow
@pytest.mark.parametrize("n_slots", [2, 3])
def test_layers_are_given_back_between_passes_and_the_bits_stay_the_same(
    model: Path, expected: list[bytes], n_slots: int
) -> None:
    layer = max(planned(model).pages.layer_bytes)
    pressure = ShortOfMemory({4: 1, 7: layer, 9: 10 * layer, 11: layer})
    with streamed_context(model, 3, n_slots, pressure=pressure) as streamed:
        assert streamed.weights
        before = streamed.weights.residency
        assert written(streamed) == expected
        after = streamed.weights.residency
        assert pressure.n_passes > 11
        everything = planned(model, 0, n_slots).plan
        assert (after.resident_bytes, after.streamed_bytes) == (everything.resident_bytes, everything.streamed_bytes)
        given_back = before.resident_bytes - after.resident_bytes
        assert given_back > 2 * layer
        assert abs(after.given_back_bytes - given_back) <= n_slots * (after.slot_bytes - before.slot_bytes)
        assert written(streamed) == expected


@pytest.mark.slow
def test_what_was_read_is_counted_over_all_rings(model: Path) -> None:
    layer = max(planned(model).pages.layer_bytes)
    with streamed_context(model, 3, pressure=ShortOfMemory({6: layer})) as streamed:
        weights = streamed.weights
        assert weights
        read, waited = weights.bytes_read, weights.wait_seconds
        target = TargetContext(streamed)
        target.set_prompt([1, 2, 3])
        for _ in range(6):
            target.score(TokenTree.root_only(3))
            target.drop_tree()
            assert weights.bytes_read >= read
            assert weights.wait_seconds >= waited
            read, waited = weights.bytes_read, weights.wait_seconds
        assert weights.residency.given_back_bytes >= layer


@pytest.mark.slow
def test_memory_that_cannot_be_given_back_is_one_line_in_every_pass(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with streamed_context(model, 3, pressure=ShortOfMemory({3: 1})) as streamed:
        target = TargetContext(streamed)
        target.set_prompt([1, 2, 3])

        def refused(*_: object) -> None:
            raise CannotStreamError("memory cannot be mapped (Cannot allocate memory)")

        with monkeypatch.context() as patch:
            patch.setattr(address_space, "map_file", refused)
            with pytest.raises(LlamaError, match="cannot be given back: memory cannot be mapped"):
                target.score(TokenTree.root_only(3))
        with pytest.raises(LlamaError, match="load the model again"):
            target.score(TokenTree.root_only(3))


@pytest.mark.slow
def test_closing_while_readers_read(model: Path) -> None:
    for _ in range(5):
        with streamed_context(model, n_slots=3):
            pass  # the readers have just begun to read ahead


@pytest.mark.slow
def test_a_recurrent_model_is_the_same(tmp_path: Path) -> None:
    path = random_mamba(tmp_path / "m.gguf", n_layer=5)

    def states(context: LlamaContext) -> list[bytes]:
        batches = [committed_tokens([i, i + 1], 2 * i, 1, n_outputs=2) for i in range(5)]
        return [context.decode(batch).tobytes() for batch in batches]

    with context(path) as plain:
        expected = states(plain)
    with streamed_context(path) as streamed:
        assert states(streamed) == expected


@pytest.mark.slow
def test_a_mixture_has_layers_too(tmp_path: Path) -> None:
    """It reads all experts, so it is not streamed by default; but the bits are right."""
    path = random_qwen3_moe(tmp_path / "m.gguf", n_layer=4)
    with context(path) as plain:
        expected = written(plain)
    with streamed_context(path) as streamed:
        assert written(streamed) == expected

"""What cannot be streamed is refused with a reason, and llama.cpp's own mapping is as it was."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from specrun.errors import LlamaError
from specrun.llama import LlamaModel, library
from specrun.llama.context import LlamaContext
from specrun.llama.streaming import gate, self_check
from specrun.llama.streaming.address_space import CannotStreamError
from specrun.llama.streaming.ring import Ring
from specrun.llama.streaming.streamed_weights import StreamedWeights
from specrun.llama.streaming.weight_file import WeightFile
from specrun.llama_settings import LlamaSettings
from tests.streams import CALM, CONFIG, planned, streamed_context, written


def refusal(path: Path, expected: list[bytes]) -> str:
    """Why the model cannot be streamed. Whatever was tried, its logits are then right without."""
    with LlamaModel(path) as loaded:
        with pytest.raises(CannotStreamError) as refused:
            stream(loaded, path)
        with LlamaContext(loaded, CONFIG) as plain:
            assert written(plain) == expected
    return str(refused.value)


def stream(loaded: LlamaModel, path: Path) -> None:
    plans = planned(path)
    with (
        StreamedWeights(plans.pages, plans.plan, CALM) as weights,
        LlamaContext(loaded, CONFIG, weights) as made,
    ):
        self_check.stream(made, weights)


@pytest.mark.slow
def test_wrong_bytes_are_found(model: Path, expected: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    read = WeightFile.read

    def wrong(file: WeightFile, into: memoryview, offset: int) -> int:
        n_read = read(file, into, offset)
        into[2000] ^= 0x40
        return n_read

    monkeypatch.setattr(WeightFile, "read", wrong)
    assert refusal(model, expected) == "this llama.cpp gave other logits with streamed weights"


@pytest.mark.slow
def test_weights_that_are_used_outside_of_their_layer_are_found(
    model: Path, expected: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_for = Ring.wait_for

    def too_early(ring: Ring, place: int) -> None:
        if place != 3:
            wait_for(ring, place)

    monkeypatch.setattr(Ring, "wait_for", too_early)
    assert refusal(model, expected) == "this llama.cpp gave other logits with streamed weights"


@pytest.mark.slow
def test_read_errors_while_loading_are_one_line(
    model: Path, expected: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> int:
        raise LlamaError("a read error")

    monkeypatch.setattr(WeightFile, "read", failing)
    assert refusal(model, expected) == "reading ahead failed (a read error)"


@pytest.mark.slow
def test_a_model_whose_layers_have_no_outputs_is_refused(
    model: Path, expected: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "_LAYER_OUTPUT", b"not in this graph")
    assert refusal(model, expected) == "llama.cpp does not compute this model layer by layer"


@pytest.mark.slow
def test_a_file_that_two_models_use_is_refused(model: Path) -> None:
    with LlamaModel(model), LlamaModel(model) as second, pytest.raises(CannotStreamError, match="another model"):
        stream(second, model)


@pytest.mark.slow
def test_a_file_that_was_replaced_is_refused(tmp_path: Path, model: Path) -> None:
    path = tmp_path / "m.gguf"
    shutil.copy(model, path)
    plans = planned(path)
    with LlamaModel(path):
        other = tmp_path / "other.gguf"
        shutil.copy(model, other)
        other.replace(path)
        with pytest.raises(CannotStreamError, match="did not map"):
            StreamedWeights(plans.pages, plans.plan, CALM)


@pytest.mark.slow
def test_a_file_that_was_written_to_is_refused(tmp_path: Path, model: Path) -> None:
    path = tmp_path / "m.gguf"
    shutil.copy(model, path)
    plans = planned(path)
    with LlamaModel(path), StreamedWeights(plans.pages, plans.plan, CALM) as weights:
        os.utime(path, ns=(0, 0))
        with pytest.raises(CannotStreamError, match="was changed"):
            weights.stream()


@pytest.mark.slow
def test_weights_that_were_read_into_memory_are_refused(model: Path) -> None:
    with (
        LlamaModel(model, LlamaSettings(load_mode="none")) as loaded,
        pytest.raises(CannotStreamError, match="not map"),
    ):
        stream(loaded, model)


def n_passes_of_check(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Counts the passes that the check makes while a model is loaded."""
    logits, count = self_check._logits, 0

    def counted(made: LlamaContext) -> object:
        nonlocal count
        count += 1
        return logits(made)

    monkeypatch.setattr(self_check, "_logits", counted)

    def of(path: Path, n_resident: int = 0, n_slots: int = 2) -> int:
        nonlocal count
        count = 0
        with streamed_context(path, n_resident, n_slots):
            return count

    return of


@pytest.mark.slow
def test_only_the_first_load_of_a_file_is_checked(
    tmp_path: Path, model: Path, expected: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    n_passes = n_passes_of_check(monkeypatch)
    path = tmp_path / "m.gguf"
    shutil.copy(model, path)
    assert n_passes(path) == 2
    assert n_passes(path) == 0
    assert n_passes(path, n_resident=3) == 0, "which layers stay makes no difference"
    with streamed_context(path, 1) as streamed:
        assert written(streamed) == expected
    assert n_passes(path, n_slots=3) == 2
    shutil.copy(model, tmp_path / "other.gguf")
    assert n_passes(tmp_path / "other.gguf") == 0, "the same content elsewhere"
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\1")
    assert n_passes(path) == 2, "another content"
    assert n_passes(path) == 0
    monkeypatch.setattr(library, "build", lambda: "another llama.cpp")
    assert n_passes(path) == 2


@pytest.mark.slow
def test_a_result_that_cannot_be_read_or_written_is_only_checked_again(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_passes = n_passes_of_check(monkeypatch)
    assert n_passes(model) == 2
    (kept,) = (tmp_path / "data" / "facts").glob("*.json")
    kept.write_text('{"of": 1')
    assert n_passes(model) == 2
    assert n_passes(model) == 0
    monkeypatch.setenv("SPECRUN_DATA_DIR", str(model))  # a file, in which no folder can be made
    assert n_passes(model) == 2
    assert n_passes(model) == 2


@pytest.mark.slow
def test_other_bits_are_tried_again(model: Path, expected: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Ring, "wait_for", lambda *_: None)
        for _ in range(2):
            assert refusal(model, expected) == "this llama.cpp gave other logits with streamed weights"
    with streamed_context(model) as streamed:
        assert written(streamed) == expected


@pytest.mark.slow
def test_another_order_of_layers_is_found_only_once(
    model: Path, expected: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(gate, "_LAYER_OUTPUT", b"not in this graph")
        assert refusal(model, expected) == "llama.cpp does not compute this model layer by layer"
    monkeypatch.setattr(self_check, "_logits", lambda _: pytest.fail("computed again"))
    assert refusal(model, expected) == "llama.cpp does not compute this model layer by layer"

"""From which size on passes take weights as they are in the file: what is measured, kept and followed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from specrun import kept_facts
from specrun.catalog import embedded
from specrun.catalog.gguf_file import GgufFile
from specrun.errors import LlamaError
from specrun.llama import devices, library, tiled_kernels
from specrun.llama_settings import LlamaSettings
from specrun.loading import default_settings, kernel_trials
from specrun.loading.default_settings import with_defaults
from specrun.loading.kernel_trials import SIZES, file_order_from, smallest
from specrun.loading.placing import plan_load
from specrun.loading.run_options import RunOptions
from specrun.locations import data_dir
from specrun.speculation.method import OFF
from tests.models import wide_target


@pytest.fixture
def k_quant(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tiled_kernels.platform, "machine", lambda: "x86_64")
    return wide_target(made, "q4_k_m")


def kept() -> list[Path]:
    return sorted((data_dir() / "orders").glob("*.json"))


def keep(monkeypatch: pytest.MonkeyPatch, least: int) -> None:
    """As if every trial ended so."""
    ms = {"reordered": dict.fromkeys(SIZES, 1.0), "file": {n: 0.5 if n >= least else 2.0 for n in SIZES}}
    monkeypatch.setattr(kernel_trials, "orders_ms", lambda _kind, _threads: ms)


def test_the_size_is_the_one_from_which_on_the_file_is_clearly_faster() -> None:
    reordered = dict.fromkeys(SIZES, 1.0)
    assert smallest({"reordered": reordered, "file": dict.fromkeys(SIZES, 0.99)}) > SIZES[-1]
    assert smallest({"reordered": reordered, "file": dict.fromkeys(SIZES, 0.9)}) == SIZES[0]
    assert smallest({"reordered": reordered, "file": {n: 0.9 if n != 16 else 1.0 for n in SIZES}}) == 24


@pytest.mark.reordered
def test_a_trial_is_made_once_and_its_result_is_kept(k_quant: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    n_trials = []
    keep(monkeypatch, 24)
    measure = kernel_trials.orders_ms
    monkeypatch.setattr(kernel_trials, "orders_ms", lambda *given: n_trials.append(1) or measure(*given))
    file = GgufFile.read(k_quant)
    assert [file_order_from(file, None), file_order_from(file, None)] == [24, 24]
    assert len(n_trials) == 1
    (path,) = kept()
    kept_facts.write("orders", kept_facts.read(path).of, SIZES[-1] + 1)
    assert file_order_from(file, None) is None
    path.write_text("{")
    assert file_order_from(file, None) == 24, "a damaged result is measured again"
    assert file_order_from(file, 1) == 24
    assert len(n_trials) == 3, "another number of threads is another trial"


@pytest.mark.parametrize("error", [LlamaError("no such kernels"), OSError("the disk is full")])
def test_what_cannot_be_measured_is_unknown_and_not_remembered(
    k_quant: Path, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(kernel_trials, "orders_ms", fail)
    assert file_order_from(GgufFile.read(k_quant), None) is None
    assert kept() == []


@pytest.mark.reordered
def test_another_machine_or_llama_cpp_is_another_trial(k_quant: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = GgufFile.read(k_quant)
    keep(monkeypatch, 16)
    assert file_order_from(file, None) == 16
    keep(monkeypatch, 24)
    assert file_order_from(file, None) == 16
    with monkeypatch.context() as patched:
        patched.setattr(library, "build", lambda: "another build")
        assert file_order_from(file, None) == 24
    here = devices.this_machine()
    monkeypatch.setattr(devices, "this_machine", lambda: replace(here, cpu=replace(here.cpu, name="another")))
    keep(monkeypatch, 32)
    assert file_order_from(file, None) == 32


@pytest.mark.reordered
def test_a_real_trial_times_both_orders(k_quant: Path) -> None:
    file = GgufFile.read(k_quant)
    kind = next(iter(file.types))
    try:
        ms = kernel_trials.orders_ms(kind, 1)
    except LlamaError as error:
        pytest.skip(str(error))
    assert {name: sorted(found) for name, found in ms.items()} == dict.fromkeys(("reordered", "file"), sorted(SIZES))
    assert min(min(found.values()) for found in ms.values()) > 0


def test_a_type_without_tiled_kernels_needs_no_trial() -> None:
    assert file_order_from(GgufFile.read(embedded.TARGET), None) is None
    assert not kept()


def defaulted(options: RunOptions) -> LlamaSettings:
    return with_defaults(plan_load(options)).options.settings


@pytest.mark.reordered
def test_an_untuned_target_in_ram_follows_the_trial(k_quant: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = RunOptions(k_quant, None, (OFF.plan(),))
    keep(monkeypatch, 24)
    assert defaulted(options).file_order_from == 24
    assert defaulted(replace(options, settings=LlamaSettings(load_mode="mmap"))).file_order_from == 24
    for decided in (LlamaSettings(repack=False), LlamaSettings(load_mode="mlock"), LlamaSettings(load_mode="none")):
        assert defaulted(replace(options, settings=decided)).file_order_from is None, decided
    assert defaulted(replace(options, exact=True)).file_order_from is None


@pytest.mark.reordered
def test_there_must_be_room_for_the_weights_twice(k_quant: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = RunOptions(k_quant, None, (OFF.plan(),))
    keep(monkeypatch, 24)
    for share, least in ((2.5, 24), (1.5, None)):
        room = int(share * plan_load(options).placement.ram.parts["target"])
        monkeypatch.setattr(default_settings, "room_for_weights", lambda _, room=room: room)
        settings = defaulted(options)
        assert (settings.repack, settings.file_order_from) == (True, least)

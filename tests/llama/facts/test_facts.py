"""Each fact holds for this llama.cpp; broken on purpose, its feature is off and a line says so."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specrun.catalog import embedded, entries
from specrun.catalog.gguf_file import GgufFile
from specrun.doctor import Finding, installation
from specrun.errors import LlamaError
from specrun.llama import library, offload_threshold, tiled_kernels
from specrun.llama.facts import bits, relied_on, tiny_model
from specrun.llama.facts.relied_on import FACTS, Fact, why_not
from specrun.llama.heads import hidden_states
from specrun.llama.slot_cells import CellLedger
from specrun.llama.streaming import gate
from specrun.llama.tiled_kernels import TiledFrom
from specrun.llama.weight_orders import WeightOrders
from specrun.llama_settings import LlamaSettings
from specrun.loading import default_settings, draft_loading
from specrun.loading.model import Model
from specrun.loading.placing import Here
from specrun.loading.run_options import RunOptions
from specrun.processes import child_process
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF
from specrun.speculation.planning.pass_sizes import PLAIN_ONLY


@pytest.fixture(autouse=True)
def _asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relied_on, "_found", {})


def options(*plans: Any, **changes: Any) -> RunOptions:
    return RunOptions(embedded.TARGET, embedded.DRAFT, plans or (OFF.plan(),), ctx_size=256, **changes)


def notices(made: RunOptions) -> list[str]:
    with Model(made) as model:
        return model.notices


@pytest.mark.slow
@pytest.mark.parametrize("one", FACTS, ids=lambda one: one.name)
def test_it_holds_for_this_llama_cpp(one: Fact) -> None:
    if one.needs and why_not(one.needs):
        pytest.skip(f"that of {one.needs.name} says why")
    if why := why_not(one):
        pytest.fail(f"{one.notice(why)}; `specrun doctor` says how to mend this build")


# --- each fact, broken ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_other_cells_end_texts_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CellLedger, "make_room", lambda ledger, _: ledger.free_dead())
    with Model(options(parallel=2)) as model:
        assert len(model.slots.engines) == 1
        assert model.notices == [
            "texts are written one at a time, because this llama.cpp puts tokens into other cells than specrun knows"
        ]


@pytest.mark.slow
@pytest.mark.reordered
def test_other_bits_of_weights_in_the_file_leave_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    if not tiled_kernels.has_processor():
        pytest.skip("nothing is re-ordered")
    monkeypatch.setattr(WeightOrders, "choose", lambda *_: None)
    settings, said = relied_on.supported(LlamaSettings(repack=True, file_order_from=8))
    assert settings == LlamaSettings(repack=True)
    assert said == [
        "prompts are read more slowly than they could be, because this llama.cpp gave other logits when weights were "
        "taken from the file"
    ]
    made = options(settings=LlamaSettings(repack=True, file_order_from=8))
    assert said[0] in notices(made)
    (found,) = [one for one in installation._facts()["findings"] if one["check"] == "fact: weights in both orders"]
    assert found["fix"].endswith(f"llama-cpp-python=={entries.READ_IN}"), "no other way to build it would mend that"


@pytest.mark.slow
def test_where_a_tensor_cannot_be_left_out_tiled_kernels_begin_at_eight(monkeypatch: pytest.MonkeyPatch) -> None:
    if not tiled_kernels.compute(["Q4_K"]):
        pytest.skip("there are none")
    with monkeypatch.context() as patched:
        patched.setattr(tiled_kernels, "in_use", lambda: "never")
        settings, (why,) = relied_on.supported(LlamaSettings(tiled_from=16))
        assert settings == LlamaSettings()
        assert "in this process" in why, "nothing was compared, and nothing is kept"
    relied_on._found.clear()
    monkeypatch.setattr(TiledFrom, "choose", lambda *_: None)
    settings, said = relied_on.supported(LlamaSettings(tiled_from=16))
    assert settings == LlamaSettings()
    assert said == [
        "passes over 8 tokens and a few more take longer than they could, because this llama.cpp computed a pass with "
        "other kernels than it was to"
    ]


@pytest.mark.slow
def test_kernels_that_end_the_process_leave_weights_in_the_order_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bits, "read_flags", lambda: {"amx_int8"})
    monkeypatch.setattr(bits, "__name__", "tests.llama.facts.crashing")
    settings, said = relied_on.supported(LlamaSettings(repack=True, file_order_from=8))
    assert settings == LlamaSettings()
    assert said == [
        "weights stay in the order of the file, because llama.cpp's kernels for AMX end the process, as compilers "
        "before GCC 12.4, 13.3 and 14 make them"
    ]
    draft = tiny_model.write_dense(tmp_path / "draft.gguf", (4, 2, 64), 256, 256, 64, 2, ["Q4_K", "Q4_K"])
    assert default_settings.of_draft(GgufFile.read(draft), LlamaSettings()).repack is None
    found = {finding.check: finding for finding in (Finding(**one) for one in installation._facts()["findings"])}
    assert "-mno-amx-int8" in found["fact: re-ordered weights"].fix == found["fact: weights in both orders"].fix


@pytest.mark.slow
@pytest.mark.reordered
def test_kernels_for_amx_are_tried_where_the_processor_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    answer = child_process.answer
    monkeypatch.setattr(child_process, "answer", lambda *given: tried.append(given[2]) or answer(*given))
    for flags in (set(), {"amx_int8"}):
        monkeypatch.setattr(bits, "read_flags", lambda flags=flags: flags)
        assert bits.check_reordered(LlamaSettings()) is None
        assert len(tried) == len(flags)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no bound for the size of files")
def test_a_pass_that_could_not_be_tried_says_nothing_of_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    monkeypatch.setattr(bits, "read_flags", lambda: {"amx_int8"})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
        why = why_not(relied_on.REORDERED)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert why
    assert why.startswith("the check of llama.cpp's re-ordered weights failed")


def test_sizes_that_change_bits_are_not_exact_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bits, "_groups", lambda _: {768: {(1, 2)}, 1280: {(1,), (2,)}})
    assert not default_settings.keeps_bits(GgufFile.read(embedded.TARGET))
    assert (
        "texts are exact up to near-ties unless --exact is given, because passes of different sizes gave other logits "
        "after 1280 tokens"
    ) in notices(options())


def test_other_kernels_behind_a_boundary_end_speculation_with_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bits, "_groups", lambda _: {768: {(1, 2)}, 2304: {(1,), (2,)}})
    with Model(options(SPECEXEC.plan(8, 4), exact=True)) as model:
        assert model.exactness.sizes == PLAIN_ONLY
        assert model.plans.candidates == (OFF.plan(),)
        assert any("speculation is off" in notice for notice in model.notices)


@pytest.mark.parametrize(
    ("module", "attribute", "settings", "line"),
    [
        (
            tiled_kernels,
            "VARIABLES",
            LlamaSettings(tiled="always"),
            "tiled kernels stay as llama.cpp chooses them, because this llama.cpp does not know NO_SUCH_VARIABLE",
        ),
        (
            offload_threshold,
            "VARIABLE",
            LlamaSettings(offload_min_batch=64),
            "passes copy weights to the GPU as llama.cpp chooses, because this llama.cpp does not know "
            "NO_SUCH_VARIABLE",
        ),
    ],
)
def test_a_variable_that_llama_cpp_does_not_know_is_not_set(
    module: Any, attribute: str, settings: LlamaSettings, line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name: Any = ("NO_SUCH_VARIABLE",) if attribute == "VARIABLES" else "NO_SUCH_VARIABLE"
    monkeypatch.setattr(module, attribute, name)
    monkeypatch.setattr(tiled_kernels, "has_processor", lambda: True)
    backend = tmp_path / "libggml-cuda.so"
    backend.write_bytes(b"GGML_OP_OFFLOAD_MIN_BATCH\0")
    files = library.files()
    monkeypatch.setattr(library, "files", lambda: [*files, backend])
    assert relied_on.supported(settings) == (LlamaSettings(), [line])


def refused_head(monkeypatch: pytest.MonkeyPatch) -> str:
    """Why a head is not loaded."""
    head = options(SPECEXEC.plan(8, 4))
    monkeypatch.setattr(draft_loading, "drafting_head", lambda *_: draft_loading.Head("eagle3", (0, 1, 2), 64))
    with pytest.raises(LlamaError) as refused:
        draft_loading.checked_head(head, Here.of(head))
    return str(refused.value)


def test_other_rows_than_a_layers_end_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    layer_inputs = hidden_states.layer_inputs
    monkeypatch.setattr(hidden_states, "layer_inputs", lambda *arguments: layer_inputs(*arguments)[::-1])
    assert refused_head(monkeypatch) == (
        "trained heads cannot draft, because this llama.cpp gives other rows than those that enter a layer"
    )


def test_symbols_that_are_not_there_end_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(hidden_states._SIGNATURES, "llama_no_such_function", ("P13llama_context", [], None))
    hidden_states.functions.cache_clear()
    try:
        lacking = "this llama.cpp cannot run trained heads, as it lacks llama_no_such_function"
        assert why_not(relied_on.HIDDEN_STATES) == lacking
        assert refused_head(monkeypatch).startswith(lacking)
    finally:
        hidden_states.functions.cache_clear()


def test_an_architecture_that_llama_cpp_does_not_know_ends_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(entries.TABLES, "mtp", frozenset({"no-such-model"}))
    assert refused_head(monkeypatch) == (
        "trained heads cannot draft, because this llama.cpp does not know the architecture no-such-model"
    )


@pytest.mark.slow
def test_layers_in_another_order_are_not_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this turns off for a model is in `tests/llama/streaming/test_self_check.py`."""
    monkeypatch.setattr(gate, "_LAYER_OUTPUT", b"not in this graph")
    assert why_not(relied_on.LAYERS_IN_TURN) == "llama.cpp does not compute this model layer by layer"


# --- what is remembered -----------------------------------------------------------------------------------------------


@pytest.fixture
def counted() -> tuple[Fact, list[str | None]]:
    """A fact whose check takes its results from a list, the last first."""
    results: list[str | None] = []
    return Fact("a fact", "something holds", "something is off", lambda _: results.pop()), results


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """As another process would begin."""
    monkeypatch.setattr(relied_on, "_found", {})


@pytest.mark.parametrize("result", [None, "it does not"])
def test_a_check_runs_once_for_each_build(
    counted: tuple[Fact, list[str | None]], result: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made, results = counted
    results.append(result)
    for _ in range(2):
        assert why_not(made) == result
        forget(monkeypatch)
        assert results == []
    (kept,) = (tmp_path / "data" / "facts").glob("*.json")
    changes: list[Callable[[], object]] = [
        lambda: kept.write_text("{"),
        lambda: monkeypatch.setattr(library, "bindings_version", lambda: "another release"),
        lambda: monkeypatch.setattr(library, "files", lambda: [kept]),
    ]
    for change in changes:
        change()
        forget(monkeypatch)
        results.append("another result")
        assert why_not(made) == "another result"


def test_a_check_that_cannot_run_fails_this_time_only(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [LlamaError("no memory")]

    def check(_: LlamaSettings) -> str | None:
        if failures:
            raise failures.pop()
        return None

    made = Fact("a fact", "something holds", "something is off", check)
    assert why_not(made) == "the check of llama.cpp's a fact failed (no memory)"
    forget(monkeypatch)
    assert why_not(made) is None


@pytest.mark.slow
@pytest.mark.usefixtures("known_facts")
def test_doctor_prints_the_list() -> None:
    found = list(installation.check_facts(()))
    expected = [("warn", fact.notice(why)) if (why := why_not(fact)) else ("ok", fact.relied_on) for fact in FACTS]
    assert [one.check for one in found] == [f"fact: {fact.name}" for fact in FACTS]
    assert [(one.status, one.detail) for one in found] == expected


def test_doctor_says_what_goes_without_a_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Fact("a fact", "something holds", "something is off", lambda _: "it does not")
    monkeypatch.setattr(relied_on, "FACTS", (broken,))
    (found,) = installation._facts()["findings"]
    assert (found["status"], found["detail"]) == ("warn", "something is off, because it does not")
    assert found["fix"] == f"pip install llama-cpp-python=={entries.READ_IN}"


def test_doctor_survives_a_check_that_crashes(monkeypatch: pytest.MonkeyPatch) -> None:
    def crashes(*_: object) -> None:
        raise LlamaError("the process ended by signal 11")

    monkeypatch.setattr(installation, "_answer", crashes)
    (found,) = installation.check_facts(())
    assert (found.status, found.detail) == ("warn", "the process ended by signal 11")

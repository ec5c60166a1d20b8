"""The first pass on a GPU is made in a process of its own; what crashes there is named, left out and remembered."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest

from specrun.catalog import embedded
from specrun.errors import CrashError, LlamaError, OutOfMemoryError
from specrun.hardware import placement
from specrun.llama.context import LlamaContext
from specrun.llama_settings import ALL_LAYERS, LlamaSettings
from specrun.loading import first_pass
from specrun.loading.placing import plan_load
from specrun.loading.run_options import RunOptions
from specrun.long_run import no_display
from specrun.processes import child_process
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.sequoia import SEQUOIA_MATCH
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.tree import TreeShape
from tests.llama.giving_up import abort_as_cuda
from tests.loading.test_placing import GB, have_gpus

OPTIONS = RunOptions(embedded.TARGET, embedded.DRAFT, (SPECEXEC.plan(16, 8),), settings=LlamaSettings(threads=1))


LACKS = "llama.cpp ran out of memory (CUDA error: out of memory)"


class Trials:
    """Stands for the process: remembers what is tried, and fails where `fails` says so. The first `n_lack` times it
    lacks memory.
    """

    def __init__(self, fails: Callable[[LlamaSettings], bool], error: Exception, n_lack: int) -> None:
        self.settings: list[LlamaSettings] = []
        self.steps: list[int] = []
        self._fails, self._error, self._n_lack = fails, error, n_lack

    def __call__(self, options: RunOptions) -> None:
        self.settings.append(options.settings)
        self.steps.append(options.steps_down)
        if self._fails(options.settings):
            raise self._error
        self._n_lack -= 1
        if self._n_lack >= 0:
            raise OutOfMemoryError(f"{LACKS}; try fewer --gpu-layers")


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Trials]:
    have_gpus(monkeypatch, 8 * GB)

    def made(
        fails: Callable[[LlamaSettings], bool] = lambda _: False, error: Exception | None = None, n_lack: int = 0
    ) -> Trials:
        trials = Trials(fails, error or CrashError("the first pass ended by signal 11 (Segmentation fault)"), n_lack)
        monkeypatch.setattr(first_pass, "_run_apart", trials)
        return trials

    return made


def step_in_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU with little more room than the embedded pair needs, on which a step down takes a part of it."""
    monkeypatch.setattr(placement, "_STEP_BYTES", 500_000)
    monkeypatch.setattr(placement, "MARGIN_SHARE", 0.0)
    have_gpus(monkeypatch, 0.36 * GB)


def checked(options: RunOptions) -> tuple[RunOptions, list[str]]:
    plan, notices = first_pass.checked(plan_load(options), no_display)
    return plan.options, notices


def test_what_works_is_tried_once(trials: Callable[..., Trials]) -> None:
    tried = trials()
    assert checked(OPTIONS) == (OPTIONS, [])
    fewer = replace(OPTIONS, settings=LlamaSettings(threads=2, ubatch_size=64))
    assert checked(fewer) == (fewer, [])
    assert len(tried.settings) == 1
    checked(replace(OPTIONS, settings=LlamaSettings(flash_attn="off")))
    assert len(tried.settings) == 2


@pytest.mark.parametrize(
    ("culprit", "fails", "expected"),
    [
        ("flash attention", lambda s: s.flash_attn != "off", LlamaSettings(flash_attn="off")),
        ("copied to the GPU in large passes", lambda s: s.op_offload is not False, LlamaSettings(op_offload=False)),
        ("layers on a GPU", lambda s: s.gpu_layers != 0, LlamaSettings(gpu_layers=0)),
    ],
)
def test_what_crashes_is_named_left_out_and_remembered(
    trials: Callable[..., Trials], culprit: str, fails: Callable[[LlamaSettings], bool], expected: LlamaSettings
) -> None:
    tried = trials(fails)
    options, (notice,) = checked(OPTIONS)
    n_tried = len(tried.settings)
    assert options.settings == LlamaSettings(threads=1).over(expected)
    assert options.draft_settings == expected
    assert culprit in notice
    assert "signal 11" in notice
    assert checked(OPTIONS) == (options, [notice])
    assert len(tried.settings) == n_tried


def test_what_the_user_has_decided_stays(trials: Callable[..., Trials]) -> None:
    trials(lambda s: s.flash_attn != "off")
    decided = replace(OPTIONS, settings=LlamaSettings(flash_attn="on", gpu_layers=ALL_LAYERS))
    with pytest.raises(CrashError, match=r"signal 11 .*give -ngl 0"):
        checked(decided)
    quantized = replace(OPTIONS, settings=LlamaSettings(type_v="q8_0", gpu_layers=ALL_LAYERS))
    with pytest.raises(CrashError):
        checked(quantized)


def test_what_cannot_be_loaded_is_not_remembered(trials: Callable[..., Trials]) -> None:
    tried = trials(lambda _: True, LlamaError("too large"))
    for _ in range(2):
        assert checked(OPTIONS) == (OPTIONS, [])
    assert len(tried.settings) == 2


def test_without_memory_less_goes_into_vram_and_nothing_is_blamed(
    trials: Callable[..., Trials], monkeypatch: pytest.MonkeyPatch
) -> None:
    step_in_small_steps(monkeypatch)
    tried = trials(n_lack=2)
    options, (notice,) = checked(OPTIONS)
    assert options == replace(OPTIONS, steps_down=2)
    planned = [plan_load(replace(OPTIONS, steps_down=n)).placement for n in (0, 1, 2)]
    n_bytes = [one.vram_bytes for one in planned]
    assert n_bytes[0] > n_bytes[1] > n_bytes[2] > 0
    assert f"{LACKS} in a first pass, so VRAM now holds {planned[2].layers_text}; delete " in notice
    assert checked(OPTIONS) == (options, [notice])
    assert tried.steps == [0, 1, 2]


def test_a_crash_and_a_lack_of_memory_are_two_things(trials: Callable[..., Trials]) -> None:
    trials(lambda s: s.flash_attn != "off", n_lack=1)
    options, (crash, lack) = checked(OPTIONS)
    assert options.settings.flash_attn == "off"
    assert options.steps_down == 1
    assert "crashed with flash attention (the first pass ended by signal 11" in crash
    assert LACKS in lack


def test_after_a_few_steps_memory_is_what_is_lacking(
    trials: Callable[..., Trials], monkeypatch: pytest.MonkeyPatch
) -> None:
    step_in_small_steps(monkeypatch)
    tried = trials(n_lack=100)
    with pytest.raises(OutOfMemoryError, match=r"CUDA error: out of memory\); try fewer"):
        checked(OPTIONS)
    assert tried.steps == [0, 1, 2, 3, 4]
    assert {settings.flash_attn for settings in tried.settings} == {None}
    decided = replace(OPTIONS, draft=None, settings=LlamaSettings(gpu_layers=2))
    with pytest.raises(OutOfMemoryError):
        checked(decided)
    assert tried.steps[5:] == [0, 1], "without weights that are copied to the GPU; the layers are the user's"
    assert {settings.gpu_layers for settings in tried.settings[5:]} == {2}


def test_no_layers_for_lack_of_memory_are_not_remembered(trials: Callable[..., Trials]) -> None:
    tried = trials(n_lack=100)
    for _ in range(2):
        options, (notice,) = checked(OPTIONS)
        assert plan_load(options).placement.vram_bytes == 0, "a step is larger than this model"
        assert "VRAM now holds 0 of the target's" in notice
        assert "delete" not in notice
    assert tried.steps == 2 * tried.steps[: len(tried.steps) // 2], "it is tried again"


def test_without_a_layer_on_a_gpu_nothing_is_tried(
    trials: Callable[..., Trials], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = trials()
    none = replace(OPTIONS, settings=LlamaSettings(gpu_layers=0), draft_settings=LlamaSettings(gpu_layers=0))
    assert checked(none) == (none, [])
    have_gpus(monkeypatch)
    assert checked(OPTIONS) == (OPTIONS, [])
    assert tried.settings == []


def test_the_process_gets_every_option(monkeypatch: pytest.MonkeyPatch) -> None:
    options = RunOptions(
        target=Path("target.gguf"),
        draft=Path("draft.gguf"),
        plans=(SPECEXEC.plan(16, 8), CHAIN.plan(depth=4)),
        largest=SEQUOIA_MATCH.plan(5, 2).shaped(TreeShape.of_children([2, 0, 1, 0])),
        ctx_size=64,
        settings=LlamaSettings(threads=1, tensor_split=(3.0, 1.0), rpc=("host:50052",)),
        draft_settings=LlamaSettings(gpu_layers=ALL_LAYERS),
        follow=False,
        exact=True,
        residency="off",
        steps_down=2,
        parallel=4,
        shared_tokens=4096,
        chat_template="chatml",
        may_shrink=True,
    )
    plain = RunOptions(Path("other.gguf"), None, ())
    left_out = [field.name for field in fields(plain) if getattr(options, field.name) == getattr(plain, field.name)]
    assert left_out == ["profile"], "a new option belongs into this test; a pair with a profile is not tried"
    ran: list[RunOptions] = []
    monkeypatch.setattr(first_pass, "_run", ran.append)
    monkeypatch.setattr(child_process, "end_with_parent", lambda _: None)
    monkeypatch.setattr(child_process, "answer", lambda _, request, *__: first_pass.serve(json.dumps(request)))
    first_pass._run_apart(options)
    assert ran == [options]


@pytest.mark.slow
def test_the_process_runs_the_pair_or_says_why_not() -> None:
    first_pass._run_apart(OPTIONS)
    first_pass._run_apart(replace(OPTIONS, draft=None, ctx_size=64))
    first_pass._run_apart(replace(OPTIONS, exact=True, parallel=2))
    with pytest.raises(LlamaError, match="no such file"):
        first_pass._run_apart(replace(OPTIONS, target=embedded.TARGET.with_name("none.gguf")))


def serve(request: str) -> None:
    """In the child: the first pass on a GPU whose memory is too small for the first of all placements."""
    if not json.loads(request)["steps_down"]:
        LlamaContext.compute = lambda *_: abort_as_cuda("out of memory")  # type: ignore[method-assign]
    first_pass.serve(request)


@pytest.mark.slow
def test_a_process_that_cuda_ends_for_lack_of_memory_is_tried_with_less(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    have_gpus(monkeypatch, 8 * GB)
    monkeypatch.setattr(first_pass, "__name__", __name__)
    options, (notice,) = checked(OPTIONS)
    assert options == replace(OPTIONS, steps_down=1)
    assert f"{LACKS} in a first pass" in notice

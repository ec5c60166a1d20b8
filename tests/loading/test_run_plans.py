"""Passes have as many threads as other programs leave cores for, and nothing but their speed hangs on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import llama_cpp
import numpy as np
import pytest

import specrun
from specrun.catalog.resolve import Fetcher
from specrun.decoding.completion import Completion
from specrun.decoding.generation import make_request
from specrun.hardware.cpu import LoadWatch, OtherLoad
from specrun.hardware.placement import Regime, place
from specrun.llama import LlamaModel, parameters
from specrun.llama.batch import committed_tokens
from specrun.llama.context import ContextConfig, LlamaContext
from specrun.llama_settings import LlamaSettings
from specrun.loading import opening, run_plans
from specrun.loading.model import Model
from specrun.loading.run_options import RunOptions
from specrun.loading.run_plans import FollowedPlans, may_follow
from specrun.options.machine_options import MachineOptions
from specrun.options.sampling_options import SamplingOptions
from specrun.options.speculation_options import ModelOptions, SpeculationOptions
from specrun.profiles import profile_files
from specrun.speculation.method import OFF
from specrun.views.answer_report import Notices, as_text
from tests.conftest import SpecrunHere
from tests.hardware.test_placement import DENSE, GB, request
from tests.other_load import Busy, others_hold
from tests.profiles.test_profile import made

OPTIONS = RunOptions(Path("target.gguf"), None, (OFF.plan(),))
EXACT, AS_LLAMA = LlamaSettings(type_k="f16", type_v="bf16"), LlamaSettings(type_k="f16", type_v="f16")
PROMPT = "def read_config(path):\n"
NOTICE = "other programs hold cores"


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> Busy:
    busy = others_hold(1.0, (opening, run_plans), monkeypatch)
    monkeypatch.setattr(run_plans, "usable_cores", lambda: 2)
    # Two threads on one core, as a test process has it, take seconds for a few tokens. Contexts begin with one.
    monkeypatch.setattr(parameters, "usable_cores", lambda: 1)
    return busy


def n_threads(model: Model) -> list[tuple[int, int]]:
    """Threads of small and of large passes, of the target and the draft."""
    engine = model.engine
    contexts = [engine.target.context, *([engine.draft.context] if engine.draft else [])]
    found = [(llama_cpp.llama_n_threads(c.handle), llama_cpp.llama_n_threads_batch(c.handle)) for c in contexts]
    return [(int(small), int(large)) for small, large in found]


def rows(model: LlamaModel, settings: LlamaSettings, threads: int) -> Iterator[np.ndarray[Any, Any]]:
    """Logits of passes of several sizes, after 300 tokens."""
    config = ContextConfig(320, n_seq_max=1, n_batch=300, n_outputs=8, settings=replace(settings, threads=threads))
    with LlamaContext(model, config) as context:
        start = 0
        for size in (300, 1, 4):
            tokens = [37 * i % model.n_vocab for i in range(start, start + size)]
            yield context.decode(committed_tokens(tokens, start, 1, n_outputs=min(size, 8))).copy()
            start += size


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [EXACT, AS_LLAMA, replace(AS_LLAMA, flash_attn="off")],
)
def test_bits_depend_on_the_number_of_threads_only_where_attention_is_divided(
    demo_target: Path, settings: LlamaSettings
) -> None:
    with LlamaModel(demo_target, settings) as model:
        one, two = ([*rows(model, settings, n)] for n in (1, 2))
    same = all(map(np.array_equal, one, two))
    assert same == (not settings.divides_attention)


@pytest.mark.slow
def test_a_change_between_answers_changes_neither_the_text_nor_what_is_cached(busy: Busy) -> None:
    def conversation(loads: list[float], **more: Any) -> tuple[list[Completion], list[tuple[int, int]]]:
        busy.cores = loads[0]
        with specrun.load(learn=False, ctx_size=512, **more) as model:
            chat = model.chat(temp=0, max_tokens=4)
            answers, threads = [], []
            for load in loads:
                busy.cores = load
                answers.append(chat.ask("read"))
                threads.append(n_threads(model)[0])
            return answers, threads

    constant, at_first = conversation([1.0, 1.0, 1.0], threads=1)
    changing, seen = conversation([1.0, 0.0, 1.0])
    assert at_first == [(1, 1)] * 3
    assert seen == [(1, 1), (2, 2), (1, 1)]
    assert [a.text for a in changing] == [a.text for a in constant]
    read = [[a.statistics.prompt_tokens_decoded for a in answers] for answers in (changing, constant)]
    assert read[0] == read[1]
    assert read[0][1] < changing[1].statistics.prompt_tokens


def ask(model: Model) -> None:
    """Begin an answer that is never written."""
    model.complete(make_request(SamplingOptions(max_tokens=1)))


@pytest.mark.slow
def test_both_models_have_as_many_threads_as_there_are_free_cores(busy: Busy) -> None:
    with specrun.load(learn=False) as model:
        assert n_threads(model) == [(1, 1), (1, 1)]
        busy.cores = 0.0
        ask(model)
        assert n_threads(model) == [(2, 2), (2, 2)]
    busy.cores = 1.0
    with specrun.load(learn=False, threads_batch=2) as model:
        assert n_threads(model)[0] == (1, 2)


@pytest.mark.slow
def test_a_text_that_is_being_written_keeps_its_threads(busy: Busy) -> None:
    with specrun.load(learn=False) as model:
        pieces = model.stream(PROMPT, raw=True, max_tokens=8)
        next(pieces)
        busy.cores = 0.0
        ask(model)
        assert n_threads(model)[0] == (1, 1)
        assert list(pieces)
        ask(model)
        assert n_threads(model)[0] == (2, 2)


@pytest.mark.slow
def test_the_users_number_of_threads_stays(busy: Busy) -> None:
    busy.cores = 0.0
    with specrun.load(learn=False, threads=1) as model:
        ask(model)
        assert n_threads(model)[0] == (1, 1)
    busy.cores = 1.0
    with specrun.load(learn=False, threads=2) as model:
        ask(model)
        assert n_threads(model)[0] == (2, 2)
        assert NOTICE not in " ".join(model.notices)


def test_it_is_open_where_nobody_decided_it_and_no_text_hangs_on_it() -> None:
    assert may_follow(OPTIONS, EXACT, None, is_auto=False)
    assert may_follow(replace(OPTIONS, profile=made()), EXACT, None, is_auto=False)
    decided = LlamaSettings(threads=4)
    assert not may_follow(replace(OPTIONS, settings=decided), EXACT, None, is_auto=True)
    tuned = replace(OPTIONS, profile=replace(made(), settings=decided)).with_profile
    assert not may_follow(tuned, EXACT, None, is_auto=True)
    assert not may_follow(OPTIONS, AS_LLAMA, None, is_auto=False)
    assert may_follow(OPTIONS, AS_LLAMA, None, is_auto=True)
    assert not may_follow(replace(OPTIONS, exact=True), AS_LLAMA, None, is_auto=True)


@pytest.mark.parametrize(("regime", "expected"), [("in VRAM", False), ("partly in VRAM", True), ("in RAM", True)])
def test_a_target_that_the_gpu_computes_needs_no_cores(regime: Regime, expected: bool) -> None:
    placement = replace(place(request(DENSE, 10 * GB)), regime=regime)
    assert may_follow(OPTIONS, EXACT, placement, is_auto=True) == expected


class JustBegun(LoadWatch):
    """A small model was loaded in a moment."""

    seconds = 0.05  # type: ignore[assignment]
    cores = 1.0

    def after(self, seconds: float = 1.0) -> OtherLoad:
        self.seconds = seconds  # type: ignore[misc]
        return self.so_far()

    def so_far(self) -> OtherLoad:
        return OtherLoad(self.cores, 2)


def test_too_short_a_look_goes_on_only_if_others_seem_to_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_plans, "usable_cores", lambda: 2)
    plans = Mock()
    followed = FollowedPlans(plans)
    followed.follow_load([], JustBegun(), again=True)
    assert followed.n_threads == 1
    watch, followed = JustBegun(), FollowedPlans(plans)
    watch.cores = 0.2
    followed.follow_load([], watch, again=True)
    assert (watch.seconds, followed.n_threads) == (0.05, None)


@pytest.mark.slow
def test_while_texts_are_compared_the_number_stays(busy: Busy) -> None:
    groups = ModelOptions(), SpeculationOptions(learn=False), MachineOptions()
    with opening.open_model(*groups, 0.0, Fetcher(False), print, is_measured=True) as model:
        busy.cores = 0.0
        ask(model)
        assert n_threads(model)[0] == (1, 1)


@pytest.mark.slow
def test_what_passes_took_with_another_number_is_not_trusted(busy: Busy) -> None:
    def learned() -> set[int | None]:
        return {profile.settings.threads for profile in profile_files.saved(with_learned=True)}

    busy.cores = 0.0
    with specrun.load(ctx_size=512) as model:
        at_first = model.plans
        model.generate(PROMPT, raw=True, max_tokens=32, temp=0)
        busy.cores = 1.0
        model.generate(PROMPT, raw=True, max_tokens=32, temp=0)
        assert model.plans is not at_first
        assert not model.plans.known
        busy.cores = 0.0
        ask(model)
        assert model.plans is at_first
    assert learned() == {None, 1}
    busy.cores = 1.0
    with specrun.load(ctx_size=512) as model:
        assert model.plans.known
        assert model.plans.known.settings.threads == 1
    with specrun.load(ctx_size=512, threads=1) as model:  # the same as what the user may ask for
        assert model.plans.known


@pytest.mark.slow
def test_a_tuned_profile_of_all_threads_is_set_aside_while_there_are_fewer(busy: Busy) -> None:
    busy.cores = 0.0
    with specrun.load(ctx_size=512) as model:
        model.generate(PROMPT, raw=True, max_tokens=32, temp=0)
    (kept,) = profile_files.saved(with_learned=True)
    profile_files.save(replace(kept, origin="tuned"))
    with specrun.load(ctx_size=512) as model:
        assert model.plans.profile
        busy.cores = 1.0
        ask(model)
        assert not model.plans.profile
        busy.cores = 0.0
        ask(model)
        assert model.plans.profile


@pytest.mark.slow
def test_it_is_said_once(here: SpecrunHere, busy: Busy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.conftest._COMMANDS_WITH_THREADS", ())
    command = ("generate", "--raw", "-n", "4", "--temp", "0", "--stats", PROMPT)
    first, second = here(*command), here(*command)
    assert first.stderr.count(NOTICE) == 2  # the notice, and a line of --stats
    assert second.stderr.count(NOTICE) == 1
    busy.cores = 0.0
    assert NOTICE not in here(*command).stderr
    busy.cores = 1.0
    assert here(*command).stderr.count(NOTICE) == 2


@pytest.mark.slow
def test_it_is_said_again_that_what_was_tuned_since_then_waits(
    here: SpecrunHere, busy: Busy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.conftest._COMMANDS_WITH_THREADS", ())
    command = ("generate", "--raw", "-n", "32", "--temp", "0", PROMPT)
    busy.cores = 0.0
    here(*command)
    busy.cores = 1.0
    assert NOTICE in here(*command).stderr
    kept = next(profile for profile in profile_files.saved(with_learned=True) if profile.settings.threads is None)
    profile_files.save(replace(kept, origin="tuned"))
    assert "`specrun tune` measured with all threads is followed once" in here(*command).stderr


def test_a_chat_says_once_that_cores_are_held_since_it_began(busy: Busy) -> None:
    busy.cores = 0.0
    with specrun.load(learn=False) as model:
        notices, said = Notices(model), []
        for load in (0.0, 1.0, 1.0):
            busy.cores = load
            answer = model.generate(PROMPT, raw=True, max_tokens=2)
            said.append([notice for notice in notices.after(answer, answer.text) if NOTICE in notice])
        assert [len(lines) for lines in said] == [0, 1, 0]
        assert "threads     1, as other programs hold cores" in as_text(answer, model)

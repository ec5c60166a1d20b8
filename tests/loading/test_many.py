"""Many prompts in one sweep: every text is the one that it would be alone, and what prompts share is read once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from specrun.catalog import embedded
from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.layer_states import kv_bytes_per_token
from specrun.decoding.completion import Completion
from specrun.decoding.generation import Request
from specrun.decoding.together import SlotText
from specrun.errors import PromptError, UsageError
from specrun.llama_settings import LlamaSettings
from specrun.loading.learning import Learner
from specrun.loading.many import Crowd, Listed, usual_bytes, with_room, write_many
from specrun.loading.model import Model
from specrun.loading.placing import Here
from specrun.loading.run_options import RunOptions
from specrun.options.speculation_options import SpeculationOptions
from specrun.sampling import SamplingParameters
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF, Plan

ONE_THREAD = LlamaSettings(threads=1)
STARTS = ("def f(x):", "import os\n\ndef walk(path):", "class Tree:\n    def add(self, x):", "x = [", "# Sorts", "for")
PLANS = [
    *(pytest.param(plan, marks=pytest.mark.slow) for plan in (OFF.plan(), CHAIN.plan(depth=4))),
    SPECEXEC.plan(16, 6),
]


def options(*plans: Plan, parallel: int = 1, **further: int) -> RunOptions:
    return RunOptions(
        embedded.TARGET,
        embedded.DRAFT,
        plans,
        settings=ONE_THREAD,
        draft_settings=ONE_THREAD,
        parallel=parallel,
        **further,
    )


def requests(model: Model, starts: tuple[str, ...] = STARTS) -> list[Request]:
    """Requests of several kinds, which end at different times."""
    kinds = [
        SamplingParameters(temperature=0),
        SamplingParameters(temperature=0.8, seed=1),
        SamplingParameters(temperature=1.2, seed=2, top_k=0, repeat_penalty=1.1),
    ]
    return [
        Request(model.prompt_tokens(start, raw=True), kinds[i % 3], 20 + 7 * i, ("\n\n",) if i == 3 else ())
        for i, start in enumerate(starts)
    ]


def written(model: Model, asked: list[Request], n: int | None = None) -> list[Completion]:
    """The completions in the order of the requests."""
    found = dict(write_many(model, Listed(enumerate(asked)), n))
    return [completion for _, completion in sorted(found.items()) if isinstance(completion, Completion)]


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_each_text_is_the_one_that_it_is_alone(plan: Plan) -> None:
    with Model(options(OFF.plan())) as model:
        alone = [model.complete(request).run() for request in requests(model)]
    with Model(options(plan, parallel=4)) as model:
        together = written(model, requests(model))
        assert len(model.slots.engines) == 4
    assert [one.token_ids for one in together] == [one.token_ids for one in alone]
    assert [one.text for one in together] == [one.text for one in alone]
    assert [one.finish_reason for one in together] == [one.finish_reason for one in alone]


@pytest.mark.slow
def test_with_a_grammar_penalties_stops_and_log_probabilities_too() -> None:
    with Model(options(SPECEXEC.plan(8, 3), parallel=4)) as model:
        first, second, third, fourth, *_ = requests(model)
        penalties = SamplingParameters(temperature=0.8, seed=5, presence_penalty=0.5, frequency_penalty=0.3)
        asked = [
            replace(first, gbnf='root ::= ("a" | "b") [a-z ]{4,12} "."', sampling=second.sampling),
            replace(second, sampling=penalties, max_tokens=24),
            replace(third, logprobs=2, max_tokens=12),
            replace(fourth, stops=("x", "("), logprobs=0, max_tokens=24),
        ]
        together = written(model, asked)
        alone = [model.complete(request).run() for request in asked]
    for one, other in zip(together, alone, strict=True):
        assert (one.token_ids, one.text, one.finish_reason) == (other.token_ids, other.text, other.finish_reason)
        assert one.logprobs == other.logprobs


@pytest.mark.slow
def test_with_auto_too_and_where_texts_share_their_beginning_it_is_read_once() -> None:
    common = "".join(f"def f{i}(x):\n    return x + {i}\n" for i in range(12))
    starts = tuple(common + start for start in STARTS)
    with Model(options(OFF.plan())) as model:
        alone = [model.complete(request).run() for request in requests(model, starts)]
        n_common = len(model.prompt_tokens(common, raw=True))
    with Model(options(*SpeculationOptions().plans(), parallel=3)) as model:
        together = written(model, requests(model, starts))
    assert [one.token_ids for one in together] == [one.token_ids for one in alone]
    assert all(one.statistics.prompt_tokens_decoded < n_common / 2 for one in together[1:])
    assert together[0].statistics.prompt_tokens_decoded >= n_common - 2


@pytest.mark.slow
def test_texts_for_which_there_is_no_room_wait_and_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def long(model: Model) -> list[Request]:
        return [replace(one, max_tokens=150, stops=(), ignore_eos=True) for one in requests(model)]

    with Model(options(OFF.plan(), ctx_size=200)) as model:
        alone = [model.complete(request).run() for request in long(model)]
    monkeypatch.setattr("specrun.decoding.together._FIRST_TOKENS", 20)
    waits = list[SlotText]()
    wait = SlotText.wait
    monkeypatch.setattr(SlotText, "wait", lambda one: (waits.append(one), wait(one)))
    with Model(options(CHAIN.plan(depth=3), parallel=4, ctx_size=200, shared_tokens=400)) as model:
        together = written(model, long(model))
    assert [one.token_ids for one in together] == [one.token_ids for one in alone]
    assert waits


def test_a_prompt_that_does_not_fit_is_named_and_the_others_go_on() -> None:
    with Model(options(OFF.plan(), parallel=2, ctx_size=64)) as model:
        long = Request([5] * 70, SamplingParameters(temperature=0), 4)
        short = Request([5, 6], SamplingParameters(temperature=0), 4)
        found = dict(write_many(model, Listed(enumerate([short, long, short]))))
    assert isinstance(found[1], PromptError)
    assert [len(one.token_ids) for one in (found[0], found[2]) if isinstance(one, Completion)] == [4, 4]


def test_an_interrupted_run_yields_what_was_written_and_begins_nothing() -> None:
    looks = iter([False] * 6 + [True] * 100)
    with Model(options(OFF.plan(), parallel=2)) as model:
        found = dict(write_many(model, Listed(enumerate(requests(model))), interrupted=lambda: next(looks)))
    assert set(found) == {0, 1}
    assert all(isinstance(one, Completion) and one.finish_reason == "interrupted" for one in found.values())


@pytest.mark.slow
def test_generate_many_keeps_the_order_of_the_prompts() -> None:
    with Model(options(SPECEXEC.plan(16, 6), parallel=3)) as model:

        def prompts() -> Iterator[str]:
            yield from STARTS

        texts = [one.text for one in model.generate_many(prompts(), raw=True, temp=0, max_tokens=12)]
        assert texts == [model.generate(start, raw=True, temp=0, max_tokens=12).text for start in STARTS]
        with pytest.raises(PromptError, match="empty"):
            list(model.generate_many(["x", ""], raw=True, max_tokens=2))


@pytest.mark.slow
def test_after_many_texts_one_has_the_whole_context() -> None:
    with Model(options(OFF.plan(), parallel=4, ctx_size=200)) as model:
        for n in (None, 1):
            for completion in model.generate_many(STARTS, raw=True, temp=0, max_tokens=4):
                assert completion.token_ids
            long = [5] * 190
            found = dict(write_many(model, Listed([(0, Request(long, max_tokens=4))]), n))
            assert isinstance(found[0], Completion)
            assert len(model.complete(Request([6] * 190, max_tokens=4)).run().token_ids) == 4
        next(model.generate_many(STARTS, raw=True, max_tokens=4))
        assert len(model.complete(Request([7] * 190, max_tokens=4)).run().token_ids) == 4
        with pytest.raises(UsageError, match="parallel"):
            model.generate_many(STARTS, parallel=0)


def test_texts_share_the_passes_of_the_draft() -> None:
    with Model(options(SPECEXEC.plan(8, 3), parallel=4)) as model:
        draft = model.engine.draft
        assert draft
        texts = written(model, [replace(one, max_tokens=8, stops=(), ignore_eos=True) for one in requests(model)[:4]])
        n_passes = max(one.statistics.passes for one in texts)
        assert draft.context.n_passes <= 3 * (n_passes + 1) + 2, "one for each level and not for each text"


@pytest.mark.slow
def test_runs_that_only_shared_passes_teach_later_ones_what_these_take(tmp_path: Path) -> None:
    given = replace(options(*SpeculationOptions().plans(), parallel=3), ctx_size=1024)
    with patch.dict("os.environ", {"SPECRUN_DATA_DIR": str(tmp_path)}):
        with Model(given, Learner(given, ONE_THREAD, print)) as model:
            passes = model.engine.target.context
            asked = [replace(one, max_tokens=200, stops=(), ignore_eos=True) for one in requests(model)[:3]]
            list(write_many(model, Listed(enumerate(asked)), interrupted=lambda: passes.n_passes > 12))
        with Model(given, Learner(given, ONE_THREAD, print)) as model:
            guide = model.plans.auto(0.8).guide
            assert not guide.knows_plain, "no text was alone"
            assert guide.costs.target.times, "of passes of other sizes"


def test_as_many_texts_at_a_time_as_the_memory_has_room_for() -> None:
    asked = options(OFF.plan())

    def chosen(free: int, **given: int | None) -> tuple[int, int | None, str | None]:
        fields: dict[str, int | None] = {"n": 100, "n_bytes": 300, "max_tokens": 64, "asked": None, **given}
        found, why = with_room(asked, Crowd(**fields), replace(Here.of(asked), gpus=(), ram_bytes=free))  # type: ignore[arg-type]
        return found.parallel, found.shared_tokens, why

    plenty, little, each = 10**12, 0, 300 // 4 + 32 + 64
    assert chosen(plenty)[0] == 32
    assert chosen(plenty, n=None)[0] == 32
    assert chosen(plenty, n=5)[0] == 5
    assert chosen(plenty, asked=6) == (6, 6 * each, None)
    n, tokens, why = chosen(little, asked=6)
    assert (n, tokens) == (1024 // each, 1024), "the context of one text is there in any case"
    assert why
    assert "too much of the memory" in why
    assert chosen(little, max_tokens=None) == (1, None, None)
    file, draft = GgufFile.read(embedded.TARGET), GgufFile.read(embedded.DRAFT)
    each_bytes = each * (sum(kv_bytes_per_token(file)) + sum(kv_bytes_per_token(draft)))
    asked = options(SPECEXEC.plan(16, 6))
    assert chosen(file.n_bytes // 2)[0] == max(int(0.2 * file.n_bytes) // each_bytes, 1024 // each), (
        "not all is resident"
    )
    assert chosen(file.n_bytes + draft.n_bytes + 2 * 9 * each_bytes)[0] == 9, "half of what weights leave"
    asked = options(OFF.plan())
    n_bytes = file.n_bytes + 2 * 9 * each_bytes
    assert chosen(n_bytes)[0] > 9, "where nothing drafts, there is no cache of a draft"


def test_a_prompt_that_is_much_longer_than_the_others_does_not_count_for_all() -> None:
    assert usual_bytes([300] * 199 + [10**6], 7) == 300
    assert usual_bytes([100, 500] * 50, 7) > 250
    assert usual_bytes([300], 7) == 300
    assert usual_bytes([], 7) == 7


def test_the_first_slot_which_writes_the_last_text_alone_has_room_for_larger_trees() -> None:
    with Model(options(SPECEXEC.plan(64, 6), parallel=8)) as model:
        first, *others = model.slots.engines
        assert first.target.max_leaves > max(engine.target.max_leaves for engine in others)

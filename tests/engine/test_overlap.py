"""Drafting while the target's pass runs does not change the text, even if a pass fails or Ctrl-C is pressed."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from itertools import cycle

import pytest

from specrun.catalog import embedded
from specrun.engine import overlap
from specrun.engine.engine import Engine
from specrun.engine.generation import Generation
from specrun.engine.overlap import Overlap
from specrun.engine.passes import write_alone
from specrun.engine.request import Request
from specrun.errors import LlamaError
from specrun.llama.batch import Batch
from specrun.llama.context import Logits
from specrun.sampling import SamplingParameters
from specrun.speculation.drafter import DraftLimits
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.cost_aware import ADAPTIVE
from specrun.speculation.drafters.specexec import SPECEXEC, SpecExecDrafter
from specrun.speculation.method import OFF, Plan
from specrun.speculation.registry import METHODS
from specrun.speculation.tree import TokenTree
from tests.engines import chooser, code_prompts, engine, write
from tests.waiting import TIMEOUT_S

GREEDY = SamplingParameters(temperature=0)
SAMPLED = SamplingParameters(temperature=0.8, seed=1)
TREE = replace(SPECEXEC.plan(16, 6), overlap=True)
ADAPTIVE = replace(ADAPTIVE.plan(32, 8, 8), overlap=True)


def make_passes_wait(e: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the target's passes last, as those of a streamed target do, until a number of draft passes have run.

    The number changes from pass to pass, so that passes end at different points of the drafting. A pass also ends when
    nothing is left to draft, so that the engine waits for it.
    """
    assert e.draft
    score, decode, wait = e.target.score, e.draft.context.decode, overlap.wait
    changed = threading.Condition()
    numbers = cycle((120, 13, 60, 5))
    n_drafted, is_waited_for = 0, False

    def slow(tree: TokenTree) -> Logits:
        if threading.current_thread() is not threading.main_thread():  # a pass that overlaps with drafting
            with changed:
                enough = n_drafted + next(numbers)
                assert changed.wait_for(lambda: n_drafted >= enough or is_waited_for, TIMEOUT_S)
        return score(tree)

    def counted(batch: Batch) -> Logits:
        nonlocal n_drafted
        rows = decode(batch)
        with changed:
            n_drafted += 1
            changed.notify()
        return rows

    def noticed(running: list[Future[Logits]]) -> None:
        nonlocal is_waited_for
        with changed:
            is_waited_for = True
            changed.notify()
        wait(running)
        is_waited_for = False

    monkeypatch.setattr(e.target, "score", slow)
    monkeypatch.setattr(e.draft.context, "decode", counted)
    monkeypatch.setattr(overlap, "wait", noticed)


@pytest.fixture
def pair() -> Iterator[Engine]:
    with engine(embedded.TARGET, embedded.DRAFT, TREE) as e:
        yield e


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "T=0.8"])
@pytest.mark.parametrize("plan", [TREE, ADAPTIVE, replace(CHAIN.plan(depth=4), overlap=True)], ids=str)
def test_the_text_is_the_same_bit_for_bit(
    plan: Plan, sampling: SamplingParameters, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine(embedded.TARGET, None, OFF.plan()) as e:
        prompts = code_prompts(e, 3, 40)
        plain = [write(e, prompt, sampling, OFF.plan(), 64) for prompt in prompts]
    with engine(embedded.TARGET, embedded.DRAFT, plan) as e:
        make_passes_wait(e, monkeypatch)
        for prompt, reference in zip(prompts, plain, strict=True):
            written = write(e, prompt, sampling, plan, 64)
            assert (written.tokens, written.rows) == (reference.tokens, reference.rows)
            assert written.n_passes < reference.n_passes
            assert written.statistics.ready > 0
            assert written.statistics.overlapped_seconds > 0


@pytest.mark.slow
def test_with_draft_sources_the_text_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    merged = replace(METHODS["merged"].plan(32, 8), overlap=True)
    with engine(embedded.TARGET, embedded.DRAFT, merged) as e:
        prompt = code_prompts(e, 1, 200)[0]
        plain = write(e, prompt, GREEDY, OFF.plan(), 64)
        make_passes_wait(e, monkeypatch)
        written = write(e, prompt, GREEDY, merged, 64)
        assert written.tokens == plain.tokens
        assert written.statistics.ready > 0


def test_trees_of_random_draws_are_not_drafted_ahead() -> None:
    """How many trees are drafted ahead depends on the time a pass takes, and the text must not depend on that."""
    drawn = replace(METHODS["rsd"].plan(8, 3), overlap=True)
    with engine(embedded.TARGET, embedded.DRAFT, drawn) as e:
        prompt = code_prompts(e, 1, 40)[0]
        first = write(e, prompt, SAMPLED, drawn, 32)
        assert first.statistics.overlapped_seconds == 0
        assert write(e, prompt, SAMPLED, replace(drawn, overlap=False), 32).tokens == first.tokens


def test_an_engine_without_overlap_drafts_nothing_ahead() -> None:
    with engine(embedded.TARGET, embedded.DRAFT, TREE) as e:
        never = Engine(e.target, e.draft, e.ctx_size, wants_overlap=False)
        prompt = code_prompts(e, 1, 40)[0]
        assert write(never, prompt, GREEDY, TREE, 16).statistics.overlapped_seconds == 0


def test_no_longer_than_asked_for(pair: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    make_passes_wait(pair, monkeypatch)
    prompt = code_prompts(pair, 1, 40)[0]
    for n in range(1, 12):
        steps = list(write_alone(Generation(pair, Request(prompt, GREEDY, n), chooser(TREE))))
        assert sum(len(step.tokens) for step in steps) == n
        assert all(step.tree.depth <= n - 1 for step in steps)


@pytest.mark.slow
@pytest.mark.parametrize("after", [1, 2, 5])
def test_a_pass_that_fails_leaves_both_caches_right(pair: Engine, after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = code_prompts(pair, 2, 40)
    plain = [write(pair, prompt, GREEDY, OFF.plan(), 48).tokens for prompt in prompts]
    make_passes_wait(pair, monkeypatch)
    score, n_passes = pair.target.score, 0

    def failing(tree: TokenTree) -> Logits:
        nonlocal n_passes
        n_passes += 1
        if n_passes == after:
            raise LlamaError("no")
        return score(tree)

    pair.target.score = failing  # type: ignore[method-assign]
    with pytest.raises(LlamaError, match="no"):
        write(pair, prompts[0], GREEDY, TREE, 48)
    for prompt, reference in zip(prompts, plain, strict=True):
        assert write(pair, prompt, GREEDY, TREE, 48).tokens == reference


@pytest.mark.slow
@pytest.mark.parametrize("after", [1, 3, 8])
def test_ctrl_c_in_the_middle_leaves_both_caches_right(
    pair: Engine, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = code_prompts(pair, 2, 40)
    plain = [write(pair, prompt, GREEDY, OFF.plan(), 48).tokens for prompt in prompts]
    assert pair.draft
    score, decode = pair.target.score, pair.draft.context.decode
    is_running, n_ahead = False, 0
    is_waited_for = threading.Event()
    wait = overlap.wait

    def noticed(running: list[Future[Logits]]) -> None:
        is_waited_for.set()
        wait(running)

    def slow(tree: TokenTree) -> Logits:
        nonlocal is_running
        is_running = True
        is_waited_for.clear()
        is_waited_for.wait(timeout=1)
        rows = score(tree)
        is_running = False
        return rows

    def interrupted(batch: Batch) -> Logits:
        nonlocal n_ahead
        rows = decode(batch)
        n_ahead += is_running
        if n_ahead == after:
            raise KeyboardInterrupt
        return rows

    with monkeypatch.context() as patch:
        patch.setattr(overlap, "wait", noticed)
        patch.setattr(pair.target, "score", slow)
        patch.setattr(pair.draft.context, "decode", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write(pair, prompts[0], GREEDY, TREE, 48)
    assert not is_running, "the pass was not waited for"
    make_passes_wait(pair, monkeypatch)
    for prompt, reference in zip(prompts, plain, strict=True):
        assert write(pair, prompt, GREEDY, TREE, 48).tokens == reference


@pytest.mark.slow
def test_trees_drafted_ahead_know_how_many_tokens_wait_in_front_of_them(
    pair: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafted: dict[tuple[int, ...], int] = {}
    pending: list[tuple[int, int]] = []
    draft, take = SpecExecDrafter.draft, Overlap.take

    def recorded(self: SpecExecDrafter, tokens: Sequence[int], limits: DraftLimits) -> TokenTree:
        drafted[tuple(tokens)] = limits.pending
        return draft(self, tokens, limits)

    def compared(self: Overlap, plan: Plan, limits: DraftLimits) -> TokenTree | None:
        ready = take(self, plan, limits)
        if ready:
            pending.append((drafted[tuple(pair.target.tokens)], limits.pending))
        return ready

    monkeypatch.setattr(SpecExecDrafter, "draft", recorded)
    monkeypatch.setattr(Overlap, "take", compared)
    make_passes_wait(pair, monkeypatch)
    for prompt in code_prompts(pair, 3, 40):
        write(pair, prompt, SAMPLED, TREE, 64)
    assert pending
    assert all(ahead == now for ahead, now in pending)
    assert any(now for _, now in pending)

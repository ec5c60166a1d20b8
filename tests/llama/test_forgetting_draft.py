"""A draft that holds only the beginning and the end of a long text: the same text, nearly as many accepted tokens."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from specrun.catalog import embedded
from specrun.decoding.engine import Engine
from specrun.llama import DraftContext
from specrun.llama import draft as draft_module
from specrun.sampling import SamplingParameters
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF, Plan
from tests.engines import code_prompts, engine, first_difference, write

FIRST, LAST, SLACK = 8, 64, 16
LONGEST = FIRST + LAST + SLACK  # tokens that are held at most


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, n in (("_FIRST", FIRST), ("_LAST", LAST), ("_SLACK", SLACK)):
        monkeypatch.setattr(draft_module, name, n)


@pytest.fixture(scope="module")
def pair() -> Iterator[Engine]:
    with engine(embedded.TARGET, embedded.DRAFT, SPECEXEC.plan(16, 8)) as both:
        yield both


def draft_of(pair: Engine) -> DraftContext:
    assert isinstance(pair.draft, DraftContext)
    pair.reset()
    return pair.draft


def n_held(draft: DraftContext) -> int:
    return int(draft.context.sequence_lengths().max())


def test_of_a_long_text_only_both_ends_are_read(pair: Engine) -> None:
    draft, (text,) = draft_of(pair), code_prompts(pair, 1, 300)
    row = draft.start(text).copy()
    assert n_held(draft) == FIRST + LAST
    draft.reset()
    np.testing.assert_allclose(row, draft.start([*text[:FIRST], *text[-LAST:]]), atol=2e-2)


@pytest.mark.slow
def test_a_text_that_grows_is_held_by_its_ends(pair: Engine) -> None:
    draft, (text,) = draft_of(pair), code_prompts(pair, 1, 300)
    lengths, likeliest, again = [], [], []
    for n in range(LONGEST - 4, 300):
        likeliest.append(int(draft.start(text[:n]).argmax()))
        lengths.append(n_held(draft))
    assert max(lengths) == LONGEST
    assert min(lengths) == FIRST + LAST
    n_passes = draft.context.n_passes
    for n in range(LONGEST - 4, 300):
        draft.reset()
        again.append(int(draft.start([*text[:FIRST], *text[max(n - LAST, FIRST) : n]]).argmax()))
    assert n_passes < 2 * len(lengths) + 10, "tokens behind a gap are moved, not read again"
    assert np.mean(np.array(likeliest) == again) > 0.8, "they are moved to where they would have been read"


def test_another_text_and_the_same_one_again_are_held_right(pair: Engine) -> None:
    draft, (text, other) = draft_of(pair), code_prompts(pair, 2, 300)
    whole = draft.start(text).copy()
    for between in (other, text[: LONGEST - 3], [*text[:200], *other[:50]], text[:3]):
        draft.start(text)
        behind = draft.start(between).copy()
        draft.reset()
        assert behind.argmax() == draft.start(between).argmax()
        draft.reset()
    np.testing.assert_allclose(draft.start(text), whole, atol=2e-2)


def test_it_knows_how_much_of_a_text_it_would_read(pair: Engine) -> None:
    draft, (text, other) = draft_of(pair), code_prompts(pair, 2, 300)
    assert draft.n_unread(text[:50]) == 50
    assert draft.n_unread(text) == FIRST + LAST, "it holds no more of it"
    draft.start(text[:50])
    assert draft.n_unread(text[:50]) == 1, "the root is read again"
    assert draft.n_unread(text[:60]) == 10
    draft.start(text)
    assert draft.n_unread(text) == 1
    assert draft.n_unread(other) == FIRST + LAST


def test_what_was_forgotten_is_saved_and_restored(pair: Engine) -> None:
    draft, (text, other) = draft_of(pair), code_prompts(pair, 2, 300)
    row = draft.start(text).copy()
    saved = draft.save()
    assert saved
    draft.start(other)
    draft.restore(saved)
    n_passes = draft.context.n_passes
    np.testing.assert_allclose(draft.start(text), row, atol=2e-2)
    assert draft.context.n_passes == n_passes + 1


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("plan", [CHAIN.plan(depth=4), SPECEXEC.plan(16, 8)], ids=["chain", "tree"])
def test_the_text_is_the_same(pair: Engine, plan: Plan, temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    sampling = SamplingParameters(temperature=temperature, seed=1)
    n_passes = {}
    for prompt in code_prompts(pair, 2, 90):
        pair.reset()
        plain = write(pair, prompt, sampling, OFF.plan(), 160)
        for last in (LAST, 4096):
            monkeypatch.setattr(draft_module, "_LAST", last)
            pair.reset()
            written = write(pair, prompt, sampling, plan, 160)
            assert first_difference(written, plain) is None
            n_passes[last] = n_passes.get(last, 0) + written.n_passes
    assert n_passes[LAST] < 1.3 * n_passes[4096]

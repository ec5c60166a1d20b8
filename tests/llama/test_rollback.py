"""In whichever way recurrent states are taken back, logits and states are those of decoding one by one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from specrun.llama import LlamaModel, TargetContext
from specrun.llama.batch import Batch
from specrun.llama.context import ContextConfig, LlamaContext, Logits
from specrun.llama.rollback import MOST_PENDING, PROMPT_TAIL, RecurrentStates, text_cache
from specrun.llama_settings import LlamaSettings
from specrun.speculation.planning.pass_sizes import ANY_SIZE, PassSizes
from specrun.speculation.tree import ROOT, TokenTree
from tests.hybrids import KINDS, random_recurrent
from tests.soak.failing import MOMENTS, Moment, OnPurposeError, failing

# Sequences and snapshots of a context: with a checkpoint, with snapshots, and with neither.
CHECKPOINT, SNAPSHOTS, NEITHER = (2, 0), (1, 7), (1, 0)
N_BATCH = 96


@pytest.fixture(scope="module", params=KINDS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaModel]:
    path = tmp_path_factory.mktemp("recurrent") / "model.gguf"
    with LlamaModel(random_recurrent(path, request.param)) as model:
        yield model


@pytest.fixture(params=[CHECKPOINT, SNAPSHOTS], ids=["checkpoint", "snapshots"])
def context(request: pytest.FixtureRequest, model: LlamaModel) -> Iterator[LlamaContext]:
    with made(model, *request.param) as context:
        if request.param == SNAPSHOTS and not context.n_snapshots:
            pytest.skip("llama.cpp keeps no snapshots of this architecture")
        yield context


def made(model: LlamaModel, n_seq_max: int, n_snapshots: int, n_ctx: int = 512) -> LlamaContext:
    settings = LlamaSettings(threads=1, type_v="bf16")
    return LlamaContext(model, ContextConfig(n_ctx, n_seq_max, N_BATCH, 80, settings, n_snapshots))


def some_tokens(model: LlamaModel, count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, model.n_vocab, count).tolist()


def rows_one_by_one(model: LlamaModel, tokens: list[int], first: int) -> list[Logits]:
    """The logits after each of `tokens` from the place `first` on, each from a pass of its own."""
    with made(model, *NEITHER) as context:
        target = TargetContext(context)
        target.set_prompt(tokens[: first + 1])
        rows = []
        for place in range(first, len(tokens)):
            tree = TokenTree.root_only(tokens[place])
            rows.append(target.score(tree)[0].copy())
            target.commit(tree, [ROOT], tokens[min(place + 1, len(tokens) - 1)])
        return rows


def state_behind(model: LlamaModel, tokens: list[int]) -> bytes:
    """What llama.cpp saves of a cache that holds all but the last of `tokens`."""
    with made(model, *NEITHER) as context:
        TargetContext(context).set_prompt(tokens)
        return context.sequence_state(0).tobytes()


def write_rounds(target: TargetContext, rng: np.random.Generator, length: int) -> dict[int, Logits]:
    """Commit chains of random lengths, of which random parts are accepted; returns the rows after committed tokens."""
    n_vocab = target.n_vocab
    rows = {}
    while len(target.tokens) < length:
        n = min(int(rng.integers(1, 9)), target.room())
        tree = TokenTree.chain([target.tokens[-1], *rng.integers(0, n_vocab, n - 1).tolist()])
        n_accepted, root = int(rng.integers(1, n + 1)), len(target.tokens) - 1
        scored = target.score(tree)
        rows |= {root + i: scored[i].copy() for i in range(n_accepted)}
        target.commit(tree, list(range(n_accepted)), int(rng.integers(n_vocab)))
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("n_prompt", [30, 250], ids=["short prompt", "prompt of several passes"])
@pytest.mark.parametrize("seed", [0, 1])
def test_rounds_of_chains_are_the_same_bits_as_one_by_one(
    model: LlamaModel, context: LlamaContext, n_prompt: int, seed: int
) -> None:
    target = TargetContext(context)
    prompt = some_tokens(model, n_prompt, seed)
    target.set_prompt(prompt)
    rows = write_rounds(target, np.random.default_rng(seed), n_prompt + 150)
    text = target.tokens
    expected = rows_one_by_one(model, text, n_prompt - 1)
    assert len(rows) > 140
    for place, row in rows.items():
        np.testing.assert_array_equal(row, expected[place - n_prompt + 1], err_msg=f"token {place}")
    target.set_prompt(text)
    assert context.sequence_state(0).tobytes() == state_behind(model, text)


@pytest.mark.parametrize("padding", [PassSizes(8, 4), PassSizes.only(8), PassSizes(1, 1, 7)], ids=str)
def test_padded_passes_are_the_same_bits(model: LlamaModel, context: LlamaContext, padding: PassSizes) -> None:
    sizes: list[int] = []
    decode = context.decode

    def recorded(batch: Batch) -> Logits:
        sizes.append(len(batch))
        return decode(batch)

    target = TargetContext(context)
    assert target.can_pad(padding)
    target.padding = padding
    target.set_prompt(some_tokens(model, 37))
    context.decode = recorded  # type: ignore[method-assign]
    rows = write_rounds(target, np.random.default_rng(3), 150)
    expected = rows_one_by_one(model, target.tokens, 36)
    for place, row in rows.items():
        np.testing.assert_array_equal(row, expected[place - 36], err_msg=f"token {place}")
    assert all(size in padding for size in sizes)


def test_the_checkpoint_moves_before_passes_that_draft_and_no_others(
    model: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    with made(model, *CHECKPOINT) as context:
        target = TargetContext(context)
        copied: list[tuple[int, range]] = []  # each by the sequences it came from and went to
        copy = context.copy
        monkeypatch.setattr(context, "copy", lambda *args: (args[1] and copied.append(args[:2]), copy(*args)))
        target.set_prompt(some_tokens(model, 40))
        for token in (1, 2, 3):
            tree = TokenTree.root_only(target.tokens[-1])
            target.score(tree)
            target.commit(tree, [ROOT], token)
        assert not copied, "the next plain pass has to copy the state"
        for _ in range(2):  # of the first chain nothing is accepted, so the checkpoint is right for the second one
            tree = TokenTree.chain([target.tokens[-1], 5, 6])
            target.score(tree)
            target.commit(tree, [ROOT], 4)
        text, checkpoint = range(1), range(1, 2)
        assert copied == [(0, checkpoint), (1, text), (1, text)]


def test_where_nothing_is_accepted_the_passes_are_few(model: LlamaModel) -> None:
    with made(model, *CHECKPOINT) as context:
        target = TargetContext(context)
        target.set_prompt(some_tokens(model, 20))
        before = context.n_passes
        for _ in range(100):
            tree = TokenTree.chain([target.tokens[-1], 1, 2])
            target.score(tree)
            assert target.n_pending <= MOST_PENDING
            target.commit(tree, [ROOT], 3)
        # Beside the 100 passes, one over committed tokens alone whenever more than MOST_PENDING of them wait.
        assert context.n_passes - before == 100 + 99 // (MOST_PENDING + 1)


def test_another_text_goes_on_from_the_prompt(model: LlamaModel, context: LlamaContext) -> None:
    target = TargetContext(context)
    prompt = some_tokens(model, 60)
    target.set_prompt(prompt)
    write_rounds(target, np.random.default_rng(1), 100)
    # The same prompt again, as for another answer; then a text that shares the prompt and some of the answer; then one
    # that parts from the prompt a few tokens before its end, as where thoughts are left out of a chat.
    assert target.set_prompt(prompt) == PROMPT_TAIL
    write_rounds(target, np.random.default_rng(2), 90)
    text = [*target.tokens[:75], *some_tokens(model, 10, seed=5)]
    assert target.set_prompt(text) == len(text) - len(prompt) + PROMPT_TAIL
    np.testing.assert_array_equal(
        target.score(TokenTree.root_only(text[-1]))[0], rows_one_by_one(model, text, len(text) - 1)[0]
    )
    target.drop_tree()
    write_rounds(target, np.random.default_rng(4), 110)
    text = [*text[:-6], *some_tokens(model, 30, seed=7)]
    assert target.set_prompt(text) < 75
    assert context.sequence_state(0).tobytes() == state_behind(model, text)
    # What begins otherwise is read from the beginning.
    other = [*prompt[:30], *some_tokens(model, 9, seed=6)]
    assert target.set_prompt(other) == len(other) - 1
    assert context.sequence_state(0).tobytes() == state_behind(model, other)


def test_a_chat_reads_only_what_is_new(model: LlamaModel, context: LlamaContext) -> None:
    target = TargetContext(context)
    text = some_tokens(model, 40)
    target.set_prompt(text)
    for turn in range(3):
        write_rounds(target, np.random.default_rng(turn), len(text) + 20)
        written = list(target.tokens)
        text = [*written, *some_tokens(model, 12, seed=turn)]
        assert target.set_prompt(text) <= 13 + MOST_PENDING
        assert context.sequence_state(0).tobytes() == state_behind(model, text)


def test_a_dropped_tree_leaves_no_trace(model: LlamaModel, context: LlamaContext) -> None:
    target = TargetContext(context)
    text = some_tokens(model, 50)
    target.set_prompt(text)
    for n in (1, 3, 7):
        target.score(TokenTree.chain([text[-1], *some_tokens(model, n, seed=n)]))
        target.drop_tree()
        if target.n_cached < len(text) - 1:  # back at the prompt's state
            target.set_prompt(text)
        assert context.sequence_state(0).tobytes() == state_behind(model, text)
    target.checkpoint()
    before = context.n_passes
    target.score(TokenTree.chain([text[-1], 1, 2]))
    target.drop_tree()
    assert target.n_cached == len(text) - 1
    assert context.n_passes == before + 1
    assert context.sequence_state(0).tobytes() == state_behind(model, text)


@pytest.mark.parametrize("moment", MOMENTS, ids=str)
def test_after_an_interruption_at_any_moment_the_next_text_is_right(
    model: LlamaModel, context: LlamaContext, moment: Moment
) -> None:
    text = some_tokens(model, 40)
    chain = TokenTree.chain([text[-1], 5, 6, 7])
    target = TargetContext(context)
    for after in range(4):
        target.set_prompt(text)
        with failing(context, moment, after), suppress(OnPurposeError):
            target.score(chain)
            target.commit(chain, [ROOT, 1], 8)
            target.score(TokenTree.chain([8, 9]))
            target.commit(TokenTree.chain([8, 9]), [ROOT], 7)
            target.set_prompt(text[:20])
            target.reset()
        for following in ([*text, 5, 8, 9], text[:9]):
            target.set_prompt(following)
            row = target.score(TokenTree.root_only(following[-1]))[0]
            np.testing.assert_array_equal(row, rows_one_by_one(model, following, len(following) - 1)[0])
            target.drop_tree()


def test_a_pass_checks_one_path(context: LlamaContext) -> None:
    target = TargetContext(context)
    target.set_prompt([1, 2, 3])
    assert target.max_leaves == 1
    with pytest.raises(ValueError, match="2 leaf paths"):
        target.score(TokenTree.build([3, 5, 6], [-1, ROOT, ROOT], [0, -1, -2]))


def test_no_pass_is_longer_than_what_its_snapshots_take_back(tmp_path: Path) -> None:
    with LlamaModel(random_recurrent(tmp_path / "model.gguf", "qwen35")) as model, made(model, *SNAPSHOTS) as context:
        target = TargetContext(context)
        target.set_prompt([1, 2, 3])
        assert target.room() == 8
        assert not target.can_pad(PassSizes.only(16))
        assert target.can_pad(ANY_SIZE)


@pytest.mark.slow
def test_snapshots_need_passes_that_are_larger(tmp_path: Path) -> None:
    # llama.cpp would end the process in the first pass.
    with LlamaModel(random_recurrent(tmp_path / "model.gguf", "qwen35")) as model:
        with pytest.raises(ValueError, match="snapshots"):
            LlamaContext(model, ContextConfig(64, 1, 17, 16, n_snapshots=16))
        with LlamaContext(model, ContextConfig(64, 1, 18, 16, n_snapshots=16)) as context:
            TargetContext(context).set_prompt(list(range(40)))


def test_attention_alone_takes_back_any_cell(random_model: Path, tmp_path: Path) -> None:
    with LlamaModel(random_model) as llama, made(llama, 2, 0) as context:
        assert not isinstance(text_cache(context), RecurrentStates)
    with LlamaModel(random_recurrent(tmp_path / "model.gguf", "mamba")) as mamba, made(mamba, 2, 0) as context:
        assert isinstance(text_cache(context), RecurrentStates)

"""Several texts in one cache, in shared passes: each gets the bits that it gets alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import gguf
import numpy as np
import pytest

from specrun.errors import LlamaError
from specrun.llama import LlamaModel, TargetContext
from specrun.llama.context import ContextConfig, LlamaContext
from specrun.llama.slot_cells import CellLedger, SlotCells
from specrun.llama.target import score_together, target_slots
from specrun.llama_settings import LlamaSettings
from specrun.speculation.planning.pass_sizes import PassSizes
from specrun.speculation.tree import ROOT, TokenTree
from tests.models import random_llama
from tests.trees import random_path, random_tree

LEAVES = (12, 6, 6)
TWO_OR_MORE = PassSizes(2)  # the class of float32
SETTINGS = LlamaSettings(threads=1, type_v="bf16")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaModel]:
    """A model in float32, where no rounding of activations hides a difference in the last bit."""
    path = tmp_path_factory.mktemp("f32") / "target.gguf"
    with LlamaModel(random_llama(path, weight_type=gguf.GGMLQuantizationType.F32, n_ctx=1024)) as model:
        yield model


@pytest.fixture
def context(model: LlamaModel) -> Iterator[LlamaContext]:
    config = ContextConfig(
        n_ctx=1024, n_seq_max=sum(LEAVES) + 3, n_batch=512, n_outputs=256, settings=SETTINGS, slots=LEAVES
    )
    with LlamaContext(model, config) as context:
        yield context


@pytest.fixture
def alone(model: LlamaModel) -> Iterator[TargetContext]:
    """A target that has its context for itself."""
    config = ContextConfig(n_ctx=1024, n_seq_max=1, n_batch=512, n_outputs=64, settings=SETTINGS)
    with LlamaContext(model, config) as context:
        yield TargetContext(context)


def slots(context: LlamaContext, alone: TargetContext, padding: PassSizes = TWO_OR_MORE) -> list[TargetContext]:
    """A target for each slot, all padded as `alone` is from now on."""
    targets = target_slots(context)
    assert [target.max_leaves for target in targets] == [*LEAVES]
    for target in (*targets, alone):
        target.padding = padding
    return targets


def cells_of(target: TargetContext) -> SlotCells:
    assert isinstance(target.cells, SlotCells)
    return target.cells


@dataclass
class Texts:
    """Texts that grow at random in the slots of one context.

    largest: nodes of a tree. least: tokens of a pass, with padding.
    n_different: rows that had other bits than those of the text alone. n_dead: most dead cells at a time.
    n_mixed: passes over trees of some texts and prompts of others.
    """

    targets: Sequence[TargetContext]
    alone: TargetContext
    rng: np.random.Generator
    largest: int
    least: int = 0
    n_different: int = 0
    n_dead: int = 0
    n_mixed: int = 0
    _texts: list[list[int]] = field(default_factory=list)

    @property
    def ledger(self) -> CellLedger:
        return cells_of(self.targets[0]).ledger

    def some_tokens(self, n: int) -> list[int]:
        return [int(token) for token in self.rng.integers(self.alone.n_vocab, size=n)]

    def begin(self, target: TargetContext) -> None:
        """Another text, or one that goes on from somewhere in the present one. A pass to come reads it."""
        kept = target.tokens[: int(self.rng.integers(len(target.tokens) + 1))] if self.rng.random() < 0.6 else []
        target.begin_prompt([*kept, *self.some_tokens(int(self.rng.integers(2, 50)))])

    def grow(self, targets: Sequence[TargetContext]) -> None:
        """A pass over these texts, each with a tree at random, of which a path at random is accepted, or with the next
        chunk of its prompt.
        """
        reading = [target for target in targets if target.n_chunk]
        targets = [target for target in targets if not target.n_chunk]
        self.n_mixed += bool(reading and targets)
        trees = [
            random_tree(
                self.rng,
                int(self.rng.integers(1, self.largest + 1)),
                target.n_vocab,
                target.tokens[-1],
                target.max_leaves,
            )
            for target in targets
        ]
        rows = score_together(list(zip(targets, trees, strict=True)), reading, self.least)
        for target, tree, own in zip(targets, trees, rows, strict=True):
            path = random_path(self.rng, tree)
            expected = self._rows_alone([*target.tokens, *tree.tokens[path[1:]].tolist()], len(path))
            self.n_different += int((own[path] != expected).any())
        for target, tree in zip(targets, trees, strict=True):
            target.commit(tree, random_path(self.rng, tree), self.some_tokens(1)[0])
        self.n_dead = max(self.n_dead, self.ledger.n_dead)

    def _rows_alone(self, text: list[int], n: int) -> np.ndarray:
        """float32[n, n_vocab], after each of the last `n` tokens of `text`, when it is alone."""
        target = self.alone
        target.set_prompt(text[: len(text) - n + 1])
        chain = TokenTree.chain(text[len(text) - n :])
        rows = target.score(chain).copy()
        target.commit(chain, list(range(n)), 0)
        return rows

    def check_order(self) -> None:
        """Each text's cells are in order, and no cell in front of any text's last one is free."""
        taken = self.ledger.taken
        for target in self.targets:
            cells = cells_of(target).cells
            assert len(cells) == target.n_cached
            assert cells == sorted(set(cells))
            assert taken[: cells_of(target).last + 1].all()
        context = self.ledger.context
        for slot in self.ledger.slots:
            assert context.sequence_end(slot.first) == len(slot.cells)
        assert context.sequence_lengths().tolist() == [
            context.sequence_end(i) for i in range(len(LEAVES) + sum(LEAVES))
        ]

    def run(self, n_steps: int) -> None:
        for target in self.targets:
            self.begin(target)
        for _ in range(n_steps):
            if self.rng.random() < 0.2 or not self.has_room():
                target = self.targets[int(self.rng.integers(len(self.targets)))]
                if self.rng.random() < 0.4 and not target.n_chunk:
                    saved = target.save()
                    assert saved
                    target.restore(saved)
                else:
                    if self.rng.random() < 0.5 or len(target.tokens) > 150:
                        target.reset()
                    self.begin(target)
            n = int(self.rng.integers(1, len(self.targets) + 1))
            self.grow([self.targets[i] for i in self.rng.permutation(len(self.targets))[:n]])
            self.check_order()
            if self.ledger.n_dead > 300 or (self.rng.random() < 0.03 and self.ledger.n_dead):
                self.ledger.free_dead()
                for target in sorted(self.targets, key=lambda target: target.cells.last):
                    target.move_down()
                assert self.ledger.n_dead == 0
                self.check_order()

    def has_room(self) -> bool:
        return all(len(target.tokens) < 220 for target in self.targets)


@pytest.mark.slow
@pytest.mark.parametrize("padding", [TWO_OR_MORE, PassSizes(8, 4)], ids=str)
@pytest.mark.parametrize("largest", [1, 5, 24], ids=["plain", "small trees", "trees"])
def test_texts_in_shared_passes_get_the_bits_that_they_get_alone(
    context: LlamaContext, alone: TargetContext, largest: int, padding: PassSizes
) -> None:
    filled = 40 if padding is TWO_OR_MORE else 0
    texts = Texts(slots(context, alone, padding), alone, np.random.default_rng(largest), largest, filled)
    texts.run(100)
    assert texts.n_different == 0
    assert texts.n_dead > 20
    assert texts.n_mixed > 2


def test_without_the_order_of_cells_they_would_not(
    context: LlamaContext, alone: TargetContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CellLedger, "make_room", lambda ledger, _: ledger.free_dead())
    monkeypatch.setattr(Texts, "check_order", lambda _: None)
    texts = Texts(slots(context, alone), alone, np.random.default_rng(5), 5)
    texts.run(30)
    assert texts.n_different > 20


def test_dead_cells_are_used_again(context: LlamaContext, alone: TargetContext) -> None:
    """In passes of one size over the same texts, their number stays that of a few passes."""
    targets = slots(context, alone)
    texts = Texts(targets, alone, np.random.default_rng(0), 1)
    for target in targets:
        target.set_prompt(texts.some_tokens(20))
    seen = []
    for _ in range(60):
        trees = [TokenTree.chain([target.tokens[-1], *texts.some_tokens(3)]) for target in targets]
        score_together(list(zip(targets, trees, strict=True)))
        for target, tree in zip(targets, trees, strict=True):
            target.commit(tree, [ROOT], 1)
        seen.append(texts.ledger.n_dead)
    assert max(seen) <= 4 * sum(len(tree) for tree in trees)
    for target in targets[1:]:
        target.reset()
    targets[0].set_prompt([1, 2, 3])
    targets[0].reset()
    assert texts.ledger.n_dead == 0
    assert texts.ledger.n_free == context.config.n_ctx


def test_a_state_that_is_refused_takes_no_other_text_away(context: LlamaContext, alone: TargetContext) -> None:
    first, second, *_ = targets = slots(context, alone)
    texts = Texts(targets, alone, np.random.default_rng(3), 4)
    for target in (first, second):
        target.set_prompt(texts.some_tokens(30))
    saved = second.save()
    assert saved
    for size in (8, len(saved.state) // 2, len(saved.state) - 1):
        with pytest.raises(LlamaError):
            second.restore(replace(saved, state=saved.state[:size].copy()))
        assert second.n_cached == 0
        texts.check_order()
        texts.grow([first])
    second.restore(saved)
    texts.grow([first, second])
    texts.check_order()
    assert texts.n_different == 0


def test_texts_may_be_moved_before_a_prompt_is_read_on(context: LlamaContext, alone: TargetContext) -> None:
    """What was on a sequence for each leaf path is on one of them then."""
    targets = slots(context, alone)
    texts = Texts(targets, alone, np.random.default_rng(0), 12)
    for target in targets:
        target.set_prompt(texts.some_tokens(20))
    for _ in range(3):
        texts.grow(targets)
    first = targets[0]
    first.begin_prompt([*first.tokens, *texts.some_tokens(10)])
    texts.ledger.free_dead()
    for target in sorted(targets, key=lambda target: target.cells.last):
        target.move_down()
    while first.n_chunk:
        texts.grow(targets)
    texts.grow(targets)
    texts.check_order()
    assert texts.n_different == 0


def test_after_a_pass_that_failed_everything_is_read_again(
    context: LlamaContext, alone: TargetContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = slots(context, alone)
    texts = Texts(targets, alone, np.random.default_rng(0), 5)
    for target in targets:
        target.set_prompt(texts.some_tokens(20))
    with monkeypatch.context() as patch:
        patch.setattr(LlamaContext, "_logits", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            texts.grow(targets)
    for target in targets:
        text = list(target.tokens)
        assert target.set_prompt(text) == len(text) - 1
    texts.grow(targets)
    texts.check_order()
    assert texts.n_different == 0
